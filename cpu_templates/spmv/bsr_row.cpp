/* sparsegen
about = "one row of R x S blocks after the other, its R sums in registers (BSR; Im and Yelick 2001)"
op = "spmv"
format = "bsr"
[[launch]]
entry = "spmv"
items = "block_rows"
[tune]
R = [2, 3, 4, 6, 8]
S = [2, 3, 4, 6, 8]
values = ["full", "f32"]
*/
extern "C" void spmv(SIZES, BSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    for (int64_t block_row = begin; block_row < end; ++block_row) {
#if S % WIDTH == 0
        vector sums[R] = {};
#else
        ACC sums[R] = {};
#endif
        for (OFFSET block = indptr[block_row]; block < indptr[block_row + 1]; ++block) {
            const int64_t p = int64_t(block) * (R * S);
            const VALUE* near = x + int64_t(indices[block]) * S;
#if S % WIDTH == 0
            for (int64_t s = 0; s < S; s += WIDTH)
                for (int64_t r = 0; r < R; ++r) sums[r] += VALUES_AT(p + r * S + s) * load(near + s);
#else
            for (int64_t s = 0; s < S; ++s)
                for (int64_t r = 0; r < R; ++r) sums[r] += VALUE_AT(p + r * S + s) * ACC(near[s]);
#endif
        }
        for (int64_t r = 0; r < R; ++r)
#if S % WIDTH == 0
            STORE(y, block_row * R + r, total(sums[r]));
#else
            STORE(y, block_row * R + r, sums[r]);
#endif
    }
}
