/* sparsegen
about = "one row after the other, COLUMNS numbers of C in registers: for operands stored by columns"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
[tune]
COLUMNS = [4, 8]
values = ["full", "f32", "constant"]
*/
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t column = 0; column < k; column += COLUMNS)
        for (int64_t row = begin; row < end; ++row) {
            ACC sums[COLUMNS] = {};
            for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p)
#pragma GCC unroll 8
                for (int64_t c = 0; c < COLUMNS; ++c) {
                    const int64_t at = column + c < k ? column + c : column;
                    sums[c] += VALUE_AT(p) * B_AT(int64_t(indices[p]), at);
                }
            for (int64_t c = 0; c < COLUMNS && column + c < k; ++c) STORE_C(row, column + c, sums[c]);
        }
}
