// Threads return where no barrier follows; lanes that are gone are not waited for
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = in[i];
    for (int step = 4; step > 0; step /= 2) value += __shfl_xor_sync(__activemask(), value, step);
    out[i] = value;
}
