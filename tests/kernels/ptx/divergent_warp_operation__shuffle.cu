// One half of a warp shuffles while the other waits
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    float value = i;
    if (lane < 16) value += __shfl_xor_sync(0xffffffffu, value, 1);
    else __syncwarp();
    if (i < n) out[i] = value;
}
