/* What a run costs, counted where it happens: sectors of 32 bytes, caches of 128-byte lines with four sectors each. */
#pragma once
#include "_scoreboard.h"

static int cache_make(Cache *cache, u64 bytes, u32 ways) {
    u32 sets = 1;
    while ((u64)sets * 2 * ways * 128 <= bytes) sets *= 2;
    if (bytes / 128 / sets > ways) ways = (u32)(bytes / 128 / sets); /* what is no power of two goes there */
    cache->sets = sets, cache->ways = ways, cache->clock = 0;
    cache->lines = calloc((size_t)sets * ways, sizeof(Line));
    return cache->lines != NULL;
}

static int cache_hit(Cache *cache, u64 sector) { /* and takes it in, in the place of the line unused for longest */
    const u64 line = (sector >> 2) + 1;
    const u32 bit = 1u << (sector & 3);
    Line *set = cache->lines + (size_t)((u32)(line ^ line >> 13) & (cache->sets - 1)) * cache->ways;
    Line *oldest = set;
    ++cache->clock;
    for (u32 way = 0; way < cache->ways; ++way) {
        if (set[way].tag == line) {
            const int hit = (set[way].sectors & bit) != 0;
            set[way].sectors |= bit, set[way].time = cache->clock;
            return hit;
        }
        if (set[way].time < oldest->time) oldest = &set[way];
    }
    oldest->tag = line, oldest->time = cache->clock, oldest->sectors = bit;
    return 0;
}

static void cache_forget(Cache *cache, u64 sector) { /* written past the L1 */
    const u64 line = (sector >> 2) + 1;
    Line *set = cache->lines + (size_t)((u32)(line ^ line >> 13) & (cache->sets - 1)) * cache->ways;
    for (u32 way = 0; way < cache->ways; ++way)
        if (set[way].tag == line) set[way].sectors &= ~(1u << (sector & 3));
}

/* The different values of addresses >> shift, in the order lanes come: at most `room` of them. */
static u32 different(const u64 *address, u32 mask, int shift, u64 *found) {
    u32 count = 0;
    EACH(lane, mask) {
        const u64 value = address[lane] >> shift;
        u32 k = count;
        while (k && found[k - 1] != value) --k;
        if (!k) found[count++] = value;
    }
    return count;
}

/* Atomics that meet at the L2 take turns: one each for those of a request on the same address, and one each for the
 * requests to the same line; those of 8 bytes take two. */
static void count_turns(Block *block, const u64 *address, u32 mask, u32 bytes, const u64 *lines, u32 count) {
    for (u32 k = 0; k < count; ++k) {
        const u64 id = lines[k] >> (OFFSET_BITS - 7);
        if (id - 1 >= (u64)block->run->buffer_count) continue; /* generic: other lanes may be at shared memory */
        Buffer *buffer = &block->run->buffers[id - 1];
        u32 most = 0;
        EACH(lane, mask) {
            u32 alike = 0;
            if (address[lane] >> 7 != lines[k]) continue;
            for (u32 left = mask; left; left &= left - 1) alike += address[__builtin_ctz(left)] == address[lane];
            if (alike > most) most = alike;
        }
        if (bytes > 4) most *= 2;
        block->counters->atomic_turns += most;
        if (!buffer->turns) buffer->turns = calloc((size_t)(buffer->length / 128 + 1), sizeof(u32));
        if (buffer->turns) buffer->turns[lines[k] & (OFFSET_MASK >> 7)] += most;
    }
}

/* A request of a warp to global memory: loads look into the L1, stores and atomics go to the L2. */
static void count_global(Block *block, Warp *warp, s64 pc, const u64 *address, u32 mask, u32 bytes, int access) {
    const Setup *setup = &block->run->setup;
    BlockCounters *counters = block->counters;
    LineCounters *line = &block->run->lines[pc];
    u64 sectors[32], lines[32];
    const u32 per_lane = bytes > 32 ? bytes / 32 : 1, count = different(address, mask, 5, sectors);
    const u32 line_count = different(address, mask, 7, lines);
    s64 cycles = access == READING ? setup->l1_cycles : setup->l2_cycles;
    ++counters->requests;
    counters->lines += line_count;
    counters->bytes += (u64)bytes * (u32)__builtin_popcount(mask);
    counters->sectors += count * per_lane, line->sectors += count * per_lane;
    for (u32 k = 0; k < count * per_lane; ++k) {
        const u64 sector = sectors[k / per_lane] + k % per_lane;
        if (access == READING && cache_hit(block->l1, sector)) continue;
        if (access != READING) cache_forget(block->l1, sector);
        ++counters->l1_misses, ++line->l1_misses;
        if (cycles < setup->l2_cycles) cycles = setup->l2_cycles;
        if (cache_hit(&block->run->l2, sector)) continue;
        ++counters->l2_misses;
        if (cycles < setup->memory_cycles) cycles = setup->memory_cycles;
    }
    answer(warp, &block->run->flows[pc], (u64)cycles, line_count);
    if (access == CHANGING) {
        count_turns(block, address, mask, bytes, lines, line_count);
        const u32 words = different(address, mask, 2, sectors), lanes = (u32)__builtin_popcount(mask);
        counters->atomics += lanes;
        counters->atomic_conflicts += lanes - words, line->conflicts += lanes - words;
    }
}

/* Shared memory has 32 banks of 4 bytes; lanes that want different words of one bank take turns. */
static void count_shared(Block *block, Warp *warp, s64 pc, const u64 *offset, u32 mask, u32 bytes, int access) {
    u64 words[32];
    u32 turns[32] = {0}, most = 1;
    const u32 count = different(offset, mask, 2, words), per_lane = bytes > 4 ? bytes / 4 : 1;
    for (u32 k = 0; k < count; ++k)
        for (u32 j = 0; j < per_lane; ++j) {
            const u32 bank = (u32)(words[k] + j) & 31;
            if (++turns[bank] > most) most = turns[bank];
        }
    const u32 least = (count * per_lane + 31) / 32; /* wide accesses take several turns in any case */
    answer(warp, &block->run->flows[pc], EXCHANGE_CYCLES + most - 1, 0);
    block->counters->shared_waves += most;
    block->counters->bank_conflicts += most > least ? most - least : 0;
    block->run->lines[pc].conflicts += most > least ? most - least : 0;
    if (access == CHANGING) {
        const u32 lanes = (u32)__builtin_popcount(mask);
        block->counters->atomics += lanes, block->counters->atomic_conflicts += lanes - count;
    }
}
