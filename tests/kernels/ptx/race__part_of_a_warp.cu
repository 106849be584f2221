// A warp barrier of eight lanes orders no others
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    __shared__ float tile[96];
    tile[threadIdx.x] = i;
    __syncwarp(0xffu << (lane & 24));
    const float other = tile[threadIdx.x ^ 8];  // <- here
    if (i < n) out[i] = other;
}
