/* What every C++ kernel may use; nothing is included. Macros set before this text: VALUE (x and y), STORED (A's values
   as stored), ACC (the accumulator), INDEX, OFFSET, LANES (of one hardware vector of ACC), CONSTANT_VALUES and
   CHECK_FINITE (0 or 1), the parameters, and the format's baked literals. */
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

#define EPILOGUE ACC alpha, ACC beta, uint32_t* status

/* The stored value in slot p. One constant for all entries is multiplied once, by STORE. */
#if CONSTANT_VALUES
#define VALUE_AT(p) ACC(1)
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
/* y[row] += alpha sum, for kernels that list y under `zero`. */
#define ADD(y, row, sum) do { \
    const ACC sum_ = SCALED(sum); \
    CHECKED(sum_); \
    (y)[row] = VALUE(ACC((y)[row]) + alpha * sum_); \
} while (0)

/* Dense operands of SpMM: element (row, column) of B and C, in either layout. */
#define B_AT(row, column) B[B_BY_ROW ? (row) * ldb + (column) : (column) * ldb + (row)]
#define C_INDEX(row, column) (C_BY_ROW ? (row) * ldc + (column) : (column) * ldc + (row))
#define STORE_C(row, column, sum) STORE(C, C_INDEX(row, column), sum)
#define ADD_C(row, column, sum) ADD(C, C_INDEX(row, column), sum)

/* Vectors of WIDTH sums: the LANES of the machine, or fewer where a slice has fewer rows or a kernel asks for NARROW
   ones. `lanes` holds one integer of the same size per lane: what comparing two vectors gives, all bits set for true.
   mask ? a : b chooses by lane. */
#if defined(SLICE) && SLICE < LANES
#define WIDTH SLICE
#elif defined(NARROW) && NARROW > 0 && NARROW < LANES
#define WIDTH NARROW
#else
#define WIDTH LANES
#endif
#define INLINE static inline __attribute__((always_inline))
typedef ACC vector __attribute__((vector_size(WIDTH * sizeof(ACC))));
typedef decltype(vector{} < vector{}) lanes;
template <class T> struct packed {  // WIDTH of T, in registers and at any address
    typedef T whole __attribute__((vector_size(WIDTH * sizeof(T))));
    typedef long long longs __attribute__((vector_size(WIDTH * sizeof(T))));
    typedef int ints __attribute__((vector_size(WIDTH * sizeof(T))));
    typedef T type __attribute__((vector_size(WIDTH * sizeof(T)), aligned(sizeof(T)), may_alias));
};

/* a in every lane. Nothing is left of taking 0 away; adding it would turn -0 into 0, in an instruction of its own. */
INLINE vector splat(ACC a) { return a - vector{}; }
/* lane_numbers()[l] = l */
INLINE lanes lane_numbers() {
    lanes number;
    for (int l = 0; l < WIDTH; ++l) number[l] = l;
    return number;
}
/* True in the first `count` lanes. */
INLINE lanes first_lanes(int64_t count) { return lane_numbers() < decltype(lanes{}[0] + 0)(count); }
/* The WIDTH elements at p, of any type, as sums or as integers. */
template <class T> INLINE vector load(const T* p) {
    return __builtin_convertvector(*(const typename packed<T>::type*)p, vector);
}
template <class T> INLINE lanes load_lanes(const T* p) {
    return __builtin_convertvector(*(const typename packed<T>::type*)p, lanes);
}
/* The first `count` of them (all, where it is more), 0 in the other lanes, which are not read. */
template <class T> INLINE vector load_first(const T* p, int64_t count) {
    if (count >= WIDTH) return load(p);
#if defined(__AVX512F__) && !defined(__clang__)
    typedef double eight __attribute__((vector_size(64)));
    typedef float sixteen __attribute__((vector_size(64)));
    const unsigned mask = count > 0 ? (1u << count) - 1 : 0;
    if constexpr (sizeof(T) == 8 && WIDTH == 8) return __builtin_ia32_loadupd512_mask(p, eight{}, mask);
    if constexpr (sizeof(T) == 4 && WIDTH == 16) return __builtin_ia32_loadups512_mask(p, sixteen{}, mask);
#endif
#if defined(__AVX__) && !defined(__clang__)
    const lanes those = first_lanes(count);
    const auto from = (const typename packed<T>::whole*)p;
    if constexpr (sizeof(T) == 8 && WIDTH == 4) return __builtin_ia32_maskloadpd256(from, (typename packed<T>::longs)those);
    if constexpr (sizeof(T) == 4 && WIDTH == 8) return __builtin_ia32_maskloadps256(from, (typename packed<T>::ints)those);
    if constexpr (sizeof(T) == 4 && WIDTH == 4) return __builtin_ia32_maskloadps(from, (typename packed<T>::ints)those);
#endif
    vector a = {};
    for (int64_t l = 0; l < WIDTH; ++l)
        if (l < count) a[l] = p[l];
    return a;
}
INLINE void store(VALUE* p, vector a) { *(typename packed<VALUE>::type*)p = a; }
template <int HALF, class V> INLINE void store_halves(VALUE* p, V a, int64_t count) {
    typedef VALUE some __attribute__((vector_size(HALF * sizeof(VALUE)), aligned(sizeof(VALUE)), may_alias));
    if (count & HALF) {
        union { V whole; VALUE each[WIDTH]; some low; } split = {a};
        *(some*)p = split.low;
        p += HALF;
#ifdef __clang__
        for (int l = 0; l < HALF; ++l) a[l] = a[l + HALF];
#else
        a = __builtin_shuffle(a, lane_numbers() ^ HALF);
#endif
    }
    if constexpr (HALF > 1) store_halves<HALF / 2>(p, a, count);
}
/* The first `count` lanes, fewer than WIDTH, to p, by halves; memory behind them is not written. */
INLINE void store_first(VALUE* p, vector a, int64_t count) { store_halves<WIDTH / 2>(p, a, count); }
/* As `store`, but past the caches where the address allows it, for what does not fit in them: lines that a store would
   have to read first are written only. Fences are the door's. */
