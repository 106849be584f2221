/* A warp, instruction by instruction. */
#pragma once
#include "_warp.h"

#define SOURCE(k, T) ((const T *)(const void *)(frame + (size_t)(u32)i->operand[k] * UNIT))
#define TARGET(T) ((T *)(void *)(frame + (size_t)(u32)i->operand[0] * UNIT))
/* Registers are the same or apart, never shifted: lanes can be computed in any order. */
#define LANES(...) \
    if (mask == ALL) { \
        _Pragma("GCC ivdep") for (u32 l = 0; l < 32; ++l) { __VA_ARGS__ } \
    } else { \
        EACH(l, mask) { __VA_ARGS__ } \
    } \
    break;
#define CASE1(number, D, A, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        D *to = TARGET(D); \
        LANES(const A a = pa[l]; to[l] = (D)(__VA_ARGS__);) \
    }
#define CASE2(number, D, A, B, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        const B *pb = SOURCE(2, B); \
        D *to = TARGET(D); \
        LANES(const A a = pa[l]; const B b = pb[l]; to[l] = (D)(__VA_ARGS__);) \
    }
#define CASE3(number, D, A, B, C, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        const B *pb = SOURCE(2, B); \
        const C *pc_ = SOURCE(3, C); \
        D *to = TARGET(D); \
        LANES(const A a = pa[l]; const B b = pb[l]; const C c = pc_[l]; to[l] = (D)(__VA_ARGS__);) \
    }
#define CASE4(number, D, A, B, C, E, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        const B *pb = SOURCE(2, B); \
        const C *pc_ = SOURCE(3, C); \
        const E *pd = SOURCE(4, E); \
        D *to = TARGET(D); \
        LANES(const A a = pa[l]; const B b = pb[l]; const C c = pc_[l]; const E d = pd[l]; to[l] = (D)(__VA_ARGS__);) \
    }
#define SELECT(number, D, A, B, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        const B *pb = SOURCE(2, B); \
        const u32 chosen = warp->predicates[i->operand[3]]; \
        D *to = TARGET(D); \
        LANES(const A a = pa[l]; const B b = pb[l]; const u32 c = chosen >> l & 1; to[l] = (D)(__VA_ARGS__);) \
    }
#define TEST1(number, A, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        u8 flags[32]; \
        for (u32 l = 0; l < 32; ++l) { const A a = pa[l]; flags[l] = (__VA_ARGS__) ? 255 : 0; } \
        finish_test(warp, i, mask, signs(flags)); \
        break; \
    }
#define TEST2(number, A, B, ...) \
    case number: { \
        const A *pa = SOURCE(1, A); \
        const B *pb = SOURCE(2, B); \
        u8 flags[32]; \
        for (u32 l = 0; l < 32; ++l) { const A a = pa[l]; const B b = pb[l]; flags[l] = (__VA_ARGS__) ? 255 : 0; } \
        finish_test(warp, i, mask, signs(flags)); \
        break; \
    }

enum { PAUSE_EVERY = 1 << 20 }; /* instructions */

static inline u64 next_stop(const Run *run, const Warp *warp) { /* of warp->done, where budgets are looked at again */
    const u64 whole = (u64)run->setup.budget - run->total, own = (u64)run->setup.warp_budget - warp->done;
    const u64 least = whole < own ? whole : own;
    return warp->done + (least < PAUSE_EVERY ? least : PAUSE_EVERY) + 1;
}

