// A lane that its own mask leaves out
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    float value = i;
    value += __shfl_down_sync(0x0000ffffu, value, 1);  // <- here
    if (i < n) out[i] = value;
}
