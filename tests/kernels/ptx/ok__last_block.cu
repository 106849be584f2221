// The block that comes last adds what all have released
__device__ unsigned done;
extern "C" __global__ void f(int n, const int* __restrict__ in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ int turn;
    if (threadIdx.x == 0) {
        out[1 + blockIdx.x] = 1 + blockIdx.x;
        __threadfence();
        turn = atomicAdd(&done, 1);
    }
    __syncthreads();
    if (turn == gridDim.x - 1 && threadIdx.x == 0) {
        __threadfence();
        float sum = 0;
        for (int k = 1; k <= gridDim.x; ++k) sum += out[k];
        out[0] = sum;
    }
}