/* Runs until the lanes of the warp have returned or wait at a barrier. 0, or the kind of a fault. */
static int run_warp(Block *block, Warp *warp, u32 first_thread) {
    Run *run = block->run;
    const Instruction *code = run->code;
    u8 *const frame = warp->frame;
    BlockCounters *const counters = block->counters;
    u64 done = warp->done, stop = next_stop(run, warp);
    s32 pc, next;
    u32 active;
choose:
    pc = INT32_MAX;
    {
        int chosen = -1;
        for (int k = 0; k < warp->groups; ++k)
            if (warp->group[k].state == RUNNING && warp->group[k].pc < pc) chosen = k, pc = warp->group[k].pc;
        if (chosen < 0) {
            run->total += done - warp->done;
            warp->done = done;
            return warp->groups ? settle(block, warp, first_thread) : OK;
        }
        active = warp->group[chosen].mask;
        warp->group[chosen] = warp->group[--warp->groups];
    }
watch: /* for the next program counter where others are, to join them or to let them run */
    next = INT32_MAX;
    for (int k = 0; k < warp->groups; ++k)
        if (warp->group[k].pc >= pc && warp->group[k].pc < next) next = warp->group[k].pc;
    for (;; ++pc) {
        if (UNLIKELY(pc >= next)) {
            if (pc > next) { /* passed a group that runs: it was skipped by a branch */
                regroup(warp, pc, active);
                goto choose;
            }
            for (int k = 0; k < warp->groups; ++k)
                if (warp->group[k].pc == pc)
                    active |= warp->group[k].mask, warp->group[k--] = warp->group[--warp->groups];
            goto watch;
        }
        const Instruction *i = code + pc;
        u32 mask = active;
        if (i->guard >= 0) mask &= i->negated ? ~warp->predicates[i->guard] : warp->predicates[i->guard];
        if (UNLIKELY(++done >= stop)) {
            run->total += done - warp->done;
            warp->done = done;
            if (run->total > (u64)run->setup.budget || done > (u64)run->setup.warp_budget)
                return fail(block, warp, BUDGET, pc, first_thread + (u32)__builtin_ctz(active));
            if (run->pause(run)) return fail(block, warp, INTERRUPTED, pc, first_thread);
            stop = next_stop(run, warp);
        }
        if (counters) {
            ++run->lines[pc].executions;
            run->lines[pc].lanes += (u32)__builtin_popcount(mask), counters->lanes += (u32)__builtin_popcount(mask);
            issue(warp, &run->flows[pc]);
        }
        if (!mask) continue;
        if (i->op >= (u32)WARP_BARRIER && i->op <= (u32)ACTIVE &&
            mask != active) { /* guarded: the others go on alone */
            regroup(warp, pc + 1, active & ~mask);
            active = mask, next = pc + 1;
        }
        switch (i->op) {
#include "_cases.h"
            case BRANCH: {
                const s32 target = (s32)i->immediate;
                const u32 rest = active & ~mask;
                if (rest) {
                    if (counters) ++counters->divergent_branches;
                    regroup(warp, pc + 1, rest);
                    regroup(warp, target, mask);
                    goto choose;
                }
                if (warp->groups) {
                    regroup(warp, target, active);
                    goto choose;
                }
                pc = target - 1;
                break;
            }
            case BRANCH_TABLE: { /* operand 0: index, 1: entries; immediate: the first entry */
                const u32 *index = SOURCE(0, u32);
                u32 targets = 0;
                if (active & ~mask) regroup(warp, pc + 1, active & ~mask);
                EACH(lane, mask) {
                    if (index[lane] >= (u32)i->operand[1]) {
                        run->fault.buffer = IN_TABLE, run->fault.offset = index[lane], run->fault.size = i->operand[1];
                        return fail(block, warp, OUT_OF_BOUNDS, pc, first_thread + lane);
                    }
                    regroup(warp, run->tables[i->immediate + index[lane]], 1u << lane);
                }
                for (int k = 0; k < warp->groups; ++k) targets += warp->group[k].state == RUNNING;
                if (counters && targets > 1) ++counters->divergent_branches;
                goto choose;
            }
            case EXIT:
                warp->live &= ~mask, active &= ~mask;
                for (int k = 0; k < warp->groups; ++k) /* fewer are waited for now */
                    if (warp->group[k].state == AT_SYNC) warp->group[k].state = RUNNING;
                if (active) regroup(warp, pc + 1, active);
                goto choose;
            case TRAP: return fail(block, warp, TRAPPED, pc, first_thread + (u32)__builtin_ctz(mask));
            case NOTHING: break;
            case FENCE: block->fenced = 1; break;
            case PREDICATE: logic(warp, i, mask); break;
            case LOAD:
                if (load_or_store(block, warp, i, pc, first_thread, mask, READING)) return 1;
                break;
            case STORE:
                if (load_or_store(block, warp, i, pc, first_thread, mask, WRITING)) return 1;
                break;
            case ATOMIC:
                if (atomic(block, warp, i, pc, first_thread, mask)) return 1;
                break;
            case COPY_ASYNC:
                if (copy_async(block, warp, i, pc, first_thread, mask)) return 1;
                break;
            case PARAMETER: /* immediate: offset; operands 1 and on: to */
                for (u32 k = 0; k < i->count; ++k) {
                    const u64 value = fetched(run->parameters + i->immediate + k * i->size, i->size, i->flags & SIGNED);
                    if (i->operand[1 + k] >= 0) EACH(lane, mask) set_value(REGISTER(1 + k), lane, i->width, value);
                }
                break;
            case PACK: pack(warp, i, mask, 0); break;
            case UNPACK: pack(warp, i, mask, 1); break;
            case RESIZE: resize(warp, i, mask); break;
            case BARRIER_VOTE: /* operand 0: result, 1: predicate; the result is given when all have come */
            case BARRIER: {
                if (i->op == BARRIER_VOTE) {
                    const u32 bits = warp->predicates[i->operand[1]];
                    warp->vote = (warp->vote & ~mask) | ((i->flags & NEGATE ? ~bits : bits) & mask);
                }
                if (active & ~mask) regroup(warp, pc + 1, active & ~mask);
                warp->group[warp->groups++] = (Group){pc, mask, 0, AT_BARRIER};
                goto choose;
            }
            case WARP_BARRIER:
            case SHUFFLE:
            case VOTE:
            case MATCH:
            case REDUCE: {
                u32 groups[32], count;
                const s64 ready = gathered(block, warp, i, pc, first_thread, active, groups, &count);
                if (ready < 0) return 1;
                for (u32 k = 0; k < count; ++k) switch (i->op) {
                        case SHUFFLE: shuffle(warp, i, groups[k]); break;
                        case VOTE: vote(warp, i, groups[k]); break;
                        case MATCH: match(warp, i, groups[k]); break;
                        case REDUCE: reduce(warp, i, groups[k]); break;
                        default: {
                            const u32 member = members(warp, i)[__builtin_ctz(groups[k])];
                            if (warp_barrier(block, warp, pc, first_thread, groups[k], member,
                                             &warp->seen[i->immediate]))
                                return 1;
                        }
                    }
                if ((u32)ready != active) {
                    if (ready) regroup(warp, pc + 1, (u32)ready);
                    goto choose;
                }
                break;
            }
            case LOAD_MATRIX:
            case MATRIX_MULTIPLY: /* all 32 lanes, or it means nothing */
                if (active != ALL) {
                    if (!(warp->live & ~active)) {
                        run->fault.other = ~active;
                        return fail(block, warp, DIVERGENT, pc, first_thread + (u32)__builtin_ctz(active));
                    }
                    park(run, warp, pc, active, ALL);
                    goto choose;
                }
                if (i->op == LOAD_MATRIX) {
                    if (load_matrix(block, warp, i, pc, first_thread)) return 1;
                } else if (i->type == T_F64)
                    matrix_multiply_f64(warp, i);
                else
                    matrix_multiply(warp, i);
                break;
            case ACTIVE: EACH(lane, active) TARGET(u32)[lane] = active; break;
            default: return fail(block, warp, UNSUPPORTED, pc, first_thread);
        }
    }
}
