namespace kept { __device__ int calls; }
extern "C" __global__ void f(int* p) { *p = ++kept::calls; }
