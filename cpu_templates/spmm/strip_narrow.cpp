/* sparsegen
about = "strips of R rows, their columns united: a row of B serves R rows of A, one vector of at most NARROW numbers: for few columns"
op = "spmm"
format = "strip"
[[launch]]
entry = "spmm"
items = "strips"
[tune]
R = [2, 3, 4, 6]
NARROW = [4, 8]
TURN_B = [0, 1]
values = ["full", "f32"]
*/
extern "C" void spmm(SIZES, STRIP_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    vector doubt = {};
    for (int64_t strip = begin; strip < end; ++strip) {
        const OFFSET first = indptr[strip], past = indptr[strip + 1];
        for (int64_t column = 0; column < k; column += WIDTH) {
            const bool held = past > first && HELD_BY_B(int64_t(indices[past - 1]), column + WIDTH);
            vector sums[R] = {};
            for (OFFSET p = first; p < past; ++p) {
                const int64_t from = int64_t(indices[p]);
                const vector b = held ? ROW_OF_B(from, column) : END_OF_B(from, column);
#pragma GCC unroll 6
                for (int64_t r = 0; r < R; ++r) sums[r] += splat(VALUE_AT(int64_t(p) * R + r)) * b;
            }
#pragma GCC unroll 6
            for (int64_t r = 0; r < R; ++r)
                if (strip * R + r < m) STORE_ROW(strip * R + r, column, sums[r], doubt);
        }
    }
    REPORT(doubt);
}
