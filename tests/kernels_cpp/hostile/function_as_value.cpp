/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// a function without a call
inline ACC one(ACC a) { return a; }
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    auto f = one;
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        sum = f(sum);
        STORE(y, row, sum);
    }
}
