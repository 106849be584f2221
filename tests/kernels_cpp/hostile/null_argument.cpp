/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// a null pointer given to a helper
inline ACC first(const VALUE* p, int64_t i) { return p[i]; }
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        sum += first(0, row);
        STORE(y, row, sum);
    }
}
