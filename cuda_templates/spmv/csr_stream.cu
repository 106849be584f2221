/* sparsegen
about = "a block owns BLOCK / THREADS_PER_ROW rows and stages their products in shared memory, so that A is read in order whatever the lengths of its rows (CSR-stream, Greathouse and Daga 2014)"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(m, BLOCK // THREADS_PER_ROW)"
[params]
ITEMS = 4
[tune]
BLOCK = [128, 256]
THREADS_PER_ROW = [1, 4, 16]
values = ["full", "f32", "constant"]
*/
#define ROWS (BLOCK / THREADS_PER_ROW)
#define TILE (BLOCK * ITEMS)
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    __shared__ ACC products[TILE];
    const int64_t first_row = int64_t(blockIdx.x) * ROWS;
    const int64_t row = first_row + threadIdx.x / THREADS_PER_ROW;
    const int lane = threadIdx.x % THREADS_PER_ROW;
    const OFFSET first = indptr[first_row], last = indptr[min(first_row + ROWS, m)];
    const OFFSET begin = indptr[min(row, m)], end = indptr[min(row + 1, m)];
    ACC sum = 0;
    for (OFFSET tile = first; tile < last; tile += TILE) {
        const OFFSET tile_end = min(tile + TILE, last);
        for (OFFSET p = tile + threadIdx.x; p < tile_end; p += BLOCK)
            products[p - tile] = VALUE_AT(p) * ACC(x[indices[p]]);
        __syncthreads();
        const OFFSET stop = min(end, tile_end);
        for (OFFSET p = max(begin, tile) + lane; p < stop; p += THREADS_PER_ROW) sum += products[p - tile];
        __syncthreads();  // the next tile overwrites what others may still read
    }
    for (int step = THREADS_PER_ROW / 2; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, step, THREADS_PER_ROW);
    if (row < m && lane == 0) STORE(y, row, sum);
}
