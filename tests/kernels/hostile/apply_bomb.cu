#define TWICE(x) x x
#define APPLY(f, x) f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(f(x))))))))))))))))))))))))))))
extern "C" __global__ void f(int* p) { *p = 0 APPLY(TWICE, + 1); }
