/* sparsegen
about = "one thread owns one entry of C; neighbours share the row of A where B lies by rows, the column of B where by columns"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
block = "BLOCK"
grid = "ceil_div(m * k, BLOCK)"
[tune]
BLOCK = [128, 256]
values = ["full", "f32", "constant"]
*/
extern "C" __global__ void __launch_bounds__(BLOCK)
spmm(SIZES, CSR_ARRAYS, const VALUE* __restrict__ B, VALUE* __restrict__ C, EPILOGUE) {
    const int64_t thread = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (thread >= m * k) return;
    const int64_t row = B_BY_ROW ? thread / k : thread % m, column = B_BY_ROW ? thread % k : thread / m;
    const OFFSET end = indptr[row + 1];
    ACC sum = 0;
    for (OFFSET p = indptr[row]; p < end; ++p) sum += VALUE_AT(p) * ACC(B_AT(indices[p], column));
    STORE_C(row, column, sum);
}
