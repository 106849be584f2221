/* One warp until it ends or waits at a barrier: groups of lanes that share a program counter, the lowest one first. */
#pragma once
#include "_collective.h"
#include "_cases.h"

/* The result of a comparison, and of its opposite, joined with another predicate where there is one.
 * operand 0: predicate, 4: of the opposite or -1, 5: the other predicate or -1; mode 1, 2, 3: and, or, xor */
static inline void finish_test(Warp *warp, const Instruction *i, u32 mask, u32 bits) {
    u32 opposite = ~bits;
    if (i->operand[5] >= 0) {
        const u32 other = i->flags & NEGATE ? ~warp->predicates[i->operand[5]] : warp->predicates[i->operand[5]];
        bits = i->mode == 1 ? bits & other : i->mode == 2 ? bits | other : bits ^ other;
        opposite = i->mode == 1 ? opposite & other : i->mode == 2 ? opposite | other : opposite ^ other;
    }
    set_predicate(warp, i->operand[0], mask, bits);
    set_predicate(warp, i->operand[4], mask, opposite);
}

/* operand 0: result, 1 and 2: sources; mode as MOVE, ... */
enum { P_MOVE, P_NOT, P_AND, P_OR, P_XOR };
static inline void logic(Warp *warp, const Instruction *i, u32 mask) {
    u32 a = warp->predicates[i->operand[1]], b = i->operand[2] >= 0 ? warp->predicates[i->operand[2]] : 0;
    if (i->flags & FLAG_A) a = ~a;
    if (i->flags & FLAG_B) b = ~b;
    u32 bits = a;
    switch (i->mode) {
        case P_NOT: bits = ~a; break;
        case P_AND: bits = a & b; break;
        case P_OR: bits = a | b; break;
        case P_XOR: bits = a ^ b; break;
        default: break;
    }
    set_predicate(warp, i->operand[0], mask, bits);
}

/* operand 0: the wide register; 1 to count: the narrow ones of `size` bytes, first the lowest */
static inline void pack(Warp *warp, const Instruction *i, u32 mask, int apart) {
    EACH(lane, mask) {
        u64 whole = apart ? value_of(REGISTER(0), lane, i->width) : 0;
        for (u32 k = 0; k < i->count; ++k) {
            if (i->operand[1 + k] < 0) continue;
            if (apart) set_value(REGISTER(1 + k), lane, i->size, whole >> 8 * i->size * k);
            else whole |= value_of(REGISTER(1 + k), lane, i->size) << 8 * i->size * k;
        }
        if (!apart) set_value(REGISTER(0), lane, i->width, whole);
    }
}

/* Bits of one register into another, wider or narrower. operand 0: to, `width` bytes; 1: from, `size`. */
static inline void resize(Warp *warp, const Instruction *i, u32 mask) {
    EACH(lane, mask) {
        u64 value = value_of(REGISTER(1), lane, i->size);
        if (i->flags & SIGNED)
            value = i->size == 2 ? (u64)(s64)(s16)value : i->size == 4 ? (u64)(s64)(s32)value : value;
        set_value(REGISTER(0), lane, i->width, value);
    }
}

/* Where a warp stands that cannot go on: at one barrier with all its lanes, or at fault. */
static int settle(Block *block, Warp *warp, u32 first_thread) {
    for (int k = 0; k < warp->groups; ++k)
        if (warp->group[k].state == AT_SYNC) {
            block->run->fault.other = warp->group[k].member & warp->live & ~warp->group[k].mask;
            return fail(block, warp, DIVERGENT, warp->group[k].pc,
                        first_thread + (u32)__builtin_ctz(warp->group[k].mask));
        }
    for (int k = 1; k < warp->groups; ++k)
        if (warp->group[k].pc != warp->group[0].pc) {
            block->run->fault.other = (s64)warp->group[0].pc;
            return fail(block, warp, BARRIER_FAULT, warp->group[k].pc,
                        first_thread + (u32)__builtin_ctz(warp->group[k].mask));
        }
    return OK;
}

static inline void regroup(Warp *warp, s32 pc, u32 mask) { /* another group that can run */
    for (int k = 0; k < warp->groups; ++k)
        if (warp->group[k].pc == pc && warp->group[k].state == RUNNING) {
            warp->group[k].mask |= mask;
            return;
        }
    warp->group[warp->groups++] = (Group){pc, mask, 0, RUNNING};
}

/* Lanes at pc wait for `member`. Groups at warp barriers that have become complete go on. */
static void park(Run *run, Warp *warp, s32 pc, u32 mask, u32 member) {
    warp->group[warp->groups++] = (Group){pc, mask, member, AT_SYNC};
    if (run->code[pc].op != WARP_BARRIER) return;
    u32 together = 0;
    for (int k = 0; k < warp->groups; ++k)
        if (warp->group[k].state == AT_SYNC && warp->group[k].member == member &&
            run->code[warp->group[k].pc].op == WARP_BARRIER)
            together |= warp->group[k].mask;
    if (member & warp->live & ~together) return;
    meet(warp, together, ++run->serial);
    for (int k = 0; k < warp->groups; ++k)
        if (warp->group[k].state == AT_SYNC && warp->group[k].member == member &&
            run->code[warp->group[k].pc].op == WARP_BARRIER)
            warp->group[k].state = RUNNING, ++warp->group[k].pc;
}

static int warp_barrier(Block *block, Warp *warp, s64 pc, u32 first_thread, u32 group, u32 member, u32 *seen) {
    const u32 gone = member & warp->started & ~warp->live;
    if (gone & *seen) { /* lanes that came here before have left the loop: who waits for them? */
        block->run->fault.other = gone & *seen;
        return fail(block, warp, DIVERGENT, pc, first_thread + (u32)__builtin_ctz(group));
    }
    warp->absent |= gone;
    *seen |= group;
    if (!meet(warp, group, ++block->run->serial)) return fail(block, warp, NO_MEMORY, pc, first_thread);
    return OK;
}

static inline u32 *members(const Warp *warp, const Instruction *i) {
    return (u32 *)(void *)REGISTER(i->op == SHUFFLE ? 5 : 2); /* of WARP_BARRIER, VOTE, MATCH and REDUCE: operand 2 */
}

/* The lanes of `mask` whose member masks are complete; the others wait, in `warp`. Negative: a fault. */
static s64 gathered(Block *block, Warp *warp, const Instruction *i, s64 pc, u32 first_thread, u32 mask, u32 *groups,
                    u32 *count) {
    const u32 *member = members(warp, i);
    u32 rest = mask, ready = 0;
    *count = 0;
    while (rest) {
        const u32 wanted = member[__builtin_ctz(rest)];
        u8 alike[32];
        for (u32 lane = 0; lane < 32; ++lane) alike[lane] = member[lane] == wanted ? 255 : 0;
        const u32 group = signs(alike) & rest;
        rest &= ~group;
        if (group & ~wanted) { /* a lane outside of its own mask */
            block->run->fault.other = wanted;
            fail(block, warp, DIVERGENT, pc, first_thread + (u32)__builtin_ctz(group & ~wanted));
            return -1;
        }
        if (wanted & warp->live & ~group) park(block->run, warp, (s32)pc, group, wanted);
        else ready |= group, groups[(*count)++] = group;
    }
    return ready;
}
