// More dynamic shared memory is used than was asked for
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    extern __shared__ float window[];
    window[2 * threadIdx.x] = i;  // <- here
    __syncthreads();
    if (i < n) out[i] = window[2 * threadIdx.x];
}
