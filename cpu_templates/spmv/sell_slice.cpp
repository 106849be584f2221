/* sparsegen
about = "a vector of rows at a time: lane l of a slice is a row (SELL-C-sigma, Kreutzer et al. 2014)"
op = "spmv"
format = "sell"
[[launch]]
entry = "spmv"
items = "slice_count"
[tune]
SLICE = [8, 16]
SIGMA = [1, 256, 0]
BITS = [16, 32]
values = ["full", "f32", "constant"]
*/
extern "C" void spmv(SIZES, SELL_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t slice = begin; slice < end; ++slice) {
#if BITS == 16
        const VALUE* near = x + bases[slice];
#else
        const VALUE* near = x;
#endif
        const OFFSET first = slices[slice], past = slices[slice + 1];
        for (int64_t part = 0; part < SLICE; part += WIDTH) {
            const int64_t lane = slice * SLICE + part;
            const lanes length = load_lanes(lengths + lane);
            vector sum = {};
            lanes step = {};
            for (OFFSET p = first + part; p < past; p += SLICE, step += 1) {
                const vector more = sum + VALUES_AT(p) * gather(near, indices + p);
                sum = length > step ? more : sum;
            }
#if SIGMA == 1
            if (lane + WIDTH <= m)
                STORE_LANES(y, lane, sum, doubt);
            else
                STORE_EACH(y, lane + l, sum, m - lane, doubt);
#else
            STORE_EACH(y, rows[lane + l], sum, m - lane, doubt);
#endif
        }
    }
    REPORT(doubt);
}
