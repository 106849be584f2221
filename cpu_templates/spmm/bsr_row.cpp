/* sparsegen
about = "one row of R x S blocks after the other, R times TILE vectors of C in registers: a row of B serves R rows of A"
op = "spmm"
format = "bsr"
[[launch]]
entry = "spmm"
items = "block_rows"
[tune]
R = [2, 3, 4]
S = [1, 2, 3, 4]
TILE = [1, 2, 4]
values = ["full", "f32"]
*/
extern "C" void spmm(SIZES, BSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t block_row = begin; block_row < end; ++block_row)
        for (int64_t column = 0; column < k; column += TILE * WIDTH) {
            vector sums[R * TILE] = {};
            for (OFFSET block = indptr[block_row]; block < indptr[block_row + 1]; ++block) {
                const int64_t p = int64_t(block) * (R * S), from = int64_t(indices[block]) * S;
#pragma GCC unroll 4
                for (int64_t s = 0; s < S; ++s)
#pragma GCC unroll 4
                    for (int64_t t = 0; t < TILE; ++t) {
                        const int64_t at = column + t * WIDTH;
                        const vector b = column + TILE * WIDTH <= k ? ROW_OF_B(from + s, at) : END_OF_B(from + s, at);
#pragma GCC unroll 4
                        for (int64_t r = 0; r < R; ++r) sums[r * TILE + t] += splat(VALUE_AT(p + r * S + s)) * b;
                    }
            }
#pragma GCC unroll 16
            for (int64_t i = 0; i < R * TILE; ++i)
                STORE_ROW(block_row * R + i / TILE, column + i % TILE * WIDTH, sums[i], doubt);
        }
    REPORT(doubt);
}
