/* sparsegen
about = "THREADS_PER_ROW lanes share one row and reduce with shuffles (CSR-vector, Bell and Garland 2009)"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(m * THREADS_PER_ROW, BLOCK)"
[tune]
BLOCK = [128, 256]
THREADS_PER_ROW = [2, 4, 8, 16, 32]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t row = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / THREADS_PER_ROW;
    const int lane = threadIdx.x % THREADS_PER_ROW;
    ACC sum = 0;
    if (row < m) {  // lanes past the last row stay for the shuffles
        const OFFSET end = indptr[row + 1];
        for (OFFSET p = indptr[row] + lane; p < end; p += THREADS_PER_ROW) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    }
    for (int step = THREADS_PER_ROW / 2; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, step, THREADS_PER_ROW);
    if (row < m && lane == 0) STORE(y, row, sum);
}
