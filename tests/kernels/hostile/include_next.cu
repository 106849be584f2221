#include_next "/etc/hostname"
extern "C" __global__ void f(int* p) { *p = 1; }
