/* What the expressions of table.py call: rounding, half precision, bits. */
#pragma once
#include <fenv.h>
#include <math.h>

#include "_state.h"

static inline u32 f32_bits(f32 x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline f32 bits_f32(u32 bits) {
    f32 x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline u64 f64_bits(f64 x) {
    u64 bits;
    memcpy(&bits, &x, 8);
    return bits;
}
static inline f64 bits_f64(u64 bits) {
    f64 x;
    memcpy(&x, &bits, 8);
    return x;
}

static inline f32 flush(f32 x) { /* subnormals to zero, the sign kept */
    u32 bits = f32_bits(x);
    return bits & 0x7f800000u ? x : bits_f32(bits & 0x80000000u);
}
static inline f32 saturate(f32 x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
static inline s32 saturate_s32(s64 x) { return (s32)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x); }
static inline f64 high_word(f64 x) { /* rcp.approx.ftz.f64 and its kin keep the upper 32 bits, without subnormals */
    u64 bits = f64_bits(x) & 0xffffffff00000000ull;
    return bits_f64(bits & 0x7ff0000000000000ull ? bits : bits & 0x8000000000000000ull);
}

/* min and max: the number where one is NaN (or NaN, where asked), and -0 below +0 */
#define LEAST_GREATEST(T, sign) \
    static inline T min_##T(T a, T b, int nan) { \
        if (a != a || b != b) return nan || (a != a && b != b) ? (T)NAN : a != a ? b : a; \
        return a < b ? a : b < a ? b : sign(a) ? a : b; \
    } \
    static inline T max_##T(T a, T b, int nan) { \
        if (a != a || b != b) return nan || (a != a && b != b) ? (T)NAN : a != a ? b : a; \
        return a > b ? a : b > a ? b : sign(a) ? b : a; \
    }
LEAST_GREATEST(f32, __builtin_signbitf)
LEAST_GREATEST(f64, __builtin_signbit)

/* Rounding other than to the nearest is rare: the processor's mode is set for one operation. */
#define DIRECTED(T, fma_of, sqrt_of) \
    static __attribute__((noinline)) T directed_##T(int operation, int mode, T x, T y, T z) { \
        volatile T a = x, b = y, c = z, result; \
        fesetround(mode); \
        switch (operation) { \
            case '+': result = a + b; break; \
            case '-': result = a - b; break; \
            case '*': result = a * b; break; \
            case '/': result = a / b; break; \
            case 's': result = sqrt_of(a); break; \
            default: result = fma_of(a, b, c); break; \
        } \
        fesetround(FE_TONEAREST); \
        return result; \
    }
DIRECTED(f32, fmaf, sqrtf)
DIRECTED(f64, fma, sqrt)
#define DIRECTED_CAST(D, S) \
    static __attribute__((noinline)) D D##_from_##S(S x, int mode) { \
        volatile S a = x; \
        volatile D result; \
        fesetround(mode); \
        result = (D)a; \
        fesetround(FE_TONEAREST); \
        return result; \
    }
DIRECTED_CAST(f32, s64)
DIRECTED_CAST(f32, u64)
DIRECTED_CAST(f64, s64)
DIRECTED_CAST(f64, u64)
DIRECTED_CAST(f32, f64)

/* A whole f64 as an integer: the nearest one there is, 0 for NaN */
#define WHOLE(T, low, high, below, above) \
    static inline T T##_from_f64(f64 x) { return x != x ? 0 : x <= (below) ? (low) : x >= (above) ? (high) : (T)x; }
WHOLE(u8, 0, 255, 0.0, 255.0)
WHOLE(s8, -128, 127, -128.0, 127.0)
WHOLE(u16, 0, 65535, 0.0, 65535.0)
WHOLE(s16, -32768, 32767, -32768.0, 32767.0)
WHOLE(u32, 0, UINT32_MAX, 0.0, 4294967295.0)
WHOLE(s32, INT32_MIN, INT32_MAX, -2147483648.0, 2147483647.0)
WHOLE(u64, 0, UINT64_MAX, 0.0, 18446744073709551616.0)
WHOLE(s64, INT64_MIN, INT64_MAX, -9223372036854775808.0, 9223372036854775808.0)

