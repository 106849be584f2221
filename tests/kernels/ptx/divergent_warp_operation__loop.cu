// A warp barrier in a loop that lanes leave one by one
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float tile[96];
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += 32) {
        tile[threadIdx.x] = in[k];
        __syncwarp();  // <- here
        sum += tile[threadIdx.x];
    }
    if (i < n) out[i] = sum;
}
