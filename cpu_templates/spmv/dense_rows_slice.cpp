/* sparsegen
about = "a vector of rows at a time (SELL-C-sigma), then the few dense rows one after the other, a vector along each"
op = "spmv"
[tune]
values = ["full", "f32", "constant"]
[params]
SLICE = 8
[[part]]
select = "rest"
format = "sell"
params = { SIGMA = 256 }
[[part.launch]]
entry = "rest"
items = "slice_count"
[[part]]
select = "dense_rows"
format = "dcsr"
[[part.launch]]
entry = "dense"
items = "stored_rows"
*/
extern "C" void rest(SIZES, SELL_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t slice = begin; slice < end; ++slice) {
        const OFFSET first = slices[slice], past = slices[slice + 1];
        for (int64_t part = 0; part < SLICE; part += WIDTH) {
            const int64_t lane = slice * SLICE + part;
            const lanes length = load_lanes(lengths + lane);
            vector sum = {};
            lanes step = {};
            for (OFFSET p = first + part; p < past; p += SLICE, step += 1) {
                const vector more = sum + VALUES_AT(p) * gather(x, indices + p);
                sum = length > step ? more : sum;
            }
            STORE_EACH(y, rows[lane + l], sum, m - lane, doubt);
        }
    }
    REPORT(doubt);
}

extern "C" void dense(SIZES, DCSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        OFFSET p = indptr[i];
        const OFFSET past = indptr[i + 1];
        vector even = {}, odd = {};
        for (; p + 2 * WIDTH <= past; p += 2 * WIDTH) {
            even += VALUES_AT(p) * gather(x, indices + p);
            odd += VALUES_AT(p + WIDTH) * gather(x, indices + p + WIDTH);
        }
        ACC sum = total(even + odd);
        for (; p < past; ++p) sum += VALUE_AT(p) * ACC(x[indices[p]]);
        STORE(y, rows[i], sum);
    }
}
