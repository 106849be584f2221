/* The warps of a block from barrier to barrier, and the blocks of a grid one after the other. */
#pragma once
#include "_run.h"

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
    if (block->counters) path_begin(warp);
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
        if (warp->live != warp->started && missing < 0)
            missing = 32 * k + (u32)__builtin_ctz(warp->started & ~warp->live);
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
    if (block->counters) ++block->counters->barriers, path_meet(warps, block->warps);
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
                if (run->fault.kind == UNINITIALISED && run->fault.buffer == IN_SHARED)
                    seek_writer(block, warps, k, together);
                return 1;
            }
            if (block->counters) {
                if (warp->done > block->counters->longest_warp) block->counters->longest_warp = warp->done;
                if (warp->loads > block->counters->longest_loads) block->counters->longest_loads = warp->loads;
                if (path_length(warp) > block->counters->longest_path)
                    block->counters->longest_path = path_length(warp);
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
    for (block->index = setup->stride / 2; block->index < blocks; block->index += setup->stride) {
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
