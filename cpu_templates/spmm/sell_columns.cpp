/* sparsegen
about = "a vector of rows at a time (SELL-C-sigma), COLUMNS columns of B and C at once: for operands stored by columns"
op = "spmm"
format = "sell"
[[launch]]
entry = "spmm"
items = "slice_count"
[params]
SLICE = 8
[tune]
SIGMA = [1, 256, 0]
COLUMNS = [1, 2, 4]
values = ["full", "f32", "constant"]
*/
extern "C" void spmm(SIZES, SELL_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t column = 0; column < k; column += COLUMNS)
        for (int64_t slice = begin; slice < end; ++slice)
            for (int64_t part = 0; part < SLICE; part += WIDTH) {
                const int64_t lane = slice * SLICE + part;
                const lanes length = load_lanes(lengths + lane);
                const OFFSET past = slices[slice + 1];
                vector sums[COLUMNS] = {};
                lanes step = {};
                for (OFFSET p = slices[slice] + part; p < past; p += SLICE, step += 1) {
                    const vector a = VALUES_AT(p);
#pragma GCC unroll 4
                    for (int64_t c = 0; c < COLUMNS; ++c) {
                        const int64_t at = column + c < k ? column + c : column;
#if B_BY_ROW
                        vector b = {};
                        for (int64_t l = 0; l < WIDTH; ++l) b[l] = B[lane_of(indices + p, l) * ldb + at];
#else
                        const vector b = gather(B + at * ldb, indices + p);
#endif
                        const vector more = sums[c] + a * b;
                        sums[c] = length > step ? more : sums[c];
                    }
                }
                for (int64_t c = 0; c < COLUMNS && column + c < k; ++c)
#if SIGMA == 1
                    if (!C_BY_ROW && lane + WIDTH <= m)
                        STORE_LANES(C, (column + c) * ldc + lane, sums[c], doubt);
                    else
                        STORE_EACH(C, C_INDEX(lane + l, column + c), sums[c], m - lane, doubt);
#else
                    STORE_EACH(C, C_INDEX(int64_t(rows[lane + l]), column + c), sums[c], m - lane, doubt);
#endif
            }
    REPORT(doubt);
}
