// Both sides of a branch meet at warp barriers of their own
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    __shared__ float tile[96];
    tile[threadIdx.x] = i;
    if (lane < 16) {
        if (i < n) out[i] = 1.0f;
        __syncwarp();
    } else
        __syncwarp();
    if (i < n) out[i] = tile[threadIdx.x ^ 16];
}
