// Neighbours of two bytes, read before they are written
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ unsigned short tile[96];
    tile[threadIdx.x] = i;
    const float other = tile[threadIdx.x ^ 1];  // <- here
    if (i < n) out[i] = other;
}
