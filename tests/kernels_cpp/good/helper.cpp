/* sparsegen
about = "a helper sums a row, another stores it"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// a helper sums a row, another stores it
inline ACC row_sum(const STORED* data, const INDEX* indices, const VALUE* __restrict__ x, OFFSET first, OFFSET past) {
    ACC sum = 0;
    for (OFFSET p = first; p < past; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    return sum;
}

inline void finish(const STORED* data, VALUE* y, int64_t row, ACC sum, EPILOGUE) {
    STORE(y, row, sum);
}

extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE, int64_t begin,
                     int64_t end) {
    for (int64_t row = begin; row < end; ++row)
        finish(data, y, row, row_sum(data, indices, x, indptr[row], indptr[row + 1]), alpha, beta, status);
}
