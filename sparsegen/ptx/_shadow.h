/* Races. Time is a serial number that grows whenever lanes meet: at a block's start, at a barrier, at a warp barrier.
 *
 * Every grain of writable memory remembers its last writer, and its last reader, as one word: the serial at which that
 * lane last met others, the lane, and for whom it stands (one lane, several of a warp, of a block, of the grid). Two
 * accesses are ordered when the later lane has met the earlier one since. Blocks never meet, except that a fence
 * followed by an atomic (a release) orders what came before it with a block that reads by an atomic afterwards.
 *
 * A grain is as wide as the narrowest store of the program, so that no two stores ever share one: exact to the byte.
 */
#pragma once
#include "_state.h"

enum { ONE, OF_WARP, OF_BLOCK, OF_GRID };
#define ENTRY(serial, thread, atomic, scope) ((u64)(serial) << 13 | (u64)(thread) << 3 | (u64)(atomic) << 2 | (scope))
#define SERIAL(entry) ((entry) >> 13)
#define THREAD(entry) ((u32)((entry) >> 3) & 1023)
#define ATOMIC_ENTRY(entry) ((entry) >> 2 & 1)
#define SCOPE(entry) ((u32)((entry) & 3))

static int shadow_make(Shadow *shadow, u64 bytes, int shift) {
    shadow->shift = shift;
    shadow->grains = (bytes >> shift) + 1;
    shadow->writes = calloc(shadow->grains, sizeof(u64));
    shadow->reads = NULL;
    return shadow->writes != NULL;
}
static void shadow_free(Shadow *shadow) {
    free(shadow->writes);
    free(shadow->reads);
}

/* Whether another block's access was released before this block last acquired. */
static __attribute__((noinline)) int released(const Block *block, u64 entry) {
    const Run *run = block->run;
    if (!run->releases || !block->acquired) return 0;
    s64 low = 0, high = block->index; /* the block that was running at that serial */
    while (high - low > 1) {
        const s64 middle = low + (high - low) / 2;
        if (run->releases[middle].start <= SERIAL(entry)) low = middle;
        else high = middle;
    }
    const Release *release = &run->releases[low];
    if (!release->time || release->time >= block->acquired) return 0;
    return SERIAL(entry) < release->barrier || (THREAD(entry) == release->thread && SERIAL(entry) <= release->serial) ||
           (THREAD(entry) / 32 == release->thread / 32 && SERIAL(entry) < release->lane_serial);
}

/* When a lane last met another. As long as all lanes meet at once, the lane's own serial tells. */
static inline u64 last_met(const Warp *warp, u32 lane, u32 other) {
    return warp->apart ? warp->met[lane][other] : warp->lane_serial[lane];
}

/* Lanes meet at a warp barrier: each then knows what any of them knew of the others. */
static int meet(Warp *warp, u32 group, u64 serial) {
    if (!warp->apart && group != warp->live) {
        if (!warp->met && !(warp->met = malloc(sizeof *warp->met * 32))) return 0;
        for (u32 lane = 0; lane < 32; ++lane)
            for (u32 other = 0; other < 32; ++other) warp->met[lane][other] = warp->lane_serial[lane];
        warp->apart = 1;
    }
    if (warp->apart) {
        u64 known[32] = {0};
        EACH(lane, group)
            for (u32 other = 0; other < 32; ++other)
                if (warp->met[lane][other] > known[other]) known[other] = warp->met[lane][other];
        EACH(lane, group) known[lane] = serial;
        EACH(lane, group) memcpy(warp->met[lane], known, sizeof known);
    }
    EACH(lane, group) warp->lane_serial[lane] = serial;
    return 1;
}

static inline int ordered(const Block *block, const Warp *warp, u64 entry, u32 thread) {
    const u64 serial = SERIAL(entry);
    if (serial < block->start || SCOPE(entry) == OF_GRID) return released(block, entry);
    if (serial < block->barrier) return 1;
    if (SCOPE(entry) == ONE && THREAD(entry) == thread) return 1;
    if (SCOPE(entry) > OF_WARP || THREAD(entry) / 32 != thread / 32) return 0;
    return serial < last_met(warp, thread & 31, THREAD(entry) & 31);
}

