/* sparsegen
about = "one row of C after the other, TILE vectors of its columns in registers; B is fetched AHEAD numbers before it is used"
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
            vector sums[TILE] = {};
            if (past > first && HELD_BY_B(int64_t(indices[past - 1]), column + TILE * WIDTH)) {
                for (OFFSET p = first; p < past; ++p) {
                    const int64_t soon = AHEAD > 0 ? int64_t(indices[last - p > ahead ? p + ahead : last]) : 0;
#pragma GCC unroll 4
                    for (int64_t t = 0; t < TILE; ++t) {
                        if (AHEAD > 0) __builtin_prefetch(&B_AT(soon, column + t * WIDTH));
                        sums[t] += splat(VALUE_AT(p)) * ROW_OF_B(int64_t(indices[p]), column + t * WIDTH);
                    }
                }
            } else {
                for (OFFSET p = first; p < past; ++p)
#pragma GCC unroll 4
                    for (int64_t t = 0; t < TILE; ++t)
                        sums[t] += splat(VALUE_AT(p)) * END_OF_B(int64_t(indices[p]), column + t * WIDTH);
            }
#pragma GCC unroll 4
            for (int64_t t = 0; t < TILE; ++t)
                if (STREAM) STREAM_ROW(row, column + t * WIDTH, sums[t], doubt);
                else STORE_ROW(row, column + t * WIDTH, sums[t], doubt);
        }
    }
    REPORT(doubt);
}
