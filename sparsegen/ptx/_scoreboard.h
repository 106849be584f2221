/* When a warp's instructions could issue, were it alone: the length of its path, for the estimate alone.
 *
 * Each register is ready at some cycle. Inside a basic block instructions go as soon as what they read is ready, one a
 * cycle, in any order: the assembler puts loads first where PTX mixes them with their uses. At the end of a block (a
 * branch, a barrier, an exit) all of it has been issued, as in order; what nothing has read yet may still be under way.
 */
#pragma once
#include "_state.h"

enum { ARITHMETIC = 4, EXCHANGE_CYCLES = 23 /* shuffles and shared memory */, MATRIX = 33, PER_LINE = 2, MEETING = 20 };

/* A warp has begun; what was ready before is ready. */
static void path_begin(Warp *warp) {
    warp->origin = warp->began = warp->port = warp->issued_at = warp->latest + 1, warp->issued = 0;
}

static u64 path_length(const Warp *warp) {
    return (warp->began > warp->issued_at ? warp->began : warp->issued_at) - warp->origin;
}

static inline void ready(Warp *warp, const Flow *flow, u64 at) {
    for (u32 k = 0; k < flow->writes; ++k) warp->ready[flow->write[k]] = at;
    if (at > warp->latest) warp->latest = at;
}

static inline void issue(Warp *warp, const Flow *flow) {
    u64 at = warp->began + warp->issued++;
    for (u32 k = 0; k < flow->reads; ++k)
        if (warp->ready[flow->read[k]] > at) at = warp->ready[flow->read[k]];
    warp->start = at;
    if (at > warp->issued_at) warp->issued_at = at;
    ready(warp, flow, at + flow->cycles);
    if (flow->ends) warp->began = warp->issued_at + flow->cycles, warp->issued = 0;
}

/* A request to memory is answered `cycles` after its first line has had the port. */
static inline void answer(Warp *warp, const Flow *flow, u64 cycles, u64 lines) {
    const u64 at = warp->start > warp->port ? warp->start : warp->port;
    warp->port = at + PER_LINE * lines;
    if (at > warp->issued_at) warp->issued_at = at;
    ready(warp, flow, at + cycles + PER_LINE * (lines ? lines - 1 : 0));
}

/* The warps of a block have met: each goes on when the last one has come. */
static void path_meet(Warp *warps, u32 count) {
    u64 last = 0;
    for (u32 k = 0; k < count; ++k)
        if (path_length(&warps[k]) > last) last = path_length(&warps[k]);
    for (u32 k = 0; k < count; ++k) {
        warps[k].began = warps[k].issued_at = warps[k].origin + last + MEETING;
        warps[k].issued = 0;
    }
}
