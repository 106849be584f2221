// A sum by atomics is read without a barrier
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1.0f);
    const float all = sum;  // <- here
    if (i < n) out[i] = all;
}
