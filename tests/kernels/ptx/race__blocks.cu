// Blocks add to one place without an atomic
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) out[0] = out[0] + n;  // <- here
}
