/* sparsegen
about = "a warp owns one row of blocks: each lane keeps one place in the block and takes every 32 / (R * S)th block"
op = "spmv"
format = "bsr"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(block_rows * 32, BLOCK)"
[params]
BLOCK = 128
[tune]
R = [2, 3, 4]
S = [2, 3, 4]
values = ["full", "f32", "constant"]
*/
#define AT_ONCE (32 / (R * S))
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
spmv(SIZES, BSR_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t block_row = (int64_t(blockIdx.x) * BLOCK + threadIdx.x) / 32;
    if (block_row >= block_rows) return;
    const int lane = threadIdx.x % 32, place = lane % (R * S);
    const OFFSET end = indptr[block_row + 1];
    ACC sum = 0;
    if (lane < AT_ONCE * R * S)
        for (OFFSET block = indptr[block_row] + lane / (R * S); block < end; block += AT_ONCE) {
            const int64_t slot = int64_t(block) * (R * S) + place, column = int64_t(indices[block]) * S + place % S;
            sum += VALUE_AT(slot) * ACC(x[column]);
        }
    for (int r = 0; r < R; ++r) {
        ACC row_sum = place / S == r ? sum : ACC(0);
        for (int step = 16; step > 0; step /= 2) row_sum += __shfl_down_sync(0xffffffffu, row_sum, step);
        if (lane == 0) STORE(y, block_row * R + r, row_sum);
    }
}
