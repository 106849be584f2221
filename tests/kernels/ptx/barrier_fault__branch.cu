// A barrier that half of the threads come to
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x & 1) __syncthreads();
    if (i < n) out[i] = i;
}
