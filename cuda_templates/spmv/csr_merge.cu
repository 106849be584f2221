/* sparsegen
about = "a thread owns ITEMS steps of the merge of row ends with entries, so that any row lengths are equal work; what a tile leaves of its last row is added by a second launch (merge-path, Merrill and Garland 2016)"
op = "spmv"
format = "csr"
[scratch]
carry = ["ACC", "ceil_div(m + nnz, BLOCK * ITEMS)"]
carry_rows = ["INDEX", "ceil_div(m + nnz, BLOCK * ITEMS)"]
[[launch]]
entry = "merge"
block = "BLOCK"
grid = "ceil_div(m + nnz, BLOCK * ITEMS)"
[[launch]]
entry = "add_carries"
block = "BLOCK"
grid = "ceil_div(ceil_div(m + nnz, BLOCK * ITEMS) * 32, BLOCK)"
[tune]
BLOCK = [128, 256]
ITEMS = [4, 7]
values = ["full", "f32", "constant"]
*/
#define TILE (BLOCK * ITEMS)

/* Of the first `steps` steps of the merge, how many are row ends. */
__device__ __forceinline__ int64_t row_ends(int64_t steps, const OFFSET* ends, int64_t rows, int64_t entries) {
    int64_t low = max(steps - entries, int64_t(0)), high = min(steps, rows);
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (ends[middle] < steps - middle) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
merge(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    __shared__ ACC products[TILE], sums[TILE], warp_sums[BLOCK / 32];
    __shared__ OFFSET ends[TILE];  // of the tile's rows, counted from its first entry
    __shared__ int64_t corner[2];
    __shared__ int rows_of[BLOCK];
    const int thread = threadIdx.x, lane = thread % 32;
    const int64_t first = int64_t(blockIdx.x) * TILE, last = min(first + TILE, m + nnz);
    if (thread < 2) corner[thread] = row_ends(thread ? last : first, indptr + 1, m, nnz);
    __syncthreads();
    const int64_t row0 = corner[0], p0 = first - row0;
    const int rows = int(corner[1] - row0), entries = int(last - first) - rows;
    for (int i = thread; i < entries; i += BLOCK) products[i] = VALUE_AT(p0 + i) * ACC(x[indices[p0 + i]]);
    for (int i = thread; i < rows; i += BLOCK) ends[i] = OFFSET(indptr[row0 + i + 1] - p0);
    __syncthreads();

    int step = min(thread * ITEMS, rows + entries);
    const int stop = min(step + ITEMS, rows + entries);
    int row = int(row_ends(step, ends, rows, entries)), p = step - row;
    ACC sum = 0;
    for (; step < stop; ++step) {
        if (row < rows && p >= ends[row]) {
            sums[row++] = sum;
            sum = 0;
        } else {
            sum += products[p++];
        }
    }

    /* What each thread has left belongs to `row`, which a later thread ends: add up equal rows, first in a warp. */
    rows_of[thread] = row;
    for (int distance = 1; distance < 32; distance *= 2) {
        const ACC other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (row == __shfl_up_sync(0xffffffffu, row, distance) && lane >= distance) sum += other;
    }
    if (lane == 31) warp_sums[thread / 32] = sum;
    __syncthreads();
    if (thread == BLOCK - 1 || rows_of[thread + 1] != row) {
        for (int warp = thread / 32 - 1; warp >= 0 && rows_of[warp * 32 + 31] == row; --warp) sum += warp_sums[warp];
        if (row < rows) sums[row] += sum;
    }
    __syncthreads();
    for (int i = thread; i < rows; i += BLOCK) STORE(y, row0 + i, sums[i]);
    if (thread == BLOCK - 1) {
        const bool some = entries > (rows ? int64_t(ends[rows - 1]) : 0);
        carry[blockIdx.x] = sum;
        carry_rows[blockIdx.x] = INDEX(some ? row0 + rows : m);  // m: nothing is left
    }
}

/* One warp owns the tiles that left something of the same row. */
extern "C" __global__ void __launch_bounds__(BLOCK)
add_carries(SIZES, CSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t tiles = (m + nnz + TILE - 1) / TILE;
    const int64_t tile = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / 32;
    if (tile >= tiles) return;
    const INDEX row = carry_rows[tile];
    if (row == m || (tile > 0 && carry_rows[tile - 1] == row)) return;
    ACC sum = 0;
    for (int64_t t = tile + threadIdx.x % 32; t < tiles && carry_rows[t] == row; t += 32) sum += carry[t];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) ADD(y, row, sum);
}
