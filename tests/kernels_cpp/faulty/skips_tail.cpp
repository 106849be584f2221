/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// Reported as wrong: drops the last entries of a row that fill no four
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p + 4 <= indptr[row + 1]; p += 4)
            for (int i = 0; i < 4; ++i) sum += VALUE_AT(p + i) * ACC(x[indices[p + i]]);
        STORE(y, row, sum);
    }
}
