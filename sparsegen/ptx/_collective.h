/* What lanes of a warp do together: shuffles, votes, matches, reductions, matrix products. */
#pragma once
#include "_memory.h"

#if defined(__SSE2__)
#include <emmintrin.h>
static inline u32 signs(const u8 *flags) { /* the top bits of 32 bytes */
    return (u32)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(const void *)flags)) |
           (u32)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(const void *)(flags + 16))) << 16;
}
#else
static inline u32 signs(const u8 *flags) {
    u32 bits = 0;
    for (u32 lane = 0; lane < 32; ++lane) bits |= (u32)(flags[lane] >> 7) << lane;
    return bits;
}
#endif

#define POISON 0x7fff7fffu /* a NaN as f32, f16, bf16, and as the upper half of an f64 */

static inline void set_predicate(Warp *warp, s32 predicate, u32 mask, u32 bits) {
    if (predicate >= 0) warp->predicates[predicate] = (warp->predicates[predicate] & ~mask) | (bits & mask);
}

enum { UP, DOWN, BUTTERFLY, INDEXED };

/* operand 0: result, 1: value, 2: lane or distance, 3: clamp and segments, 4: predicate of those in range or -1 */
static void shuffle(Warp *warp, const Instruction *i, u32 group) {
    const u32 *value = (u32 *)(void *)REGISTER(1), *by = (u32 *)(void *)REGISTER(2),
              *clamp = (u32 *)(void *)REGISTER(3);
    u32 *to = (u32 *)(void *)REGISTER(0), result[32], from[32];
    u8 inside[32];
#define SOURCES(expression, in_range) \
    for (u32 lane = 0; lane < 32; ++lane) { \
        const u32 distance = by[lane] & 31, segment = clamp[lane] >> 8 & 31, lowest = lane & segment; \
        const s32 bound = (s32)(lowest | (clamp[lane] & 31 & ~segment)), source = (s32)(expression); \
        const int fits = (in_range); \
        (void)distance, (void)lowest; \
        inside[lane] = fits ? 255 : 0, from[lane] = fits ? (u32)source & 31 : lane; \
    }
    switch (i->mode) {
        case UP: SOURCES(lane - distance, source >= bound) break;
        case DOWN: SOURCES(lane + distance, source <= bound) break;
        case BUTTERFLY: SOURCES(lane ^ distance, source <= bound) break;
        default: SOURCES(lowest | (distance & ~segment), source <= bound) break;
    }
#undef SOURCES
    for (u32 lane = 0; lane < 32; ++lane) /* a lane that takes no part gives no value */
        result[lane] = group >> from[lane] & 1 ? value[from[lane]] : POISON;
    if (group == ALL) memcpy(to, result, sizeof result);
    else EACH(lane, group) to[lane] = result[lane];
    set_predicate(warp, i->operand[4], group, signs(inside));
}

enum { BALLOT, ANY, EVERY, UNIFORM };

/* operand 0: result (a register for BALLOT, else a predicate), 1: predicate */
static void vote(Warp *warp, const Instruction *i, u32 group) {
    u32 bits = warp->predicates[i->operand[1]];
    bits = (i->flags & NEGATE ? ~bits : bits) & group;
    if (i->mode == BALLOT) {
        EACH(lane, group) ((u32 *)(void *)REGISTER(0))[lane] = bits;
        return;
    }
    const int holds = i->mode == ANY ? bits != 0 : i->mode == EVERY ? bits == group : !bits || bits == group;
    set_predicate(warp, i->operand[0], group, holds ? ALL : 0);
}

/* operand 0: result, 1: value, 4: predicate or -1 */
static void match(Warp *warp, const Instruction *i, u32 group) {
    u32 found[32], matched = 0;
    EACH(lane, group) {
        u32 same = 0;
        EACH(other, group)
            same |= (u32)(value_of(REGISTER(1), other, i->width) == value_of(REGISTER(1), lane, i->width)) << other;
        found[lane] = i->mode == ANY || same == group ? same : 0;
        matched |= (u32)(found[lane] != 0) << lane;
    }
    EACH(lane, group) ((u32 *)(void *)REGISTER(0))[lane] = found[lane];
    set_predicate(warp, i->operand[4], group, matched);
}

/* operand 0: result, 1: value */
static void reduce(Warp *warp, const Instruction *i, u32 group) {
    u32 *value = (u32 *)(void *)REGISTER(1);
    u64 sum = value[__builtin_ctz(group)];
    EACH(lane, group & (group - 1)) sum = changed(i->mode, i->type, (u32)sum, value[lane], 0);
    EACH(lane, group) ((u32 *)(void *)REGISTER(0))[lane] = (u32)sum;
}

