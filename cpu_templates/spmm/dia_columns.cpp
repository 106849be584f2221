/* sparsegen
about = "a vector of consecutive rows at a time, diagonal after diagonal, COLUMNS columns of B and C at once, read in order"
op = "spmm"
format = "dia"
[[launch]]
entry = "spmm"
items = "chunk_count"
[params]
CHUNK = 16
[tune]
COLUMNS = [1, 2, 4]
values = ["full", "f32"]
*/
extern "C" void spmm(SIZES, DIA_ARRAYS, const VALUE* B, VALUE* C, EPILOGUE, int64_t begin, int64_t end) {
    constexpr int64_t offsets[DIAGONALS] = OFFSETS;  // ascending
    vector doubt = {};
    for (int64_t column = 0; column < k; column += COLUMNS)
        for (int64_t row = begin * CHUNK; row < end * CHUNK; row += WIDTH) {
            const int64_t p = row / CHUNK * CHUNK * DIAGONALS + row % CHUNK;
            vector sums[COLUMNS] = {};
            if (!B_BY_ROW && row + offsets[0] >= 0 && row + offsets[DIAGONALS - 1] + WIDTH <= n) {
#pragma GCC unroll 64
                for (int64_t d = 0; d < DIAGONALS; ++d)
#pragma GCC unroll 4
                    for (int64_t c = 0; c < COLUMNS; ++c) {
                        const int64_t at = column + c < k ? column + c : column;
                        sums[c] += VALUES_AT(p + d * CHUNK) * load(B + at * ldb + row + offsets[d]);
                    }
            } else
                for (int64_t d = 0; d < DIAGONALS; ++d)
                    for (int64_t c = 0; c < COLUMNS && column + c < k; ++c) {
                        const int64_t near = row + offsets[d];
                        vector b = {};
                        for (int64_t l = 0; l < WIDTH; ++l)
                            if (near + l >= 0 && near + l < n) b[l] = B_AT(near + l, column + c);
                        sums[c] += VALUES_AT(p + d * CHUNK) * b;
                    }
            for (int64_t c = 0; c < COLUMNS && column + c < k; ++c)
                if (!C_BY_ROW && row + WIDTH <= m) STORE_LANES(C, (column + c) * ldc + row, sums[c], doubt);
                else STORE_EACH(C, C_INDEX(row + l, column + c), sums[c], m - row, doubt);
        }
    REPORT(doubt);
}