template <class V> INLINE void stream(VALUE* p, V a) {
#if defined(__SSE2__) && !defined(__clang__)
    const uint64_t at = uint64_t(p);
#if defined(__AVX512F__)
    typedef long long eight __attribute__((vector_size(64), may_alias));
    if constexpr (sizeof(V) == 64)
        if (at % 64 == 0) return __builtin_ia32_movntdq512((eight*)p, (eight)a);
#endif
#if defined(__AVX__)
    typedef long long four __attribute__((vector_size(32), may_alias));
    if constexpr (sizeof(V) == 32)
        if (at % 32 == 0) return __builtin_ia32_movntdq256((four*)p, (four)a);
#endif
    typedef long long two __attribute__((vector_size(16), may_alias));
    if (at % 16 == 0) {
        union { V whole; two parts[sizeof(V) / 16]; } split = {a};
#pragma GCC unroll 4
        for (uint64_t i = 0; i < sizeof(V) / 16; ++i) __builtin_ia32_movntdq((two*)p + i, split.parts[i]);
        return;
    }
#endif
    store(p, a);
}
/* Lane l of the integers at p. Loads and instructions that gather are what such a kernel waits for, so that eight bytes
   are read at once and split. */
template <class T> INLINE int64_t lane_of(const T* p, int l) {
#if WIDTH > 2 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    typedef uint64_t word __attribute__((aligned(1), may_alias));
    const int many = 8 / sizeof(T);
    return T(((const word*)p)[l / many] >> l % many * 8 * (sizeof(T) % 8));
#else
    return p[l];
#endif
}
/* x[index[l]] in lane l. */
template <class T> INLINE vector gather(const VALUE* x, const T* index) {
#define FROM(l) x[lane_of(index, l)]
#if WIDTH == 2
    return vector{FROM(0), FROM(1)};
#elif WIDTH == 4
    return vector{FROM(0), FROM(1), FROM(2), FROM(3)};
#elif WIDTH == 8
    return vector{FROM(0), FROM(1), FROM(2), FROM(3), FROM(4), FROM(5), FROM(6), FROM(7)};
#elif WIDTH == 16
    return vector{FROM(0), FROM(1), FROM(2),  FROM(3),  FROM(4),  FROM(5),  FROM(6),  FROM(7),
                  FROM(8), FROM(9), FROM(10), FROM(11), FROM(12), FROM(13), FROM(14), FROM(15)};
#endif
}
/* p[l * step] in lane l, for the first `count` lanes; 0 in the others. */
INLINE vector gather_every(const VALUE* p, int64_t step, int64_t count) {
    vector a = {};
    for (int64_t l = 0; l < WIDTH; ++l)
        if (l < count) a[l] = p[l * step];
    return a;
}
/* The sum of all lanes, by halves. */
INLINE ACC total(vector a) {
    for (int half = WIDTH / 2; half > 0; half /= 2) {
#ifdef __clang__
        for (int l = 0; l < half; ++l) a[l] += a[l + half];
#else
        a += __builtin_shuffle(a, lane_numbers() ^ half);
#endif
    }
    return a[0];
}
#if CONSTANT_VALUES
#define VALUES_AT(p) splat(1)
#else
#define VALUES_AT(p) load(data + (p))
#endif
#define ANY(mask) (total((mask) ? splat(1) : splat(0)) > 0)

