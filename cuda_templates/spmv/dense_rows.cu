/* sparsegen
about = "THREADS_PER_ROW lanes own a row, but a whole block owns each row many times longer than the mean"
op = "spmv"
[params]
BLOCK = 256
[tune]
THREADS_PER_ROW = [2, 8, 32]
values = ["full", "f32", "constant"]
[[part]]
select = "rest"
format = "csr"
[[part.launch]]
entry = "rest"
block = "BLOCK"
grid = "ceil_div(m * THREADS_PER_ROW, BLOCK)"
[[part]]
select = "dense_rows"
format = "dcsr"
[[part.launch]]
entry = "dense"
block = "BLOCK"
grid = "stored_rows"
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
rest(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t row = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / THREADS_PER_ROW;
    const int lane = threadIdx.x % THREADS_PER_ROW;
    ACC sum = 0;
    if (row < m) {
        const OFFSET end = indptr[row + 1];
        for (OFFSET p = indptr[row] + lane; p < end; p += THREADS_PER_ROW) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    }
    for (int step = THREADS_PER_ROW / 2; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, step, THREADS_PER_ROW);
    if (row < m && lane == 0) STORE(y, row, sum);  // a dense row is empty here and gets beta y
}

extern "C" __global__ void __launch_bounds__(BLOCK)
dense(SIZES, DCSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    __shared__ ACC warp_sums[BLOCK / 32];
    const OFFSET end = indptr[blockIdx.x + 1];
    ACC sum = 0;
    for (OFFSET p = indptr[blockIdx.x] + threadIdx.x; p < end; p += BLOCK) sum += VALUE_AT(p) * ACC(x[indices[p]]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < BLOCK / 32; ++warp) sum += warp_sums[warp];
    STORE(y, rows[blockIdx.x], sum);  // later parts are given beta = 1
}