/* One entry for both an earlier one that is not ordered before this, and this. */
static inline u64 joined(const Block *block, u64 entry, u64 serial, u32 thread, u32 atomic) {
    u32 scope = SCOPE(entry);
    if (SERIAL(entry) < block->start) scope = OF_GRID;
    else if (scope <= OF_WARP) scope = THREAD(entry) / 32 == thread / 32 ? OF_WARP : OF_BLOCK;
    return ENTRY(serial > SERIAL(entry) ? serial : SERIAL(entry), thread, atomic & ATOMIC_ENTRY(entry), scope);
}

static int race(Block *block, Warp *warp, s64 pc, u32 thread, u64 entry, int other_access) {
    Fault *fault = &block->run->fault;
    fault->other = SERIAL(entry) < block->start || SCOPE(entry) == OF_GRID ? -1 : (s64)THREAD(entry);
    fault->other_access = other_access;
    return fail(block, warp, RACE, pc, thread);
}

/* An access of `bytes` at `offset`: 0, or the fault. strong: an atomic, volatile or relaxed access. same: a store that
 * changes nothing, which is no race with another store. */
static inline int shadow_access(Block *block, Warp *warp, Shadow *shadow, int void_before_start, int fresh, s64 pc,
                                u32 thread, u64 offset, u64 bytes, int access, int strong, int same) {
    if (UNLIKELY(access == READING && !shadow->reads) && !(shadow->reads = calloc(shadow->grains, sizeof(u64))))
        return fail(block, warp, NO_MEMORY, pc, thread);
    const u64 last = (offset + bytes - 1) >> shadow->shift, serial = warp->lane_serial[thread & 31];
    const u64 least =
        void_before_start ? block->start : 1; /* entries of shared memory from before are another block's */
    for (u64 grain = offset >> shadow->shift; grain <= last; ++grain) {
        u64 write = shadow->writes[grain];
        if (SERIAL(write) < least) {
            if (fresh && access != WRITING) {
                if (shadow->reads)
                    shadow->reads[grain] = ENTRY(serial, thread, 0, ONE); /* who writes later is in a race */
                block->run->fault.other = warp->absent;
                return fail(block, warp, UNINITIALISED, pc, thread);
            }
            if (fresh) same = 0; /* as nobody knows what was there */
            write = 0;
        }
        const int write_ordered = !write || ordered(block, warp, write, thread);
        if (UNLIKELY(!write_ordered) && !(strong && ATOMIC_ENTRY(write)) && !(same && access == WRITING))
            return race(block, warp, pc, thread, write, ATOMIC_ENTRY(write) ? CHANGING : WRITING);
        if (access == READING) {
            const u64 read = shadow->reads[grain];
            shadow->reads[grain] = SERIAL(read) < least || ordered(block, warp, read, thread)
                                       ? ENTRY(serial, thread, strong, ONE)
                                       : joined(block, read, serial, thread, (u32)strong);
            continue;
        }
        if (shadow->reads) {
            const u64 read = shadow->reads[grain];
            if (SERIAL(read) >= least && UNLIKELY(!ordered(block, warp, read, thread)) &&
                !(strong && ATOMIC_ENTRY(read)) && !same)
                return race(block, warp, pc, thread, read, READING);
        }
        if (write_ordered) shadow->writes[grain] = ENTRY(serial, thread, strong, ONE);
        else if (strong) shadow->writes[grain] = joined(block, write, serial, thread, 1);
    }
    return OK;
}

/* What fences and atomics mean between blocks. */
static inline void synchronise(Block *block, Warp *warp, u32 thread, int acquires, int releases) {
    Run *run = block->run;
    if (!run->releases) return;
    if (acquires) block->acquired = ++run->serial;
    if (releases && block->fenced) {
        Release *release = &run->releases[block->index];
        release->barrier = block->barrier, release->lane_serial = warp->lane_serial[thread & 31];
        release->thread = thread, release->serial = run->serial, release->time = ++run->serial;
    }
}
