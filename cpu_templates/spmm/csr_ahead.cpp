/* sparsegen
about = "one row of C after the other, TILE vectors of its columns in registers, two entries of A at once; B is fetched AHEAD numbers before it is used"
op = "spmm"
format = "csr"
[[launch]]
entry = "spmm"
items = "m"
[tune]
TILE = [1, 2, 4]
AHEAD = [0, 512]
STREAM = [0, 1]
TURN_B = [0, 1]
values = ["full", "f32", "constant"]
*/
extern "C" void spmm(SIZES, CSR_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    const OFFSET last = indptr[end] - 1, ahead = OFFSET(AHEAD / k + 1);
    vector doubt = {};
    for (int64_t row = begin; row < end; ++row) {
        const OFFSET first = indptr[row], past = indptr[row + 1];
        for (int64_t column = 0; column < k; column += TILE * WIDTH) {
            const bool held = past > first && HELD_BY_B(int64_t(indices[past - 1]), column + TILE * WIDTH);
            vector sums[2 * TILE] = {};
            OFFSET p = first;
            for (; held && p + 1 < past; p += 2)
#pragma GCC unroll 8
                for (int64_t i = 0; i < 2 * TILE; ++i) {
                    const int64_t q = p + i / TILE, at = column + i % TILE * WIDTH;
                    if (AHEAD > 0) __builtin_prefetch(&B_AT(int64_t(indices[last - p > ahead ? q + ahead : last]), at));
                    sums[i] += splat(VALUE_AT(q)) * ROW_OF_B(int64_t(indices[q]), at);
                }
            for (; p < past; ++p)
#pragma GCC unroll 4
                for (int64_t t = 0; t < TILE; ++t) {
                    const int64_t from = int64_t(indices[p]), at = column + t * WIDTH;
                    if (AHEAD > 0) __builtin_prefetch(&B_AT(int64_t(indices[last - p > ahead ? p + ahead : last]), at));
                    sums[t] += splat(VALUE_AT(p)) * (held ? ROW_OF_B(from, at) : END_OF_B(from, at));
                }
#pragma GCC unroll 4
            for (int64_t t = 0; t < TILE; ++t)
                if (STREAM) STREAM_ROW(row, column + t * WIDTH, sums[t] + sums[TILE + t], doubt);
                else STORE_ROW(row, column + t * WIDTH, sums[t] + sums[TILE + t], doubt);
        }
    }
    REPORT(doubt);
}
