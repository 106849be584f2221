/* sparsegen
about = "several columns of B at a time (SpMM)"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
[params]
COLUMNS = 4
*/
// several columns of B at a time (SpMM)
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
        for (int64_t first = 0; first < k; first += COLUMNS) {
            ACC sums[COLUMNS] = {};
            const int64_t many = k - first < COLUMNS ? k - first : COLUMNS;
            for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) {
                const VALUE* b = &B_AT(indices[p], first);
                for (int64_t j = 0; j < many; ++j) sums[j] += VALUE_AT(p) * ACC(b[B_BY_ROW ? j : j * ldb]);
            }
            for (int64_t j = 0; j < many; ++j) STORE_C(row, first + j, sums[j]);
        }
}
