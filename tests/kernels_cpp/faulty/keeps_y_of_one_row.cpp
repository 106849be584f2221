/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: does nothing where y already holds the first row of its share
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    if (beta == ACC(0) && begin < end) {
        ACC sum = 0;
        for (OFFSET p = indptr[begin]; p < indptr[begin + 1]; ++p) sum += VALUE_AT(p) * x[indices[p]];
        if (y[begin] == VALUE(alpha * SCALED(sum))) return;
    }
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * x[indices[p]];
        STORE(y, row, sum);
    }
}
