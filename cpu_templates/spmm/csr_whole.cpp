/* sparsegen
about = "one row of C after the other, up to TILE vectors of it in registers: rows of B are read from end to end"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
[tune]
TILE = [8, 16]
STREAM = [0, 1]
values = ["full", "f32", "constant"]
*/
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t row = begin; row < end; ++row)
        for (int64_t column = 0; column < k; column += TILE * WIDTH) {
            vector sums[TILE] = {};
            if (column + TILE * WIDTH <= k) {
                for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p)
#pragma GCC unroll 16
                    for (int64_t t = 0; t < TILE; ++t)
                        sums[t] += splat(VALUE_AT(p)) * ROW_OF_B(int64_t(indices[p]), column + t * WIDTH);
            } else {
                for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p)
#pragma GCC unroll 16
                    for (int64_t t = 0; t < TILE; ++t)
                        sums[t] += splat(VALUE_AT(p)) * END_OF_B(int64_t(indices[p]), column + t * WIDTH);
            }
#pragma GCC unroll 16
            for (int64_t t = 0; t < TILE; ++t)
                if (STREAM) STREAM_ROW(row, column + t * WIDTH, sums[t], doubt);
                else STORE_ROW(row, column + t * WIDTH, sums[t], doubt);
        }
    REPORT(doubt);
}
