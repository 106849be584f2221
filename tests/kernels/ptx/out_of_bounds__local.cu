// A local array is indexed by data
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float own[8];
    for (int k = 0; k < 8; ++k) own[k] = i * in[k];
    if (i < n) out[i] = own[in[i]];  // <- here
}
