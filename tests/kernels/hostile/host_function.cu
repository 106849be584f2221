__host__ int g() { return 1; }
extern "C" __global__ void f(int* p) { *p = 1; }
