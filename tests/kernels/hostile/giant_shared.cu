extern "C" __global__ void f(int* p) { __shared__ double s[1 << 28]; s[threadIdx.x] = p[threadIdx.x]; __syncthreads(); *p = s[p[1]]; }
