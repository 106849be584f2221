// The input is written
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) const_cast<int*>(in)[i] = 0;  // <- here
    if (i < n) out[i] = 0.0f;
}
