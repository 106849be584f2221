/* sparsegen
about = "baked offsets in a local array"
op = "spmv"
format = "dia"
[[launch]]
entry = "spmv"
items = "chunk_count"
*/
// baked offsets in a local array
extern "C" void spmv(SIZES, DIA_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    constexpr int64_t offsets[DIAGONALS] = OFFSETS;
    for (int64_t block = begin; block < end; ++block)
        for (int64_t i = 0; i < chunk && block * chunk + i < m; ++i) {
            const int64_t row = block * chunk + i;
            ACC sum = 0;
            for (int64_t d = 0; d < DIAGONALS; ++d) {
                const int64_t column = row + offsets[d];
                if (column >= 0 && column < n) sum += VALUE_AT((block * DIAGONALS + d) * chunk + i) * ACC(x[column]);
            }
            STORE(y, row, sum);
        }
}
