/* sparsegen
about = "one entry after the other, its row's sum in a register until the row ends: empty rows cost nothing"
op = "spmv"
format = "coo"
zero = ["y"]
[[launch]]
entry = "spmv"
items = "nnz"
[tune]
values = ["full", "f32", "constant"]
*/
extern "C" void spmv(SIZES, COO_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end;) {
        const INDEX row = rows[p];
        ACC sum = 0;
        do sum += VALUE_AT(p) * ACC(x[indices[p]]);
        while (++p < end && rows[p] == row);
        ADD(y, row, sum);
    }
}
