#define FILE "/etc/passwd"
#include FILE
extern "C" __global__ void f(int* p) { *p = 1; }
