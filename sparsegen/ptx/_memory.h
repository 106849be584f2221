/* Loads, stores, atomics and asynchronous copies: every address is looked up, every access is checked. */
#pragma once
#include "_arithmetic.h"
#include "_counters.h"
#include "_shadow.h"

#define REGISTER(k) (warp->frame + (size_t)(u32)i->operand[k] * UNIT)

static inline u64 value_of(const u8 *at, u32 lane, u32 width) {
    switch (width) {
        case 2: return ((const u16 *)(const void *)at)[lane];
        case 4: return ((const u32 *)(const void *)at)[lane];
        default: return ((const u64 *)(const void *)at)[lane];
    }
}
static inline void set_value(u8 *at, u32 lane, u32 width, u64 value) {
    switch (width) {
        case 2: ((u16 *)(void *)at)[lane] = (u16)value; break;
        case 4: ((u32 *)(void *)at)[lane] = (u32)value; break;
        default: ((u64 *)(void *)at)[lane] = value; break;
    }
}
static inline u64 fetched(const u8 *at, u32 size, int is_signed) {
    u64 value = 0;
    switch (size) {
        case 1: return is_signed ? (u64)(s64)(s8)*at : *at;
        case 2: memcpy(&value, at, 2); return is_signed ? (u64)(s64)(s16)value : value;
        case 4: memcpy(&value, at, 4); return is_signed ? (u64)(s64)(s32)value : value;
        default: memcpy(&value, at, 8); return value;
    }
}
static inline void put(u8 *at, u32 size, u64 value) {
    switch (size) {
        case 1: *at = (u8)value; break;
        case 2: memcpy(at, &value, 2); break;
        case 4: memcpy(at, &value, 4); break;
        default: memcpy(at, &value, 8); break;
    }
}

typedef struct {
    u8 *at;
    u64 offset;
    s64 buffer;
    Shadow *shadow; /* NULL: nobody else can be in the way */
    int fresh;
} Place;

static int fault_at(Block *block, Warp *warp, s32 kind, s64 pc, u32 thread, const Place *place, u64 bytes, int access) {
    Fault *fault = &block->run->fault;
    fault->buffer = place->buffer, fault->offset = (s64)place->offset, fault->size = (s64)bytes, fault->access = access;
    return fail(block, warp, kind, pc, thread);
}

/* Where an address lies, or the fault of it. */
static inline int locate(Block *block, Warp *warp, s64 pc, u32 lane, u32 thread, int space, u64 address, u64 bytes,
                         int access, Place *place) {
    const Run *run = block->run;
    u64 length;
    place->shadow = NULL, place->fresh = 0;
    if (space == GENERIC) {
        const u64 window = address >> OFFSET_BITS;
        if (window == SHARED_WINDOW || window == LOCAL_WINDOW) {
            space = window == SHARED_WINDOW ? SHARED : LOCAL;
            address &= OFFSET_MASK;
        }
    }
    if (space == SHARED) {
        place->buffer = IN_SHARED, place->offset = address, length = (u64)run->setup.shared_bytes;
        place->at = block->shared + (address < length ? address : 0);
        place->shadow = &block->shadow, place->fresh = 1;
    } else if (space == LOCAL) {
        place->buffer = IN_LOCAL, place->offset = address, length = (u64)run->setup.local_bytes;
        place->at = warp->local + (size_t)lane * length + (address < length ? address : 0);
    } else {
        const u64 id = address >> OFFSET_BITS;
        if (UNLIKELY(id - 1 >= (u64)run->buffer_count)) {
            place->buffer = NOWHERE, place->offset = address;
            return fault_at(block, warp, OUT_OF_BOUNDS, pc, thread, place, bytes, access);
        }
        Buffer *buffer = &run->buffers[id - 1];
        place->buffer = (s64)id - 1, place->offset = address & OFFSET_MASK, length = buffer->length;
        place->at = buffer->base + (place->offset < length ? place->offset : 0);
        if (buffer->writable) place->shadow = &buffer->shadow, place->fresh = buffer->fresh;
        else if (UNLIKELY(access != READING) && place->offset < length)
            return fault_at(block, warp, READ_ONLY, pc, thread, place, bytes, access);
    }
    if (UNLIKELY(place->offset > length || bytes > length - place->offset))
        return fault_at(block, warp, OUT_OF_BOUNDS, pc, thread, place, bytes, access);
    if (UNLIKELY(place->offset & (bytes - 1)))
        return fault_at(block, warp, MISALIGNED, pc, thread, place, bytes, access);
    return OK;
}

static inline int check_access(Block *block, Warp *warp, s64 pc, u32 thread, Place *place, u64 bytes, int access,
                               int strong, int same) {
    const int kind = shadow_access(block, warp, place->shadow, place->buffer == IN_SHARED, place->fresh, pc, thread,
                                   place->offset, bytes, access, strong, same);
    return UNLIKELY(kind) ? fault_at(block, warp, kind, pc, thread, place, bytes, access) : OK;
}

