/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: takes A for the identity
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        if (row < n) sum = x[row];
        STORE(y, row, sum);
    }
}
