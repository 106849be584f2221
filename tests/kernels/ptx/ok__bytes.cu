// Neighbours write single bytes of one word
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned char* bytes = reinterpret_cast<unsigned char*>(out);
    if (i < n) for (int k = 0; k < 4; ++k) bytes[k * n + i] = i + k;
}
