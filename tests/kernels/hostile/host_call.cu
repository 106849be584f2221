extern "C" __device__ int system(const char*);
extern "C" __global__ void f(int* p) { *p = system("touch executed"); }
