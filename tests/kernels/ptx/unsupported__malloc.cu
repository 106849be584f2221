// Memory is asked for
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float* own = static_cast<float*>(malloc(4 * n));  // <- here
    own[i] = i;
    if (i < n) out[i] = own[i];
}
