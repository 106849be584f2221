// Blocks that stay take rows from a counter
__device__ int next;
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ int row;
    for (;;) {
        if (threadIdx.x == 0) row = atomicAdd(&next, 1);
        __syncthreads();
        const int mine = row;
        __syncthreads();
        if (mine >= n) return;
        if (threadIdx.x == 0) out[mine] = 2 * in[mine];
    }
}
