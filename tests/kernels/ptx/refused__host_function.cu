// A function of the host
extern "C" char* getenv(const char*);
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = getenv("HOME") != 0;
}
