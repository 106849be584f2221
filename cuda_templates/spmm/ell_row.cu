/* sparsegen
about = "one thread owns one entry of C and skips the padding of its row of A (ELLPACK)"
op = "spmm"
format = "ell"
[[launch]]
entry = "spmm"
block = "BLOCK"
grid = "ceil_div(m * k, BLOCK)"
[tune]
BLOCK = [128, 256]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmm(SIZES, ELL_ARRAYS, const VALUE* __restrict__ B, VALUE* __restrict__ C, EPILOGUE) {
    const int64_t thread = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (thread >= m * k) return;
    const int64_t row = B_BY_ROW ? thread / k : thread % m, column = B_BY_ROW ? thread % k : thread / m;
    const INDEX length = lengths[row];
    ACC sum = 0;
    for (INDEX j = 0; j < length; ++j) {
        const int64_t slot = j * m + row;
        sum += VALUE_AT(slot) * ACC(B_AT(indices[slot], column));
    }
    STORE_C(row, column, sum);
}
