// Half of a tile is never filled
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float tile[96];
    if (threadIdx.x < 48) tile[threadIdx.x] = i;
    __syncthreads();
    if (i < n) out[i] = tile[95 - threadIdx.x];  // <- here
}