static inline u64 address_of(const Warp *warp, const Instruction *i, u32 k, u32 lane) {
    u64 base = 0;
    if (i->operand[k] >= 0)
        base = i->flags & ADDRESS_32 ? ((u32 *)(void *)REGISTER(k))[lane] : ((u64 *)(void *)REGISTER(k))[lane];
    return base + (u64)i->immediate;
}

static void count_access(Block *block, Warp *warp, s64 pc, const u64 *address, u32 mask, u32 bytes, int in_shared,
                         int access) {
    if (in_shared) count_shared(block, warp, pc, address, mask, bytes, access);
    else count_global(block, warp, pc, address, mask, bytes, access);
}

/* operand 0: the address; 1 to 8: the data, -1 where it is not wanted */
static int load_or_store(Block *block, Warp *warp, const Instruction *i, s64 pc, u32 first_thread, u32 mask,
                         int access) {
    const u32 size = i->size, count = i->count, bytes = size * count;
    const int strong = (i->flags & STRONG) != 0;
    u64 address[32];
    s64 buffer = IN_LOCAL;
    if (block->counters && access == READING) ++warp->loads;
    EACH(lane, mask) {
        const u32 thread = first_thread + lane;
        Place place;
        address[lane] = address_of(warp, i, 0, lane);
        if (locate(block, warp, pc, lane, thread, i->space, address[lane], bytes, access, &place)) return 1;
        buffer = place.buffer;
        if (access == READING) {
            if (place.shadow && check_access(block, warp, pc, thread, &place, bytes, READING, strong, 0)) return 1;
            for (u32 k = 0; k < count; ++k)
                if (i->operand[1 + k] >= 0)
                    set_value(REGISTER(1 + k), lane, i->width, fetched(place.at + k * size, size, i->flags & SIGNED));
        } else {
            u8 data[32];
            for (u32 k = 0; k < count; ++k) put(data + k * size, size, value_of(REGISTER(1 + k), lane, i->width));
            const int same = !memcmp(place.at, data, bytes);
            if (place.shadow && check_access(block, warp, pc, thread, &place, bytes, WRITING, strong, same)) return 1;
            memcpy(place.at, data, bytes);
        }
        if (UNLIKELY(i->flags & (ACQUIRE | RELEASE)))
            synchronise(block, warp, thread, i->flags & ACQUIRE, i->flags & RELEASE);
    }
    if (block->counters && buffer != IN_LOCAL)
        count_access(block, warp, pc, address, mask, bytes, buffer == IN_SHARED, access);
    return OK;
}

enum { ADD, MIN, MAX, AND, OR, XOR, EXCHANGE, COMPARE, INCREMENT, DECREMENT };
enum { T_U16, T_U32, T_S32, T_U64, T_S64, T_F16, T_BF16, T_F16X2, T_BF16X2, T_F32, T_F64 };

static u64 sum_of(u32 type, u64 x, u64 y) {
    switch (type) {
        case T_F32: return f32_bits(bits_f32((u32)x) + bits_f32((u32)y));
        case T_F64: return f64_bits(bits_f64(x) + bits_f64(y));
        case T_F16: return to_f16(odd_sum(from_f16((u32)x), from_f16((u32)y)));
        case T_BF16: return to_bf16(odd_sum(from_bf16((u32)x), from_bf16((u32)y)));
        case T_F16X2: return PACKED(sum_of(T_F16, x & 65535, y & 65535), sum_of(T_F16, x >> 16, y >> 16));
        case T_BF16X2: return PACKED(sum_of(T_BF16, x & 65535, y & 65535), sum_of(T_BF16, x >> 16, y >> 16));
        default: return x + y;
    }
}

static u64 changed(u32 mode, u32 type, u64 old, u64 b, u64 c) {
    int less;
    switch (mode) {
        case ADD: return sum_of(type, old, b);
        case MIN:
        case MAX:
            if (type >= T_F16 && type <= T_BF16X2) {
                const int greatest = mode == MAX;
                if (type == T_F16) return pick_f16((u32)old, (u32)b, greatest, 0);
                if (type == T_BF16) return pick_bf16((u32)old, (u32)b, greatest, 0);
                if (type == T_F16X2)
                    return PACKED(pick_f16(old & 65535, b & 65535, greatest, 0),
                                  pick_f16((u32)old >> 16, (u32)b >> 16, greatest, 0));
                return PACKED(pick_bf16(old & 65535, b & 65535, greatest, 0),
                              pick_bf16((u32)old >> 16, (u32)b >> 16, greatest, 0));
            }
            less = type == T_S32 ? (s32)b < (s32)old : type == T_S64 ? (s64)b < (s64)old : b < old;
            if (mode == MAX) less = type == T_S32 ? (s32)b > (s32)old : type == T_S64 ? (s64)b > (s64)old : b > old;
            return less ? b : old;
        case AND: return old & b;
        case OR: return old | b;
        case XOR: return old ^ b;
        case EXCHANGE: return b;
        case COMPARE: return old == b ? c : old;
        case INCREMENT: return old >= b ? 0 : old + 1;
        default: return old == 0 || old > b ? b : old - 1;
    }
}

