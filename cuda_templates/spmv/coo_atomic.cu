/* sparsegen
about = "a thread owns one entry and adds its product to y by an atomic"
op = "spmv"
format = "coo"
zero = ["y"]
[[launch]]
entry = "spmv"
block = "BLOCK"
grid = "ceil_div(nnz, BLOCK)"
[params]
BLOCK = 256
[tune]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(SIZES, COO_ARRAYS, const VALUE* __restrict__ x, VALUE* __restrict__ y, EPILOGUE) {
    const int64_t p = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (p < nnz) ATOMIC_ADD(y, rows[p], VALUE_AT(p) * ACC(x[indices[p]]));
}