/* ---- half precision ---- */

enum { NEAREST, TO_ZERO, AWAY /* to nearest, ties away from zero */, DOWNWARD, UPWARD, OUTWARD /* from zero */ };

/* x in a format of that many bits, rounded once */
static inline u32 narrowed(f64 x, int exponent_bits, int fraction_bits, int mode) {
    const u64 bits = f64_bits(x), fraction = bits & ((1ull << 52) - 1);
    const u32 most = (1u << exponent_bits) - 1, sign = (u32)(bits >> 63) << (exponent_bits + fraction_bits);
    const int biased = (int)(bits >> 52 & 2047);
    if (biased == 2047)
        return fraction ? (most << fraction_bits) | ((1u << fraction_bits) - 1) : sign | most << fraction_bits;
    int exponent = biased - 1023 + (int)(most >> 1), shift = 52 - fraction_bits;
    u64 kept = fraction;
    if (mode == DOWNWARD || mode == UPWARD) mode = (sign != 0) == (mode == DOWNWARD) ? OUTWARD : TO_ZERO;
    if (exponent <= 0) { /* subnormal there: the leading one is written out */
        kept |= biased ? 1ull << 52 : 0;
        shift += 1 - exponent;
        if (shift > 62) shift = 62;
        exponent = 0;
    }
    if (exponent >= (int)most) return sign | (mode == TO_ZERO ? (most << fraction_bits) - 1 : most << fraction_bits);
    u32 result = ((u32)exponent << fraction_bits) + (u32)(kept >> shift);
    const u64 rest = kept & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    if (mode == OUTWARD ? rest != 0
                        : mode != TO_ZERO && (rest > half || (rest == half && (mode == AWAY || (result & 1)))))
        ++result;
    return sign | result;
}
static inline u16 rn_f16(f64 x) { return (u16)narrowed(x, 5, 10, NEAREST); }
static inline u16 rz_f16(f64 x) { return (u16)narrowed(x, 5, 10, TO_ZERO); }
static inline u16 rm_f16(f64 x) { return (u16)narrowed(x, 5, 10, DOWNWARD); }
static inline u16 rp_f16(f64 x) { return (u16)narrowed(x, 5, 10, UPWARD); }
static inline u16 rm_bf16(f64 x) { return (u16)narrowed(x, 8, 7, DOWNWARD); }
static inline u16 rp_bf16(f64 x) { return (u16)narrowed(x, 8, 7, UPWARD); }
static inline u16 rn_bf16(f64 x) { return (u16)narrowed(x, 8, 7, NEAREST); }
static inline u16 rz_bf16(f64 x) { return (u16)narrowed(x, 8, 7, TO_ZERO); }
#define to_f16 rn_f16
#define to_bf16 rn_bf16
static inline f64 from_bf16(u32 x) { return bits_f32(x << 16); }
static inline f64 from_f16(u32 x) {
    const u32 exponent = x >> 10 & 31, fraction = x & 1023;
    const f64 sign = x & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (!exponent) return sign * fraction * 0x1p-24;
    return bits_f64((u64)(x & 0x8000) << 48 | (u64)(exponent + 1008) << 52 | (u64)fraction << 42);
}

/* x + y rounded to odd: rounding it again to fewer bits is as rounding the exact sum */
static inline f64 odd_sum(f64 x, f64 y) {
    const f64 sum = x + y, part = sum - x, error = (x - (sum - part)) + (y - part);
    if (error == 0 || error != error || (f64_bits(sum) & 1)) return sum;
    return bits_f64(f64_bits(sum) + ((error > 0) == (sum > 0) ? 1 : -1));
}
static inline f64 odd_from_u64(u64 x) { return x >> 53 ? (f64)(x >> 11 | (x & 2047 ? 1 : 0)) * 2048.0 : (f64)x; }
static inline f64 odd_from_s64(s64 x) { return x < 0 ? -odd_from_u64(0 - (u64)x) : odd_from_u64((u64)x); }

