/* sparsegen
about = "a vector of consecutive rows at a time, diagonal after diagonal: x is read in order, without indices"
op = "spmv"
format = "dia"
[[launch]]
entry = "spmv"
items = "chunk_count"
[tune]
CHUNK = [16, 64]
values = ["full", "f32"]
*/
extern "C" void spmv(SIZES, DIA_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    constexpr int64_t offsets[DIAGONALS] = OFFSETS;  // ascending
    vector doubt = {};
    for (int64_t chunk = begin; chunk < end; ++chunk)
        for (int64_t part = 0; part < CHUNK; part += WIDTH) {
            const int64_t row = chunk * CHUNK + part;
            const int64_t p = chunk * CHUNK * DIAGONALS + part;
            vector sum = {};
            if (row + offsets[0] >= 0 && row + offsets[DIAGONALS - 1] + WIDTH <= n) {
#pragma GCC unroll 64
                for (int64_t d = 0; d < DIAGONALS; ++d)
                    sum += VALUES_AT(p + d * CHUNK) * load(x + row + offsets[d]);
            } else
                for (int64_t d = 0; d < DIAGONALS; ++d) {
                    const int64_t column = row + offsets[d];
                    if (column >= 0 && column + WIDTH <= n)
                        sum += VALUES_AT(p + d * CHUNK) * load(x + column);
                    else if (column > -WIDTH && column < n) {
                        vector near = {};
                        for (int64_t l = 0; l < WIDTH; ++l)
                            if (column + l >= 0 && column + l < n) near[l] = x[column + l];
                        sum += VALUES_AT(p + d * CHUNK) * near;
                    }
                }
            if (row + WIDTH <= m)
                STORE_LANES(y, row, sum, doubt);
            else
                STORE_EACH(y, row + l, sum, m - row, doubt);
        }
    REPORT(doubt);
}
