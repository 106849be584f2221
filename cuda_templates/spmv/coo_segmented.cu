/* sparsegen
about = "a warp owns 32 * ITEMS entries, adds up those of a row by a segmented scan and gives each row one atomic (COO, Bell and Garland 2009)"
op = "spmv"
format = "coo"
zero = ["y"]
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(nnz, BLOCK * ITEMS)"
[params]
BLOCK = 128
[tune]
ITEMS = [1, 4, 16]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, COO_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int lane = threadIdx.x % 32;
    const int64_t first = (int64_t(blockIdx.x) * BLOCK + threadIdx.x - lane) * ITEMS;
    INDEX open_row = -1;  // of the row that the next 32 entries may go on with
    ACC open_sum = 0;
    for (int item = 0; item < ITEMS; ++item) {
        const int64_t p = first + item * 32 + lane;
        const INDEX row = p < nnz ? rows[p] : INDEX(-1);
        ACC sum = p < nnz ? VALUE_AT(p) * ACC(x[indices[p]]) : ACC(0);
        if (lane == 0 && open_row == row) sum += open_sum;
        else if (lane == 0 && open_row >= 0) ATOMIC_ADD(y, open_row, open_sum);
        for (int distance = 1; distance < 32; distance *= 2) {
            const ACC other = __shfl_up_sync(0xffffffffu, sum, distance);
            const INDEX other_row = __shfl_up_sync(0xffffffffu, row, distance);
            if (lane >= distance && other_row == row) sum += other;
        }
        const INDEX next_row = __shfl_down_sync(0xffffffffu, row, 1);
        if (lane < 31 && row >= 0 && row != next_row) ATOMIC_ADD(y, row, sum);
        open_row = __shfl_sync(0xffffffffu, row, 31);
        open_sum = __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0 && open_row >= 0) ATOMIC_ADD(y, open_row, open_sum);
}