/* operand 0: the address; 1: the value to swap in; 4 to 7: the old values; 8 to 11: the operands */
static int atomic(Block *block, Warp *warp, const Instruction *i, s64 pc, u32 first_thread, u32 mask) {
    const u32 size = i->size, bytes = size * i->count;
    u64 address[32];
    int in_shared = 0;
    EACH(lane, mask) {
        const u32 thread = first_thread + lane;
        Place place;
        address[lane] = address_of(warp, i, 0, lane);
        if (locate(block, warp, pc, lane, thread, i->space, address[lane], bytes, CHANGING, &place)) return 1;
        in_shared = place.buffer == IN_SHARED;
        if (place.shadow && check_access(block, warp, pc, thread, &place, bytes, CHANGING, 1, 0)) return 1;
        for (u32 k = 0; k < i->count; ++k) {
            const u64 old = fetched(place.at + k * size, size, 0), b = value_of(REGISTER(8 + k), lane, i->width);
            const u64 c = i->operand[1] >= 0 ? value_of(REGISTER(1), lane, i->width) : 0;
            put(place.at + k * size, size, changed(i->mode, i->type, old, b, c));
            if (i->operand[4 + k] >= 0) set_value(REGISTER(4 + k), lane, i->width, old);
        }
        synchronise(block, warp, thread, i->operand[4] >= 0, 1);
    }
    if (block->counters) count_access(block, warp, pc, address, mask, bytes, in_shared, CHANGING);
    return OK;
}

/* ---- cp.async: data is taken when asked for and arrives when waited for ---- */

enum { MOST_COPIES = 1 << 16 };
enum { COPY_START, COPY_COMMIT, COPY_WAIT, COPY_WAIT_ALL };

static int arrive(Block *block, Warp *warp, u32 first_thread, u32 mask, s64 newest) {
    u32 kept = 0;
    for (u32 k = 0; k < warp->copy_count; ++k) {
        Copy *copy = &warp->copies[k];
        if (!(mask >> copy->lane & 1) ||
            (newest >= 0 && (s64)copy->group + newest >= (s64)warp->copy_group[copy->lane])) {
            warp->copies[kept++] = *copy;
            continue;
        }
        Place place = {block->shared + copy->to, copy->to, IN_SHARED, &block->shadow, 1};
        if (check_access(block, warp, copy->pc, first_thread + copy->lane, &place, copy->size, WRITING, 0,
                         !memcmp(place.at, copy->data, copy->size)))
            return 1;
        memcpy(place.at, copy->data, copy->size);
    }
    warp->copy_count = kept;
    return OK;
}

/* operand 0: to, 1: from, 2: bytes to take or -1, 3: predicate of lanes that take nothing or -1; immediate: the offset
 * of `to` in the upper half, of `from` in the lower */
static int copy_async(Block *block, Warp *warp, const Instruction *i, s64 pc, u32 first_thread, u32 mask) {
    if (i->mode == COPY_COMMIT) {
        EACH(lane, mask) ++warp->copy_group[lane];
        return OK;
    }
    if (i->mode == COPY_WAIT || i->mode == COPY_WAIT_ALL)
        return arrive(block, warp, first_thread, mask, i->mode == COPY_WAIT ? i->immediate : -1);
    u64 from[32];
    u32 taking = 0;
    EACH(lane, mask) {
        const u32 thread = first_thread + lane;
        Copy copy = {0, lane, i->size, warp->copy_group[lane], (u32)pc, {0}};
        Place to, source;
        const u64 target =
            (i->flags & ADDRESS_32 ? ((u32 *)(void *)REGISTER(0))[lane] : ((u64 *)(void *)REGISTER(0))[lane]) +
            (u64)(s64)(s32)(i->immediate >> 32);
        if (locate(block, warp, pc, lane, thread, SHARED, target, i->size, WRITING, &to)) return 1;
        copy.to = to.offset;
        u32 take = i->size;
        if (i->operand[2] >= 0) take = ((u32 *)(void *)REGISTER(2))[lane];
        if (i->operand[3] >= 0 && warp->predicates[i->operand[3]] >> lane & 1) take = 0;
        if (take > i->size) take = i->size;
        from[lane] = ((u64 *)(void *)REGISTER(1))[lane] + (u64)(s64)(s32)i->immediate;
        if (take) {
            if (locate(block, warp, pc, lane, thread, GLOBAL, from[lane], take & (take - 1) ? i->size : take, READING,
                       &source))
                return 1;
            if (source.shadow && check_access(block, warp, pc, thread, &source, i->size, READING, 0, 0)) return 1;
            memcpy(copy.data, source.at, take);
            taking |= 1u << lane;
        }
        if (warp->copy_count == warp->copy_room) {
            const u32 room = warp->copy_room ? warp->copy_room * 2 : 64;
            if (room > MOST_COPIES) return fail(block, warp, UNSUPPORTED, pc, thread);
            Copy *copies = realloc(warp->copies, room * sizeof(Copy));
            if (!copies) return fail(block, warp, NO_MEMORY, pc, thread);
            warp->copies = copies, warp->copy_room = room;
        }
        warp->copies[warp->copy_count++] = copy;
    }
    if (block->counters && taking) count_access(block, warp, pc, from, taking, i->size, 0, READING);
    return OK;
}
