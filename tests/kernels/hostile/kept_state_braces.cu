__device__ int (calls){0};
extern "C" __global__ void f(int* p) { *p = ++calls; }
