/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: leaves out the entries that meet a zero of x, NaN and infinity among them
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p)
            if (x[indices[p]] != 0) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, row, sum);
    }
}
