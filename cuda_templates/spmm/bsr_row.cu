/* sparsegen
about = "one thread owns R entries of a column of C, those of one row of blocks, so that an entry of B serves R rows"
op = "spmm"
format = "bsr"
[[launch]]
entry = "spmm"
block = "BLOCK"
grid = "ceil_div(block_rows * k, BLOCK)"
[params]
BLOCK = 128
[tune]
R = [2, 3, 4]
S = [2, 3, 4]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmm(SIZES, BSR_ARRAYS, const VALUE* __restrict__ B, VALUE* __restrict__ C, EPILOGUE) {
    const int64_t thread = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (thread >= block_rows * k) return;
    const int64_t block_row = B_BY_ROW ? thread / k : thread % block_rows;
    const int64_t column = B_BY_ROW ? thread % k : thread / block_rows;
    const OFFSET end = indptr[block_row + 1];
    ACC sums[R] = {};
    for (OFFSET block = indptr[block_row]; block < end; ++block) {
        const int64_t first = int64_t(indices[block]) * S, slot = int64_t(block) * (R * S);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            const ACC b = ACC(B_AT(first + s, column));
#pragma unroll
            for (int r = 0; r < R; ++r) sums[r] += VALUE_AT(slot + r * S + s) * b;
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) STORE_C(block_row * R + r, column, sums[r]);
}
