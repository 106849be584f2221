/* sparsegen
about = "rows one after the other, the dense ones apart"
op = "spmv"
[[part]]
select = "rest"
format = "csr"
[[part.launch]]
entry = "rest"
items = "m"
[[part]]
select = "dense_rows"
format = "dcsr"
[[part.launch]]
entry = "dense"
items = "stored_rows"
*/
// two parts, two entries
extern "C" void rest(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        ACC sum = 0;
        for (OFFSET p = indptr[row]; p < indptr[row + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, row, sum);
    }
}

extern "C" void dense(SIZES, DCSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        ACC sum = 0;
        for (OFFSET p = indptr[i]; p < indptr[i + 1]; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, rows[i], sum);
    }
}
