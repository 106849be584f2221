#define T(x) x + x
extern "C" __global__ void f(int* p) { *p = T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(T(1))))))))))))))))))))))))))); }
