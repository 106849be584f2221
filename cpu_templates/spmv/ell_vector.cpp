/* sparsegen
about = "a vector of consecutive rows at a time, all as long as the longest (ELLPACK, Grimes et al. 1979)"
op = "spmv"
format = "ell"
[[launch]]
entry = "spmv"
items = "m"
[tune]
values = ["full", "f32", "constant"]
*/
extern "C" void spmv(SIZES, ELL_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    int64_t row = begin;
    for (; row + WIDTH <= end; row += WIDTH) {
        const lanes length = load_lanes(lengths + row);
        vector sum = {};
        lanes step = {};
        for (int64_t j = 0; j < width && ANY(length > step); ++j, step += 1) {
            const int64_t p = j * m + row;
            const vector more = sum + VALUES_AT(p) * gather(x, indices + p);
            sum = length > step ? more : sum;
        }
        STORE_LANES(y, row, sum, doubt);
    }
    REPORT(doubt);
    for (; row < end; ++row) {
        ACC sum = 0;
        for (int64_t j = 0; j < lengths[row]; ++j) sum += VALUE_AT(j * m + row) * ACC(x[indices[j * m + row]]);
        STORE(y, row, sum);
    }
}
