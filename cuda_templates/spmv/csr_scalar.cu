/* sparsegen
about = "one thread owns one row (CSR-scalar, Bell and Garland 2009)"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(m, BLOCK)"
[tune]
BLOCK = [64, 128, 256]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t row = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (row >= m) return;
    const OFFSET end = indptr[row + 1];
    ACC sum = 0;
    for (OFFSET p = indptr[row]; p < end; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    STORE(y, row, sum);
}
