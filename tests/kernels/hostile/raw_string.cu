__device__ const char s[] = R"x(")x";
#include "/etc/passwd"
extern "C" __global__ void f(char* p) { *p = s[0]; }
// )x"
