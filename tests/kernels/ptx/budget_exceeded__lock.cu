// A lock that lanes of one warp wait for
__device__ int lock;
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (i < n) out[i] = i;
    atomicExch(&lock, 0);
}
