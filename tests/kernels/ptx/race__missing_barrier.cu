// Neighbours are read without a barrier
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float tile[96];
    tile[threadIdx.x] = i;
    const float other = tile[95 - threadIdx.x];  // <- here
    if (i < n) out[i] = other;
}
