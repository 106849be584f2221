// A loop without an end
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = i; k >= 0; k += in[0] - in[0]) out[0] = 1.0f;
}
