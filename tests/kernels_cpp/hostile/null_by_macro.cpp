/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[params]
NOTHING = 0
[[launch]]
entry = "spmv"
items = "m"
*/
// a null pointer from a parameter that is 0
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    const VALUE* p = NOTHING;
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        sum += p[row];
        STORE(y, row, sum);
    }
}