#define PICK(T) \
    static inline u16 pick_##T(u32 a, u32 b, int greatest, int nan) { \
        const f64 x = from_##T(a), y = from_##T(b); \
        if (x != x || y != y) return (u16)(nan || (x != x && y != y) ? 0x7fff : x != x ? b : a); \
        if (x == y) return (u16)(((a & 0x8000) != 0) != greatest ? a : b); \
        return (u16)((x < y) != greatest ? a : b); \
    } \
    static inline u16 relu_##T(u16 a) { return from_##T(a) != from_##T(a) ? 0x7fff : a & 0x8000 ? 0 : a; }
PICK(f16)
PICK(bf16)

static inline u16 saturated_f16(u16 a) {
    const f64 x = from_f16(a);
    return x > 0 ? (x < 1 ? a : 0x3c00) : 0;
}

#define PACKED(low, high) ((u32)(u16)(low) | (u32)(u16)(high) << 16)
/* An expression of a, b and c for both halves of packed registers */
#define BOTH1(e, x) ({ u32 w_ = x, a; a = w_ & 65535; u16 low_ = (u16)(e); a = w_ >> 16; PACKED(low_, e); })
#define BOTH2(e, x, y) \
    ({ u32 w_ = x, v_ = y, a, b; a = w_ & 65535, b = v_ & 65535; u16 low_ = (u16)(e); a = w_ >> 16, b = v_ >> 16; \
       PACKED(low_, e); })
#define BOTH3(e, x, y, z) \
    ({ u32 w_ = x, v_ = y, t_ = z, a, b, c; a = w_ & 65535, b = v_ & 65535, c = t_ & 65535; u16 low_ = (u16)(e); \
       a = w_ >> 16, b = v_ >> 16, c = t_ >> 16; PACKED(low_, e); })

/* ---- bits ---- */

static inline u32 bits_set(u32 x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return ((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}
static inline u64 reversed(u64 x) {
    x = (x >> 1 & 0x5555555555555555ull) | (x & 0x5555555555555555ull) << 1;
    x = (x >> 2 & 0x3333333333333333ull) | (x & 0x3333333333333333ull) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0full) | (x & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(x);
}
static inline u32 top_bit(u64 x) { return x ? 63u - (u32)__builtin_clzll(x) : ~0u; }
static inline u64 extract_bits(u64 a, u32 b, u32 c, u32 width, int is_signed) {
    const u32 position = b & 255, length = c & 255;
    u64 value = width == 32 ? (u32)a : a;
    if (!length) return 0;
    const u32 last = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
    const u64 sign = is_signed ? 0 - (value >> last & 1) : 0;
    value = position > 63 ? 0 : value >> position;
    const u32 count = position > last ? 0 : last - position + 1;
    const u64 mask = count > 63 ? ~0ull : (1ull << count) - 1;
    return (value & mask) | (sign & ~mask);
}
static inline u64 insert_bits(u64 a, u64 b, u32 c, u32 d, u32 width) {
    const u32 position = c & 255, length = d & 255;
    if (position >= width || !length) return b;
    const u64 ones = length > 63 ? ~0ull : (1ull << length) - 1, mask = ones << position;
    return (b & ~mask) | (a << position & mask);
}
static inline u32 permuted(u32 a, u32 b, u32 selection) {
    const u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 choice = selection >> 4 * i & 15;
        u32 byte = (u32)(bytes >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
static inline u32 looked_up(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    for (int i = 0; i < 8; ++i)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}
static inline u32 dot_bytes(u32 a, u32 b, u32 sum, int a_signed, int b_signed) {
    for (int i = 0; i < 32; i += 8)
        sum += (u32)((a_signed ? (s8)(a >> i) : (s32)(u8)(a >> i)) * (b_signed ? (s8)(b >> i) : (s32)(u8)(b >> i)));
    return sum;
}
