// Two halves of a block wait at two barriers
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 64) __syncthreads();
    else {
        if (i < n) out[i] = 1.0f;
        __syncthreads();
    }
    if (i < n) out[i] = in[i];
}
