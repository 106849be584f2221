/* sparsegen
about = "conditional lines, nested loops, every kind of operator"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
[tune]
STEP = [0, 1]
CHUNK = [6, 7]
*/
// conditional lines, nested loops, every kind of operator
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    int64_t row = begin;
    if (row >= end) return;
    do {
        unsigned long skipped = 0;
        ACC sum{0}, more = 0.0, none = static_cast<ACC>(0e-3);
        for (OFFSET p = indptr[row], past = indptr[row + 1]; p < past; ++p) {
#if STEP == 1 && !(CHUNK % 3)
            more = VALUE_AT(p) * ACC(x[indices[p]]);
#elif STEP >= 2 || CHUNK > 99
            more = 0;
#else
            const ACC a = VALUE_AT(p), b = (ACC)x[indices[p]];
            more = a * b;
#endif
            if (more == none) {
                skipped += sizeof(ACC) >> 1;
                continue;
            } else if (more != more) {
                sum = more;
                break;
            } else {
                sum += more;
            }
        }
        STORE(y, row, sum);
    } while (++row < end);
}
