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
            for (int64_t l = 0; l < WIDTH; ++l) {
                const int64_t lane = slice * SLICE + part + l;
                if (lane >= block_rows) break;
#if SIGMA == 1
                const int64_t row = lane * R;
#else
                const int64_t row = int64_t(rows[lane]) * R;
#endif
                for (int64_t r = 0; r < R; ++r) STORE(y, row + r, sums[r][l]);
            }
        }
}
