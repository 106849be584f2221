/* sparsegen
about = "walks rows with pointers, and looks ahead"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// walks rows with pointers, and looks ahead
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    const INDEX* column = indices + indptr[begin];
    for (int64_t row = begin; row < end; ++row) {
        const INDEX* const last = indices + indptr[row + 1];
        const auto* a = &data[CONSTANT_VALUES ? 0 : indptr[row]];
        ACC sum = 0;
        if (__builtin_expect(row + 1 < end, 1)) __builtin_prefetch(last, 0, 3);
        for (; column != last; ++column, a += !CONSTANT_VALUES) sum = __builtin_fma(CONSTANT_VALUES ? 1 : *a, x[*column], sum);
        STORE(y, row, sum);
    }
}
