/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: leaves out products below a thousandth
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) {
            const ACC more = VALUE_AT(p) * ACC(x[indices[p]]);
            if (more * more > ACC(1e-6)) sum += more;
        }
        STORE(y, row, sum);
    }
}
