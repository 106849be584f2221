/* sparsegen
about = "a vector walks along one row after the other and is summed at its end (CSR-vector, Bell and Garland 2009)"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
[tune]
values = ["full", "f32", "constant"]
*/
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        OFFSET p = indptr[row];
        const OFFSET past = indptr[row + 1];
        ACC rest = 0;
        if (past - p >= WIDTH) {
            vector sum = {};
            for (; p + WIDTH <= past; p += WIDTH) sum += VALUES_AT(p) * gather(x, indices + p);
            if (p < past) {  // the last WIDTH entries again, those already summed masked
                const vector again = VALUES_AT(past - WIDTH) * gather(x, indices + past - WIDTH);
                sum += first_lanes(WIDTH - (past - p)) ? splat(0) : again;
            }
            rest = total(sum);
        } else
            for (; p < past; ++p) rest += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, row, rest);
    }
}
