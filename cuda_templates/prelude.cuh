/* What every CUDA kernel may use; nothing else is included. Macros set before this text: VALUE (x and y), STORED (A's
   values as stored), ACC (the accumulator), INDEX, OFFSET, CONSTANT_VALUES and CHECK_FINITE (0 or 1), the parameters,
   the format's baked literals, and SCRATCH_ARRAYS (the header's scratch buffers, or nothing). */
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define EPILOGUE SCRATCH_ARRAYS ACC alpha, ACC beta, uint32_t* status

/* The stored value in slot p. One constant for all entries is multiplied once, by STORE. */
#if CONSTANT_VALUES
#define VALUE_AT(p) ((void)(p), ACC(1))
#define SCALED(sum) ((sum) * ACC(data[0]))
#else
#define VALUE_AT(p) ACC(data[p])
#define SCALED(sum) (sum)
#endif

/* Padding multiplied as zero turns an infinite x into a NaN that A @ x does not have: then the host computes again. */
#if CHECK_FINITE
#define CHECKED(sum) do { if (!((sum) - (sum) == ACC(0))) *status = 1; } while (0)
#else
#define CHECKED(sum) do { } while (0)
#endif

/* y[row] = alpha sum + beta y[row]; with beta = 0, y is not read. */
#define STORE(y, row, sum) do { \
    const ACC sum_ = SCALED(sum); \
    CHECKED(sum_); \
    (y)[row] = VALUE(beta == ACC(0) ? alpha * sum_ : alpha * sum_ + beta * ACC((y)[row])); \
} while (0)
/* y[row] += alpha sum by one owner, and by many; for kernels that list y under `zero`. */
#define ADD(y, row, sum) do { \
    const ACC sum_ = SCALED(sum); \
    CHECKED(sum_); \
    (y)[row] = VALUE(ACC((y)[row]) + alpha * sum_); \
} while (0)
#define ATOMIC_ADD(y, row, sum) do { \
    const ACC sum_ = SCALED(sum); \
    CHECKED(sum_); \
    atomicAdd(&(y)[row], VALUE(alpha * sum_)); \
} while (0)

/* Dense operands of SpMM: element (row, column) of B and C, in either layout. */
#define B_AT(row, column) B[B_BY_ROW ? (row) * ldb + (column) : (column) * ldb + (row)]
#define C_INDEX(row, column) (C_BY_ROW ? (row) * ldc + (column) : (column) * ldc + (row))
#define STORE_C(row, column, sum) STORE(C, C_INDEX(row, column), sum)
#define ADD_C(row, column, sum) ADD(C, C_INDEX(row, column), sum)
#define ATOMIC_ADD_C(row, column, sum) ATOMIC_ADD(C, C_INDEX(row, column), sum)
