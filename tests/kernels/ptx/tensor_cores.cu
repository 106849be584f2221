// Block-sparse times dense on tensor cores: 16 x 16 blocks of half precision, staged by asynchronous copies
#include <cuda_fp16.h>
extern "C" __global__ void spmm(int block_rows, const int* __restrict__ indptr, const int* __restrict__ indices,
                                const __half* __restrict__ data, const __half* __restrict__ B, float* __restrict__ C) {
    __shared__ __align__(16) __half tile[2][256];
    const int row = blockIdx.x, lane = threadIdx.x, group = lane / 4, within = lane % 4;
    const int begin = indptr[row], end = indptr[row + 1];
    float c[4] = {0, 0, 0, 0};
    for (int p = begin; p < end; ++p) {
        __half* to = tile[p & 1];
        const unsigned at = (unsigned)__cvta_generic_to_shared(to + 8 * lane);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(at), "l"(data + 256LL * p + 8 * lane));
        asm volatile("cp.async.commit_group;\n");
        asm volatile("cp.async.wait_group 0;\n");
        __syncwarp();
        unsigned a[4], b[2];
        const unsigned from = (unsigned)__cvta_generic_to_shared(to + 16 * (lane % 16) + 8 * (lane / 16));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from));
        const __half* column = B + 16LL * indices[p] * 8 + group;
        for (int k = 0; k < 2; ++k) {
            const __half2 pair = __halves2half2(column[8 * (2 * within + 8 * k)], column[8 * (2 * within + 8 * k + 1)]);
            b[k] = *reinterpret_cast<const unsigned*>(&pair);
        }
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        __syncwarp();
    }
    for (int k = 0; k < 4; ++k) C[(16LL * row + group + 8 * (k / 2)) * 8 + 2 * within + k % 2] = c[k];
}
