/* sparsegen
about = "one thread owns one row, a warp one slice of rows of like length (SELL-C-sigma, Kreutzer et al. 2014)"
op = "spmv"
format = "sell"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(slice_count * SLICE, BLOCK)"
[params]
BLOCK = 128
SLICE = 32
[tune]
SIGMA = [1, 256, 0]
BITS = [16, 32]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
spmv(SIZES, SELL_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t lane = int64_t(blockIdx.x) * BLOCK + threadIdx.x, slice = lane / SLICE;
    if (slice >= slice_count) return;
#if SIGMA == 1
    const int64_t row = lane < m ? lane : -1;
#else
    const int64_t row = rows[lane];
#endif
#if BITS == 16
    const INDEX base = bases[slice];
#else
    const INDEX base = 0;
#endif
    const INDEX length = lengths[lane];
    int64_t slot = slices[slice] + lane % SLICE;
    ACC sum = 0;
    for (INDEX j = 0; j < length; ++j, slot += SLICE) sum += VALUE_AT(slot) * ACC(x[base + indices[slot]]);
    if (row >= 0) STORE(y, row, sum);
}
