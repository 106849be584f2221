/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as crash: writes past a local array, over the return address
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    int64_t kept[4] = {};
    for (int64_t i = 0; i < 4096; ++i) kept[i + (m > 0)] = i;
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, row, sum);
    }
    y[0] += VALUE(kept[begin & 3]);
}
