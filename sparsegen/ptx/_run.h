/* Instruction by instruction: the loop over a warp, the warps of a block, the blocks of a grid. */
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
                if (warp->group[k].pc == pc) active |= warp->group[k].mask, warp->group[k--] = warp->group[--warp->groups];
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
        }
        if (!mask) continue;
        if (i->op >= (u32)WARP_BARRIER && i->op <= (u32)ACTIVE && mask != active) { /* guarded: the others go on alone */
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
                            if (warp_barrier(block, warp, pc, first_thread, groups[k], member, &warp->seen[i->immediate])) return 1;
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

enum { TID_X, TID_Y, TID_Z, CTAID_X, CTAID_Y, CTAID_Z, NTID_X, NTID_Y, NTID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, LANEID,
       WARPID, NWARPID, MASK_EQ, MASK_LT, MASK_LE, MASK_GT, MASK_GE, DYNAMIC_SHARED, TOTAL_SHARED };

static u32 special(const Block *block, s32 which, u32 thread) {
    const Setup *setup = &block->run->setup;
    const u32 lane = thread & 31, x = (u32)setup->block[0], y = (u32)setup->block[1];
    switch (which) {
        case TID_X: return thread % x;
        case TID_Y: return thread / x % y;
        case TID_Z: return thread / x / y;
        case CTAID_X: case CTAID_Y: case CTAID_Z: return (u32)block->at[which - CTAID_X];
        case NTID_X: case NTID_Y: case NTID_Z: return (u32)setup->block[which - NTID_X];
        case NCTAID_X: case NCTAID_Y: case NCTAID_Z: return (u32)setup->grid[which - NCTAID_X];
        case LANEID: return lane;
        case WARPID: return thread / 32;
        case NWARPID: return block->warps;
        case MASK_EQ: return 1u << lane;
        case MASK_LT: return (1u << lane) - 1;
        case MASK_LE: return (2u << lane) - 1;
        case MASK_GT: return ~((2u << lane) - 1);
        case MASK_GE: return ~((1u << lane) - 1);
        case DYNAMIC_SHARED: return (u32)setup->dynamic_bytes;
        default: return (u32)setup->shared_bytes;
    }
}

static void begin_warp(Block *block, Warp *warp, u32 index) {
    const Run *run = block->run;
    const u32 threads = block->threads - 32 * index;
    warp->started = warp->live = threads >= 32 ? ALL : (1u << threads) - 1;
    warp->group[0] = (Group){0, warp->live, 0, RUNNING};
    warp->groups = 1;
    warp->absent = warp->vote = 0, warp->done = warp->loads = 0, warp->copy_count = 0;
    memset(warp->copy_group, 0, sizeof warp->copy_group);
    if (run->setup.warp_barriers) memset(warp->seen, 0, (size_t)run->setup.warp_barriers * sizeof(u32));
    for (u32 lane = 0; lane < 32; ++lane) warp->lane_serial[lane] = block->barrier;
    warp->apart = 0;
    for (s64 k = 0; k < run->special_count; ++k) {
        u32 *to = (u32 *)(void *)(warp->frame + (size_t)(u32)run->specials[2 * k + 1] * UNIT);
        const s32 which = run->specials[2 * k];
        if (which >= CTAID_X && which <= NCTAID_Z) {
            const u32 value = special(block, which, 0);
            for (u32 lane = 0; lane < 32; ++lane) to[lane] = value;
        } else
            for (u32 lane = 0; lane < 32; ++lane) to[lane] = special(block, which, 32 * index + lane);
    }
}

/* All warps have come to a barrier, or ended. 1: go on behind it, 0: the block is done, negative: a fault. */
static int cross_barrier(Block *block, Warp *warps) {
    Run *run = block->run;
    s64 at = -1, missing = -1;
    u32 yes = 0, waiting = 0;
    for (u32 k = 0; k < block->warps; ++k) {
        Warp *warp = &warps[k];
        if (warp->live != warp->started && missing < 0) missing = 32 * k + (u32)__builtin_ctz(warp->started & ~warp->live);
        if (!warp->groups) continue;
        if (at >= 0 && warp->group[0].pc != at) {
            run->fault.other = at;
            return -fail(block, warp, BARRIER_FAULT, warp->group[0].pc, 32 * k + (u32)__builtin_ctz(warp->live));
        }
        at = warp->group[0].pc;
        waiting += (u32)__builtin_popcount(warp->live), yes += (u32)__builtin_popcount(warp->vote & warp->live);
    }
    if (at < 0) return 0;
    if (missing >= 0) {
        run->fault.other = -1;
        return -fail(block, warps, BARRIER_FAULT, at, missing);
    }
    if (block->counters) ++block->counters->barriers;
    block->barrier = ++run->serial;
    for (u32 k = 0; k < block->warps; ++k) {
        Warp *warp = &warps[k];
        const Instruction *i = run->code + at;
        u32 all = 0;
        for (int g = 0; g < warp->groups; ++g) all |= warp->group[g].mask;
        warp->group[0] = (Group){(s32)at + 1, all, 0, RUNNING};
        warp->groups = 1;
        for (u32 lane = 0; lane < 32; ++lane) warp->lane_serial[lane] = block->barrier;
        warp->apart = 0;
        if (i->op != BARRIER_VOTE) continue;
        if (i->mode == ADD) EACH(lane, all) ((u32 *)(void *)REGISTER(0))[lane] = yes;
        else set_predicate(warp, i->operand[0], all, (i->mode == AND ? yes == waiting : yes != 0) ? ALL : 0);
    }
    return 1;
}

/* A warp has read shared memory before anything was written there. If a later warp writes it, that is a race. */
static void seek_writer(Block *block, Warp *warps, u32 reader, int together) {
    Run *run = block->run;
    const Fault read = run->fault;
    for (u32 k = reader + 1; k < block->warps; ++k) {
        Warp *warp = &warps[together ? k : 0];
        if (!together) begin_warp(block, warp, k);
        if (!warp->groups || !run_warp(block, warp, 32 * k)) continue;
        const Fault found = run->fault;
        run->fault = read;
        if (found.kind != RACE || found.buffer != IN_SHARED || found.access == READING) continue;
        if (found.offset >= read.offset + read.size || read.offset >= found.offset + found.size) continue;
        run->fault.kind = RACE, run->fault.other = found.thread, run->fault.other_access = found.access;
        return;
    }
    run->fault = read;
}

static int run_block(Block *block, Warp *warps) {
    Run *run = block->run;
    block->start = block->barrier = ++run->serial;
    block->acquired = 0, block->fenced = 0;
    if (run->releases) run->releases[block->index].start = block->start;
    if (block->counters) block->counters->instructions = run->total;
    const int together = run->setup.barriers != 0; /* else one warp after the other, in one frame */
    if (together)
        for (u32 k = 0; k < block->warps; ++k) begin_warp(block, &warps[k], k);
    int more = 1;
    while (more) {
        for (u32 k = 0; k < block->warps; ++k) {
            Warp *warp = &warps[together ? k : 0];
            if (!together) begin_warp(block, warp, k);
            if (warp->groups && run_warp(block, warp, 32 * k)) {
                if (run->fault.kind == UNINITIALISED && run->fault.buffer == IN_SHARED) seek_writer(block, warps, k, together);
                return 1;
            }
            if (block->counters) {
                if (warp->done > block->counters->longest_warp) block->counters->longest_warp = warp->done;
                if (warp->loads > block->counters->longest_loads) block->counters->longest_loads = warp->loads;
            }
        }
        more = together ? cross_barrier(block, warps) : 0;
        if (more < 0) return 1;
    }
    if (block->counters) block->counters->instructions = run->total - block->counters->instructions;
    return OK;
}

static int run_grid(Run *run, Block *block, Warp *warps) {
    const Setup *setup = &run->setup;
    const s64 blocks = setup->grid[0] * setup->grid[1] * setup->grid[2];
    for (block->index = 0; block->index < blocks; ++block->index) {
        block->at[0] = block->index % setup->grid[0];
        block->at[1] = block->index / setup->grid[0] % setup->grid[1];
        block->at[2] = block->index / setup->grid[0] / setup->grid[1];
        block->counters = run->blocks ? &run->blocks[block->index] : NULL;
        if (run->l1) block->l1 = &run->l1[block->index % setup->multiprocessors];
        if (run_block(block, warps)) return 1;
        if (run->total >= run->next_pause) { /* many short warps */
            run->next_pause = run->total + PAUSE_EVERY;
            if (run->pause(run)) return fail(block, warps, INTERRUPTED, 0, 0);
        }
    }
    return OK;
}
