/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// declares begin and end the wrong way round
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t end, int64_t begin) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, row, sum);
    }
}
