/* sparsegen
about = "WAYS partial sums in a local array"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
[tune]
WAYS = [2, 4, 8]
values = ["full", "f32", "constant"]
*/
// WAYS partial sums in a local array
extern "C" void spmv(SIZES, CSR_ARRAYS, const VALUE* x, VALUE* y, EPILOGUE, int64_t begin, int64_t end) {
    constexpr int ways = WAYS;
    for (int64_t row = begin; row < end; ++row) {
        alignas(64) ACC sums[ways] = {};
        OFFSET p = indptr[row];
        const OFFSET past = indptr[row + 1];
        for (; p + ways <= past; p += ways) {
#pragma GCC unroll 8
            for (int way = 0; way < ways; ++way) sums[way] += VALUE_AT(p + way) * ACC(x[indices[p + way]]);
        }
        ACC sum = 0;
        for (int way = 0; way < ways; ++way) sum += sums[way];
        while (p < past) {
            sum += VALUE_AT(p) * ACC(x[indices[p]]);
            ++p;
        }
        STORE(y, row, sum);
    }
}
