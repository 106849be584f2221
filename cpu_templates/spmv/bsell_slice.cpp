/* sparsegen
about = "a vector of rows of R x S blocks at a time: one index and S gathers serve R S vectors of values"
op = "spmv"
format = "bsell"
[[launch]]
entry = "spmv"
items = "slice_count"
[params]
SLICE = 8
[tune]
R = [2, 3, 4, 6]
S = [1, 2, 3, 4]
SIGMA = [1, 256]
values = ["full", "f32"]
*/
extern "C" void spmv(SIZES, BSELL_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t slice = begin; slice < end; ++slice)
        for (int64_t part = 0; part < SLICE; part += WIDTH) {
            vector sums[R] = {};
            for (int64_t b = slices[slice]; b < slices[slice + 1]; b += SLICE) {
                const int64_t p = b * (R * S) + part;
                for (int64_t s = 0; s < S; ++s) {
                    const vector near = gather(x + s, indices + b + part);
                    for (int64_t r = 0; r < R; ++r) sums[r] += VALUES_AT(p + (r * S + s) * SLICE) * near;
                }
            }
            const int64_t lane = slice * SLICE + part;
            for (int64_t r = 0; r < R; ++r)
#if SIGMA == 1
                STORE_EACH(y, (lane + l) * R + r, sums[r], block_rows - lane, doubt);
#else
                STORE_EACH(y, int64_t(rows[lane + l]) * R + r, sums[r], block_rows - lane, doubt);
#endif
        }
    REPORT(doubt);
}
