// An address made of a number
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) *reinterpret_cast<float*>(static_cast<size_t>(in[i]) * 4) = 1.0f;  // <- here
}
