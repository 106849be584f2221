// Atomics have bounds too
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[i], 1.0f);  // <- here
}