/* Matrices of 8 rows of 16 bytes in shared memory. operand 0: address; 1 to 4: results; mode 1: transposed */
static int load_matrix(Block *block, Warp *warp, const Instruction *i, s64 pc, u32 first_thread) {
    u8 rows[32][16];
    u64 address[32];
    for (u32 lane = 0; lane < 8u * i->count; ++lane) {
        Place place;
        address[lane] = address_of(warp, i, 0, lane);
        if (locate(block, warp, pc, lane, first_thread + lane, SHARED, address[lane], 16, READING, &place)) return 1;
        if (check_access(block, warp, pc, first_thread + lane, &place, 16, READING, 0, 0)) return 1;
        memcpy(rows[lane], place.at, 16);
    }
    for (u32 k = 0; k < i->count; ++k)
        for (u32 lane = 0; lane < 32; ++lane) {
            u16 pair[2];
            for (u32 j = 0; j < 2; ++j) {
                const u32 row = i->mode ? 2 * (lane % 4) + j : lane / 4,
                          column = i->mode ? lane / 4 : 2 * (lane % 4) + j;
                memcpy(&pair[j], rows[8 * k + row] + 2 * column, 2);
            }
            ((u32 *)(void *)REGISTER(1 + k))[lane] = PACKED(pair[0], pair[1]);
        }
    if (block->counters) {
        for (u32 k = 0; k < i->count; ++k) count_shared(block, warp, pc, address, 255u << 8 * k, 16, READING);
    }
    return OK;
}

static f64 half_of(u32 type, u32 packed, u32 which) {
    const u32 bits = which ? packed >> 16 : packed & 65535;
    return type == T_F16 ? from_f16(bits) : from_bf16(bits);
}

/* D = A B + C of 16 rows and 8 columns, depth `count`. operand 0 to 3: D, 4 to 7: A, 8 and 9: B, 10 to 13: C.
 * type T_F16 or T_BF16 (two to a register), T_F32 (tf32); mode 1: C and D are f16. Products are exact, sums f64. */
static void matrix_multiply(Warp *warp, const Instruction *i) {
    const u32 depth = i->count, packed = i->type != T_F32;
    f64 a[16][16], b[16][8], c[16][8];
    for (u32 lane = 0; lane < 32; ++lane) {
        const u32 g = lane / 4, t = lane % 4;
#define WORD(k) (((u32 *)(void *)REGISTER(k))[lane])
        for (u32 k = 0; k < (packed ? depth / 4 : depth / 2); ++k) { /* rows g and g + 8, then the next columns */
            const u32 row = g + 8 * (k & 1);
            if (packed)
                for (u32 j = 0; j < 2; ++j) a[row][2 * t + 8 * (k / 2) + j] = half_of(i->type, WORD(4 + k), j);
            else
                a[row][t + 4 * (k / 2)] = bits_f32(WORD(4 + k) & ~0x1fffu);
        }
        for (u32 k = 0; k < (packed ? depth / 8 : depth / 4); ++k) {
            if (packed)
                for (u32 j = 0; j < 2; ++j) b[2 * t + 8 * k + j][g] = half_of(i->type, WORD(8 + k), j);
            else
                b[t + 4 * k][g] = bits_f32(WORD(8 + k) & ~0x1fffu);
        }
        for (u32 k = 0; k < (i->mode ? 2 : 4); ++k) {
            if (i->mode)
                for (u32 j = 0; j < 2; ++j) c[g + 8 * k][2 * t + j] = half_of(T_F16, WORD(10 + k), j);
            else
                c[g + 8 * (k / 2)][2 * t + k % 2] = bits_f32(WORD(10 + k));
        }
    }
    for (u32 row = 0; row < 16; ++row)
        for (u32 column = 0; column < 8; ++column)
            for (u32 k = 0; k < depth; ++k) c[row][column] += a[row][k] * b[k][column];
    for (u32 lane = 0; lane < 32; ++lane) {
        const u32 g = lane / 4, t = lane % 4;
        for (u32 k = 0; k < (i->mode ? 2 : 4); ++k)
            WORD(k) = i->mode ? PACKED(to_f16(c[g + 8 * k][2 * t]), to_f16(c[g + 8 * k][2 * t + 1]))
                              : f32_bits((f32)c[g + 8 * (k / 2)][2 * t + k % 2]);
    }
#undef WORD
}

/* D = A B + C in f64, 8 by 8 by 4. operand 0, 1: D; 4: A; 8: B; 10, 11: C */
static void matrix_multiply_f64(Warp *warp, const Instruction *i) {
    f64 result[2][32];
    const f64 *a = (f64 *)(void *)REGISTER(4), *b = (f64 *)(void *)REGISTER(8);
    for (u32 j = 0; j < 2; ++j)
        for (u32 lane = 0; lane < 32; ++lane) {
            f64 sum = ((f64 *)(void *)REGISTER(10 + j))[lane];
            for (u32 k = 0; k < 4; ++k) sum = fma(a[lane / 4 * 4 + k], b[(2 * (lane % 4) + j) * 4 + k], sum);
            result[j][lane] = sum;
        }
    for (u32 j = 0; j < 2; ++j) memcpy(REGISTER(j), result[j], sizeof result[j]);
}
