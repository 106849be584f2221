/* sparsegen
about = "one thread owns one row and skips its padding (ELLPACK, Bell and Garland 2009)"
op = "spmv"
format = "ell"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(m, BLOCK)"
[tune]
BLOCK = [128, 256]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, ELL_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t row = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (row >= m) return;
    const INDEX length = lengths[row];
    ACC sum = 0;
    for (INDEX j = 0; j < length; ++j) {
        const int64_t slot = j * m + row;
        sum += VALUE_AT(slot) * ACC(x[indices[slot]]);
    }
    STORE(y, row, sum);
}
