__device__ const char* name() { return __FILE__; }
extern "C" __global__ void f(const char** p) { *p = name(); }
