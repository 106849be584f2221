// A tile is filled again while others may still read it
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float tile[96];
    float sum = 0;
    for (int k = 0; k < 3; ++k) {
        tile[threadIdx.x] = i + k;  // <- here
        __syncthreads();
        sum += tile[95 - threadIdx.x];
    }
    if (i < n) out[i] = sum;
}
