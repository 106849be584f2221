/* sparsegen
about = "one row of C after the other, TILE vectors of its columns in registers while WAYS entries of A are taken at once"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
[tune]
TILE = [1, 2, 3, 4, 6, 8]
WAYS = [1, 2]
NARROW = [0, 4]
values = ["full", "f32", "constant"]
*/
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t row = begin; row < end; ++row)
        for (int64_t column = 0; column < k; column += TILE * WIDTH) {
            const OFFSET past = indptr[row + 1];
            OFFSET p = indptr[row];
            vector sums[WAYS * TILE] = {};
            if (column + TILE * WIDTH <= k) {
                for (; p + WAYS <= past; p += WAYS)
#pragma GCC unroll 32
                    for (int64_t i = 0; i < WAYS * TILE; ++i)
                        sums[i] += splat(VALUE_AT(p + i / TILE)) * ROW_OF_B(int64_t(indices[p + i / TILE]), column + i % TILE * WIDTH);
                for (; p < past; ++p)
#pragma GCC unroll 8
                    for (int64_t t = 0; t < TILE; ++t)
                        sums[t] += splat(VALUE_AT(p)) * ROW_OF_B(int64_t(indices[p]), column + t * WIDTH);
            } else {
                for (; p + WAYS <= past; p += WAYS)
#pragma GCC unroll 32
                    for (int64_t i = 0; i < WAYS * TILE; ++i)
                        sums[i] += splat(VALUE_AT(p + i / TILE)) * END_OF_B(int64_t(indices[p + i / TILE]), column + i % TILE * WIDTH);
                for (; p < past; ++p)
#pragma GCC unroll 8
                    for (int64_t t = 0; t < TILE; ++t)
                        sums[t] += splat(VALUE_AT(p)) * END_OF_B(int64_t(indices[p]), column + t * WIDTH);
            }
#pragma GCC unroll 8
            for (int64_t t = 0; t < TILE; ++t) {
                for (int64_t w = 1; w < WAYS; ++w) sums[t] += sums[w * TILE + t];
                STORE_ROW(row, column + t * WIDTH, sums[t], doubt);
            }
        }
    REPORT(doubt);
}
