#ifdef __has_include_next
#if __has_include_next("/etc/shadow")
#define THERE 1
#endif
#endif
extern "C" __global__ void f(int* p) { *p = 1; }
