// A flag without a fence orders nothing
__device__ int flag;
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        out[1] = 1.0f;
        atomicAdd(&flag, 1);
    }
    if (threadIdx.x == 0 && blockIdx.x == 1 && atomicAdd(&flag, 0) == 1) out[2] = out[1];  // <- here
}
