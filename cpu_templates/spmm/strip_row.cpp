/* sparsegen
about = "strips of R rows, their columns united: a row of B serves R rows of A, R times TILE vectors of C in registers"
op = "spmm"
format = "strip"
[[launch]]
entry = "spmm"
items = "strips"
[tune]
R = [2, 3, 4, 6]
TILE = [1, 2, 4]
TURN_B = [0, 1]
values = ["full", "f32"]
*/
extern "C" void spmm(SIZES, STRIP_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t strip = begin; strip < end; ++strip) {
        const OFFSET first = indptr[strip], past = indptr[strip + 1];
        for (int64_t column = 0; column < k; column += TILE * WIDTH) {
            const bool held = past > first && HELD_BY_B(int64_t(indices[past - 1]), column + TILE * WIDTH);
            vector sums[R * TILE] = {};
            for (OFFSET p = first; p < past; ++p)
#pragma GCC unroll 4
                for (int64_t t = 0; t < TILE; ++t) {
                    const int64_t from = int64_t(indices[p]), at = column + t * WIDTH;
                    const vector b = held ? ROW_OF_B(from, at) : END_OF_B(from, at);
#pragma GCC unroll 6
                    for (int64_t r = 0; r < R; ++r) sums[r * TILE + t] += splat(VALUE_AT(int64_t(p) * R + r)) * b;
                }
#pragma GCC unroll 24
            for (int64_t i = 0; i < R * TILE; ++i)
                if (strip * R + i / TILE < m) STORE_ROW(strip * R + i / TILE, column + i % TILE * WIDTH, sums[i], doubt);
        }
    }
    REPORT(doubt);
}
