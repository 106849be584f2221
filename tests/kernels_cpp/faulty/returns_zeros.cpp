/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: computes nothing
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        sum = 0;
        STORE(y, row, sum);
    }
}
