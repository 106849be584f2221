/* sparsegen
about = "one thread owns one row; the offsets of the diagonals are literals and no column index is read (DIA, Bell and Garland 2009)"
op = "spmv"
format = "dia"
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(m, BLOCK)"
[params]
BLOCK = 256
[tune]
CHUNK = [0, 256]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, DIA_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t row = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (row >= m) return;
    const int64_t offsets[] = OFFSETS;
#if CHUNK == 0
    const int64_t first = row, stride = m;
#else
    const int64_t first = row / CHUNK * DIAGONALS * CHUNK + row % CHUNK, stride = CHUNK;
#endif
    ACC sum = 0;
#pragma unroll
    for (int d = 0; d < DIAGONALS; ++d) {
        const int64_t column = row + offsets[d];
        if (column >= 0 && column < n) sum += VALUE_AT(first + d * stride) * ACC(x[column]);
    }
    STORE(y, row, sum);
}
