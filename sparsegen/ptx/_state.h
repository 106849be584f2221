/* What a run is made of: instructions, buffers, warps, and the fault that ends it. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef unsigned __int128 u128;
typedef __int128 s128;

#define ALL 0xffffffffu
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/* for each lane of a mask: the bits of it, lowest first */
#define EACH(lane, mask) \
    for (u32 left_ = (mask), lane = 0; left_ && (lane = (u32)__builtin_ctz(left_), 1); left_ &= left_ - 1)

/* An address is (id << 40) + offset: id 0 is nothing, then come the buffers, and two windows of the generic space. */
enum { LOCAL_WINDOW = 0xfffffe, SHARED_WINDOW = 0xffffff, UNIT = 64 /* bytes: registers begin at multiples of it */ };
#define OFFSET_BITS 40
#define OFFSET_MASK ((1ull << OFFSET_BITS) - 1)

enum { MOST_OPERANDS = 16 };

typedef struct { /* as in encode.py */
    u32 op;
    s32 guard; /* predicate, or -1 */
    s32 operand[MOST_OPERANDS]; /* registers in UNITs of the frame, or predicates; -1: none */
    s64 immediate; /* address offset, branch target, ... */
    u8 negated;    /* the guard */
    u8 size, count; /* memory: bytes of an element, elements */
    u8 space, mode, type;
    u8 width; /* bytes of a lane of the data registers */
    u8 flags;
} Instruction;

enum { GENERIC, GLOBAL, SHARED, LOCAL };
enum { SIGNED = 1, STRONG = 2, ADDRESS_32 = 4, ACQUIRE = 8, RELEASE = 16, NEGATE = 32, FLAG_A = 64, FLAG_B = 128 };

enum {
    OK,
    OUT_OF_BOUNDS,
    MISALIGNED,
    READ_ONLY,
    UNINITIALISED,
    RACE,
    DIVERGENT,
    BARRIER_FAULT,
    BUDGET,
    TRAPPED,
    UNSUPPORTED,
    INTERRUPTED,
    NO_MEMORY
};
enum { IN_SHARED = -1, IN_LOCAL = -2, NOWHERE = -3, IN_TABLE = -4 };
enum { READING, WRITING, CHANGING /* atomically */ };

typedef struct {
    s64 kind, pc, block, thread;
    s64 buffer, offset, size, access; /* of memory */
    s64 other, other_access; /* the thread of a race, -1: of another block; lanes that are missing; ... */
} Fault;

/* Who touched each grain of memory last, for races; see _shadow.h. */
typedef struct {
    u64 *writes, *reads; /* reads are made when first needed */
    u64 grains;
    int shift; /* log2 of the bytes of a grain: the least that any store of the program writes */
} Shadow;

typedef struct {
    u8 *base;
    u64 length;
    int writable, fresh; /* fresh: its content counts as never written */
    Shadow shadow;
    u32 *turns; /* of atomics, by line of 128 bytes; made when first counted */
} Buffer;

typedef struct {
    s32 pc;
    u32 mask, member; /* member: the lanes that a collective operation waits for */
    enum { RUNNING, AT_BARRIER, AT_SYNC } state;
} Group;

typedef struct {
    u64 to; /* offset in shared memory */
    u32 lane, size, group, pc;
    u8 data[16];
} Copy; /* cp.async under way */

typedef struct {
    Group group[33];
    int groups;
    u32 live, started;
    u32 absent; /* lanes that had returned when a warp barrier named them */
    u32 vote;   /* what lanes brought to a barrier */
    u8 *frame;
    u32 *predicates;
    u8 *local;
    u64 lane_serial[32]; /* when each lane last met others, see _shadow.h */
    u64 (*met)[32];      /* when it last met each other lane, once some have met without the rest */
    int apart;
    u64 done, loads;     /* instructions */
    u32 *seen;           /* by warp barrier: the lanes that came to it */
    Copy *copies;
    u32 copy_count, copy_room, copy_group[32]; /* groups a lane has committed */
    /* cycles, see _scoreboard.h: */
    u64 *ready;                                       /* of each register, then of each predicate */
    u64 origin, began, issued, issued_at, start, port, latest; /* of: the warp, its basic block, ... */
} Warp;

typedef struct { /* what an instruction reads and writes, as places in `ready` */
    s32 read[12], write[9];
    u8 reads, writes, cycles, ends; /* ends: a basic block */
} Flow;

typedef struct {
    u64 tag;
    u32 time;
    u32 sectors;
} Line;

typedef struct {
    Line *lines;
    u32 sets, ways, clock;
} Cache;

typedef struct { /* per block, as in counters.py */
    u64 instructions, lanes, requests, sectors, lines, bytes, l1_misses, l2_misses, shared_waves, bank_conflicts;
    u64 atomics, atomic_conflicts, divergent_branches, barriers, longest_warp, longest_loads, longest_path;
    u64 atomic_turns;
} BlockCounters;

typedef struct { /* per instruction */
    u64 executions, lanes, sectors, l1_misses, conflicts;
} LineCounters;

typedef struct { /* what a block did that later blocks may rely on, see _shadow.h */
    u64 start, barrier, lane_serial, serial, time;
    u32 thread;
} Release;

typedef struct { /* as in encode.py */
    s64 frame_units, predicates, shared_bytes, local_bytes, dynamic_bytes, shared_shift, global_shift;
    s64 grid[3], block[3];
    s64 budget, warp_budget, fences, barriers, warp_barriers, multiprocessors, l1_bytes, l2_bytes;
    s64 l1_cycles, l2_cycles, memory_cycles, stride; /* of every `stride` blocks one is run */
} Setup;

typedef struct Run {
    const Instruction *code;
    s64 instructions;
    Setup setup;
    Buffer *buffers;
    s64 buffer_count;
    const s32 *tables;
    s64 table_entries;
    const u64 *constants; /* (register, bytes, value) */
    s64 constant_count;
    const u32 *predicate_constants; /* (predicate, mask) */
    s64 predicate_constant_count;
    const s32 *specials; /* (which, register) */
    s64 special_count;
    const u8 *parameters;
    s64 parameter_bytes;
    u64 serial, total, next_pause, hottest; /* hottest: turns of atomics on one line */
    Release *releases; /* of each block, only where the program has fences */
    int (*pause)(struct Run *);
    void *state;
    Fault fault;
    BlockCounters *blocks; /* NULL: nothing is counted */
    LineCounters *lines;
    Cache *l1, l2;
    Flow *flows;
} Run;

typedef struct {
    Run *run;
    s64 index, at[3];
    u32 threads, warps;
    u8 *shared;
    Shadow shadow;
    u64 start, barrier; /* serials */
    u64 acquired;       /* when it last read what another may have released */
    int fenced;
    BlockCounters *counters;
    Cache *l1;
} Block;

static inline int fail(Block *block, Warp *warp, s32 kind, s64 pc, s64 thread) {
    Fault *fault = &block->run->fault;
    (void)warp;
    fault->kind = kind, fault->pc = pc, fault->block = block->index, fault->thread = thread;
    return kind;
}
