/* sparsegen
about = "a warp owns 32 * COLUMNS columns of one row of C: its lanes load 32 entries of A at once and pass them round by shuffles (after GE-SpMM, Huang et al. 2020)"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
block = "BLOCK"
grid = "ceil_div(m * ceil_div(k, 32 * COLUMNS) * 32, BLOCK)"
[params]
BLOCK = 128
[tune]
COLUMNS = [1, 2, 4]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
spmm(SIZES, CSR_ARRAYS, const VALUE* __restrict__ B, VALUE* __restrict__ C, EPILOGUE) {
    const int64_t tiles = (k + 32 * COLUMNS - 1) / (32 * COLUMNS);  // of one row
    const int64_t warp = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / 32, row = warp / tiles;
    if (row >= m) return;
    const int lane = threadIdx.x % 32;
    const int64_t first = warp % tiles * (32 * COLUMNS) + lane;
    const OFFSET end = indptr[row + 1];
    ACC sums[COLUMNS] = {};
    for (OFFSET batch = indptr[row]; batch < end; batch += 32) {
        const OFFSET p = batch + lane;
        const INDEX own_index = p < end ? indices[p] : INDEX(0);
        const ACC own_value = p < end ? VALUE_AT(p) : ACC(0);
        const int count = int(min(OFFSET(32), OFFSET(end - batch)));
        for (int i = 0; i < count; ++i) {
            const INDEX index = __shfl_sync(0xffffffffu, own_index, i);
            const ACC value = __shfl_sync(0xffffffffu, own_value, i);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                if (first + 32 * c < k) sums[c] += value * ACC(B_AT(index, first + 32 * c));
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (first + 32 * c < k) STORE_C(row, first + 32 * c, sums[c]);
}