/* Vectors of sums are checked together: each leaves a NaN in `doubt`, a vector of zeros at first, where it is not
   finite, and REPORT(doubt) reads it once, at the kernel's end. */
#if CHECK_FINITE
#define CHECKED_LANES(sum, doubt) (doubt) += (sum) - (sum)
#define REPORT(doubt) do { if (ANY((doubt) != splat(0))) *status = 1; } while (0)
#else
#define CHECKED_LANES(sum, doubt) do { } while (0)
#define REPORT(doubt) do { } while (0)
#endif
/* STORE for WIDTH consecutive rows from `row`. */
#define STORE_LANES(y, row, sum, doubt) do { \
    const vector sum_ = SCALED(sum); \
    CHECKED_LANES(sum_, doubt); \
    store((y) + (row), beta == ACC(0) ? alpha * sum_ : alpha * sum_ + beta * load((y) + (row))); \
} while (0)
/* STORE for the first `count` of them, fewer than WIDTH. */
#define STORE_FIRST(y, row, sum, count, doubt) do { \
    const vector sum_ = SCALED(sum); \
    CHECKED_LANES(sum_, doubt); \
    const vector new_ = beta == ACC(0) ? alpha * sum_ : alpha * sum_ + beta * load_first((y) + (row), count); \
    if ((count) > 0) store_first((y) + (row), new_, count); \
} while (0)
/* STORE for the first `count` lanes; `row` is an expression of the lane l. */
#define STORE_EACH(y, row, sum, count, doubt) do { \
    const vector sum_ = SCALED(sum), scaled_ = alpha * sum_; \
    CHECKED_LANES(sum_, doubt); \
    for (int64_t l = 0; l < WIDTH; ++l) \
        if (l < (count)) (y)[row] = VALUE(beta == ACC(0) ? scaled_[l] : scaled_[l] + beta * ACC((y)[row])); \
} while (0)
/* Up to WIDTH columns of B from `column` in one row, in either layout: those below k. */
#define ROW_OF_B(row, column) \
    (B_BY_ROW ? load(B + (row) * ldb + (column)) : gather_every(B + (column) * ldb + (row), ldb, WIDTH))
#define END_OF_B(row, column) \
    (B_BY_ROW ? load_first(B + (row) * ldb + (column), k - (column)) \
              : gather_every(B + (column) * ldb + (row), ldb, k - (column)))
/* Whether ROW_OF_B may read the columns before `past` in this row and all above it, though those from k on are none. */
#define HELD_BY_B(row, past) (B_BY_ROW ? (row) * ldb + (past) <= n * ldb : (past) <= k)
/* STORE_C for up to WIDTH columns of C from `column` in one row: those below k. */
#define STORE_ROW(row, column, sum, doubt) do { \
    if (C_BY_ROW && (column) + WIDTH <= k) STORE_LANES(C, (row) * ldc + (column), sum, doubt); \
    else if (C_BY_ROW) STORE_FIRST(C, (row) * ldc + (column), sum, k - (column), doubt); \
    else STORE_EACH(C, C_INDEX(row, (column) + l), sum, k - (column), doubt); \
} while (0)
#if defined(__SSE2__)
#define STREAM_FENCE __builtin_ia32_sfence()
#else
#define STREAM_FENCE do { } while (0)
#endif
/* STORE_ROW past the caches (`stream`), for a C that is larger than they are. */
#define STREAM_ROW(row, column, sum, doubt) do { \
    const vector sum_ = SCALED(sum); \
    CHECKED_LANES(sum_, doubt); \
    if (C_BY_ROW && beta == ACC(0) && (column) + WIDTH <= k) stream(C + (row) * ldc + (column), alpha * sum_); \
    else STORE_ROW(row, column, sum, doubt); \
} while (0)
