// Lanes of a warp do not wait for each other by themselves
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    __shared__ float tile[96];
    tile[threadIdx.x] = i;
    const float other = tile[threadIdx.x ^ 1];  // <- here
    if (i < n) out[i] = other + lane;
}
