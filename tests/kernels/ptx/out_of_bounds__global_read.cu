// The last block reads behind the end
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float value = in[i];  // <- here
    if (i < n) out[i] = value;
    if (i >= n) out[0] = value;
}
