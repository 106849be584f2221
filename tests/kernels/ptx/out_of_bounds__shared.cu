// A window reaches over the end of shared memory
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float window[96];
    window[threadIdx.x] = i;
    __syncthreads();
    const float next = window[threadIdx.x + 5];  // <- here
    if (i < n) out[i] = next;
}
