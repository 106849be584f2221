/* sparsegen
about = "csr rows"
op = "spmv"
format = "csr"
[[launch]]
entry = "spmv"
items = "m"
*/
// the entry stands in a comment
/* extern "C" void spmv(SIZES) */
inline void other(int64_t a) { }
