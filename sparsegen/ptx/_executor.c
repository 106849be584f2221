/* PTX on the CPU: encoded kernels (encode.py) run warp by warp, every access checked. One function, run().
 *
 * The program is not trusted either: whatever it says, registers stay inside their frame and branches inside the code.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "_grid.h"

/* The bytes that each scalar case reads and writes: result, then operands a to d; 255: a predicate. */
static const u8 widths[SCALAR_CASES][5] = {
#undef CASE1
#undef CASE2
#undef CASE3
#undef CASE4
#undef SELECT
#undef TEST1
#undef TEST2
#define CASE1(number, D, A, ...) {sizeof(D), sizeof(A), 0, 0, 0},
#define CASE2(number, D, A, B, ...) {sizeof(D), sizeof(A), sizeof(B), 0, 0},
#define CASE3(number, D, A, B, C, ...) {sizeof(D), sizeof(A), sizeof(B), sizeof(C), 0},
#define CASE4(number, D, A, B, C, E, ...) {sizeof(D), sizeof(A), sizeof(B), sizeof(C), sizeof(E)},
#define SELECT(number, D, A, B, ...) {sizeof(D), sizeof(A), sizeof(B), 255, 0},
#define TEST1(number, A, ...) {255, sizeof(A), 0, 0, 0},
#define TEST2(number, A, B, ...) {255, sizeof(A), sizeof(B), 0, 0},
#include "_cases.h"
};

/* What the operands of the other instructions are: r a register, o one or none, p a predicate, q one or none. */
static const char *roles(const Instruction *i) {
    switch (i->op) {
        case PREDICATE: return "ppq";
        case LOAD: return "ooooooooo";
        case STORE: return i->count == 1 ? "or" : i->count == 2 ? "orr" : i->count == 4 ? "orrrr" : "orrrrrrrr";
        case ATOMIC: return i->count == 1 ? "oo..oooor" : i->count == 2 ? "oo..oooorr" : "oo..oooorrrr";
        case PARAMETER: return ".oooooooo";
        case BARRIER_VOTE: return i->mode == ADD ? "rp" : "pp";
        case WARP_BARRIER: return "..r";
        case SHUFFLE: return "rrrrqr";
        case VOTE: return i->mode == BALLOT ? "rpr" : "ppr";
        case MATCH: return "rrr.q";
        case REDUCE: return "rrr";
        case LOAD_MATRIX: return i->count == 1 ? "or" : i->count == 2 ? "orr" : "orrrr";
        case MATRIX_MULTIPLY: return i->type == T_F64 ? "rr..r...r.rr" : "rroorooororroo";
        case ACTIVE: return "r";
        case PACK: return i->count == 2 ? "rrr" : "rrrrr";
        case UNPACK: return "roooo";
        case COPY_ASYNC: return i->mode == COPY_START ? "rroq" : "";
        case RESIZE: return "rr";
        case BRANCH_TABLE: return "r";
        default: return "";
    }
}

/* Which of those operands are results, as bits. */
static u32 results(const Instruction *i) {
    switch (i->op) {
        case LOAD:
        case PARAMETER: return 0x1fe;
        case ATOMIC: return 0xf0;
        case SHUFFLE:
        case MATCH: return 0x11;
        case LOAD_MATRIX: return 0x1e;
        case MATRIX_MULTIPLY: return 0xf;
        case UNPACK: return 0x1e;
        case STORE:
        case WARP_BARRIER:
        case COPY_ASYNC:
        case BRANCH_TABLE: return 0;
        default: return 1;
    }
}

static u8 cycles_of(const Instruction *i) {
    switch (i->op) {
        case PACK:
        case UNPACK:
        case RESIZE: return 0; /* names of registers */
        case SHUFFLE:
        case VOTE:
        case MATCH:
        case REDUCE:
        case LOAD_MATRIX: return EXCHANGE_CYCLES;
        case MATRIX_MULTIPLY: return MATRIX;
        default: return ARITHMETIC;
    }
}

/* What an instruction waits for and what waits for it. */
static Flow flow_of(const Run *run, const Instruction *i) {
    Flow flow = {.cycles = cycles_of(i)};
    const s32 first_predicate = (s32)run->setup.frame_units;
    const u8 *wide = i->op < (u32)SCALAR_CASES ? widths[i->op] : NULL;
    const int scalar = wide != NULL, test = scalar && wide[0] == 255;
    const char *role = scalar ? "" : roles(i);
    if (i->guard >= 0) flow.read[flow.reads++] = first_predicate + i->guard;
    for (int k = 0; k < MOST_OPERANDS && (scalar ? k < 6 : role[k] != 0); ++k) {
        const u8 width = scalar && k < 5 ? wide[k] : 0;
        int predicate = scalar ? width == 255 : role[k] == 'p' || role[k] == 'q';
        if (test && k >= 4) predicate = 1;
        else if (scalar ? !width : role[k] == '.') continue;
        if (i->operand[k] < 0) continue;
        const s32 place = predicate ? first_predicate + i->operand[k] : i->operand[k];
        const int written = scalar ? k == 0 || (test && k == 4) : results(i) >> k & 1;
        if (written && flow.writes < 9) flow.write[flow.writes++] = place;
        else if (!written && flow.reads < 12) flow.read[flow.reads++] = place;
    }
    const s32 copies = first_predicate + (s32)run->setup.predicates; /* one place for all that are under way */
    if (i->op == COPY_ASYNC && i->mode == COPY_START) flow.write[flow.writes++] = copies;
    if (i->op == COPY_ASYNC && (i->mode == COPY_WAIT || i->mode == COPY_WAIT_ALL)) {
        flow.read[flow.reads++] = copies;
        flow.ends = 1;
    } else
        flow.ends = i->op == BRANCH || i->op == BRANCH_TABLE || i->op == EXIT || i->op == BARRIER ||
                    i->op == BARRIER_VOTE || i->op == WARP_BARRIER;
    return flow;
}

static int power_of_two(u32 x) { return x && !(x & (x - 1)); }

/* Whether an instruction can be run without looking again. */
static int sound(const Run *run, const Instruction *i) {
    const Setup *setup = &run->setup;
    if (i->guard < -1 || i->guard >= setup->predicates) return 0;
    if (i->op < (u32)SCALAR_CASES) {
        for (int k = 0; k < 5; ++k) {
            const s32 at = i->operand[k];
            const u8 width = widths[i->op][k];
            if (width == 255 ? at < 0 || at >= setup->predicates : width && (at < 0 || at >= setup->frame_units))
                return 0;
        }
        if (widths[i->op][0] == 255)
            for (int k = 4; k < 6; ++k)
                if (i->operand[k] < -1 || i->operand[k] >= setup->predicates) return 0;
        return 1;
    }
    const char *role = roles(i);
    for (int k = 0; role[k]; ++k) {
        const s32 at = i->operand[k];
        if (role[k] == '.') continue;
        const s64 most = role[k] == 'p' || role[k] == 'q' ? setup->predicates : setup->frame_units;
        if (at >= most || at < ((role[k] == 'o' || role[k] == 'q') ? -1 : 0)) return 0;
    }
    switch (i->op) {
        case BRANCH: return i->immediate >= 0 && i->immediate < run->instructions;
        case BRANCH_TABLE:
            return i->immediate >= 0 && i->operand[1] >= 0 && i->immediate + i->operand[1] <= run->table_entries;
        case LOAD:
        case STORE:
        case ATOMIC:
            return power_of_two(i->size) && i->size <= 8 && power_of_two(i->count) &&
                   i->count <= (i->op == ATOMIC ? 4 : 8) && i->size * i->count <= 32 && i->space <= LOCAL &&
                   (i->op != ATOMIC || i->space != LOCAL);
        case PARAMETER:
            return power_of_two(i->size) && i->size <= 8 && i->count >= 1 && i->count <= 8 && i->immediate >= 0 &&
                   i->immediate <= run->parameter_bytes - i->size * i->count;
        case WARP_BARRIER: return i->immediate >= 0 && i->immediate < setup->warp_barriers;
        case LOAD_MATRIX: return power_of_two(i->count) && i->count <= 4 && i->space == SHARED;
        case MATRIX_MULTIPLY:
            if (i->type == T_F64) return 1;
            if (i->type == T_F32 ? i->count != 4 && i->count != 8 : i->count != 8 && i->count != 16) return 0;
            for (u32 k = 0; k < (i->type == T_F32 ? i->count / 2u : i->count / 4u); ++k)
                if (i->operand[4 + k] < 0) return 0;
            for (u32 k = 0; k < (i->type == T_F32 ? i->count / 4u : i->count / 8u); ++k)
                if (i->operand[8 + k] < 0) return 0;
            for (int k = 2; k < 4; ++k) if (!i->mode && (i->operand[k] < 0 || i->operand[10 + k] < 0)) return 0;
            return 1;
        case PACK:
        case UNPACK: return i->count >= 2 && i->count <= 4 && power_of_two(i->count) && (i->size == 2 || i->size == 4);
        case COPY_ASYNC: return i->mode != COPY_START || i->size == 4 || i->size == 8 || i->size == 16;
        default: return 1;
    }
}

static int sound_program(const Run *run) {
    const Setup *setup = &run->setup;
    if (run->instructions < 1 || run->instructions >= INT32_MAX || run->code[run->instructions - 1].op != (u32)EXIT ||
        run->code[run->instructions - 1].guard != -1)
        return 0; /* else a warp could run past the end */
    if (setup->frame_units < 0 || setup->frame_units > 1 << 18 || setup->predicates < 0 ||
        setup->predicates > 1 << 16 || setup->shared_bytes < 0 || setup->shared_bytes > 1 << 20 ||
        setup->local_bytes < 0 || setup->local_bytes > 1 << 20 || setup->shared_shift < 0 || setup->shared_shift > 3 ||
        setup->global_shift < 0 || setup->global_shift > 3 || setup->warp_barriers < 0 ||
        setup->warp_barriers > 1 << 16 || setup->multiprocessors < 1 || setup->multiprocessors > 1 << 10 ||
        setup->l1_bytes < 0 || setup->l1_bytes > 1 << 24 || setup->l2_bytes < 0 || setup->l2_bytes > 1 << 30 ||
        setup->budget < 0 || setup->warp_budget < 0 || setup->l1_cycles < 0 || setup->l1_cycles > 1 << 20 ||
        setup->l2_cycles < 0 || setup->l2_cycles > 1 << 20 || setup->memory_cycles < 0 ||
        setup->memory_cycles > 1 << 20 || setup->stride < 1 || setup->stride > INT32_MAX)
        return 0;
    u64 threads = 1;
    for (int k = 0; k < 3; ++k) {
        if (setup->grid[k] < 1 || setup->grid[k] > INT32_MAX || setup->block[k] < 1 || setup->block[k] > 1024) return 0;
        threads *= (u64)setup->block[k];
    }
    if (threads > 1024 || setup->grid[1] > 65535 || setup->grid[2] > 65535) return 0;
    for (s64 k = 0; k < run->table_entries; ++k)
        if (run->tables[k] < 0 || run->tables[k] >= run->instructions) return 0;
    for (s64 k = 0; k < run->constant_count; ++k)
        if (run->constants[3 * k] >= (u64)setup->frame_units) return 0;
    for (s64 k = 0; k < run->predicate_constant_count; ++k)
        if (run->predicate_constants[2 * k] >= (u64)setup->predicates) return 0;
    for (s64 k = 0; k < run->special_count; ++k)
        if (run->specials[2 * k] < 0 || run->specials[2 * k] > TOTAL_SHARED || run->specials[2 * k + 1] < 0 ||
            run->specials[2 * k + 1] >= setup->frame_units)
            return 0;
    for (s64 k = 0; k < run->instructions; ++k)
        if (!sound(run, &run->code[k])) return 0;
    return 1;
}

static int pause_run(Run *run) { /* between instructions: whether the user wants an end */
    PyEval_RestoreThread(run->state);
    const int interrupted = PyErr_CheckSignals();
    run->state = PyEval_SaveThread();
    return interrupted;
}

enum { SPARE = 256 }; /* bytes behind the last register: its widest use begins inside the frame */

/* Memory for a grid, the run, and the memory back. */
static int execute(Run *run) {
    const Setup *setup = &run->setup;
    Block block = {.run = run, .threads = (u32)(setup->block[0] * setup->block[1] * setup->block[2])};
    block.warps = (block.threads + 31) / 32;
    const u32 frames = setup->barriers ? block.warps : 1;
    const size_t frame_bytes = ((size_t)setup->frame_units * UNIT + SPARE + 63) / 64 * 64;
    const size_t local_bytes = (size_t)setup->local_bytes * 32;
    const s64 blocks = setup->grid[0] * setup->grid[1] * setup->grid[2];
    int status = NO_MEMORY;
    Warp *warps = calloc(frames, sizeof(Warp));
    u8 *registers = aligned_alloc(64, frame_bytes * frames), *local = calloc(frames, local_bytes + 1);
    u32 *predicates = calloc((size_t)frames * (setup->predicates + 1), sizeof(u32));
    u32 *seen = calloc((size_t)frames * (setup->warp_barriers + 1), sizeof(u32));
    block.shared = malloc((size_t)setup->shared_bytes + 1);
    const int counted = run->blocks != NULL;
    const size_t places = (size_t)(setup->frame_units + setup->predicates) + 1;
    u64 *cycles = counted ? calloc(frames * places, sizeof(u64)) : NULL;
    if (counted) run->l1 = calloc((size_t)setup->multiprocessors, sizeof(Cache));
    if (counted) run->flows = calloc((size_t)run->instructions, sizeof(Flow));
    if (setup->fences && blocks <= 1 << 20) run->releases = calloc((size_t)blocks, sizeof(Release));
    int complete = warps && registers && local && predicates && seen && block.shared &&
                   (!counted || (run->l1 && run->flows && cycles)) &&
                   shadow_make(&block.shadow, (u64)setup->shared_bytes, (int)setup->shared_shift);
    if (complete && counted) {
        complete = cache_make(&run->l2, (u64)setup->l2_bytes, 16);
        for (s64 k = 0; k < run->instructions; ++k) run->flows[k] = flow_of(run, &run->code[k]);
        for (s64 k = 0; k < setup->multiprocessors; ++k) complete &= cache_make(&run->l1[k], (u64)setup->l1_bytes, 4);
    }
    for (s64 k = 0; complete && k < run->buffer_count; ++k)
        if (run->buffers[k].writable)
            complete = shadow_make(&run->buffers[k].shadow, run->buffers[k].length, (int)setup->global_shift);
    if (complete) {
        for (size_t k = 0; k < frame_bytes * frames / 4; ++k) ((u32 *)(void *)registers)[k] = POISON;
        for (u32 k = 0; k < frames; ++k) {
            Warp *warp = &warps[k];
            warp->frame = registers + frame_bytes * k, warp->local = local + local_bytes * k;
            warp->predicates = predicates + (size_t)k * setup->predicates,
            warp->seen = seen + (size_t)k * setup->warp_barriers;
            warp->ready = counted ? cycles + places * k : NULL;
            for (s64 c = 0; c < run->constant_count; ++c)
                for (u32 lane = 0; lane < 32; ++lane)
                    set_value(warp->frame + run->constants[3 * c] * UNIT, lane, (u32)run->constants[3 * c + 1],
                              run->constants[3 * c + 2]);
            for (s64 c = 0; c < run->predicate_constant_count; ++c)
                warp->predicates[run->predicate_constants[2 * c]] = run->predicate_constants[2 * c + 1];
        }
        run->next_pause = PAUSE_EVERY;
        status = run_grid(run, &block, warps) ? (int)run->fault.kind : OK;
    }
    run->fault.kind = status;
    for (s64 k = 0; k < run->buffer_count; ++k) {
        const Buffer *buffer = &run->buffers[k];
        for (u64 line = 0; buffer->turns && line <= buffer->length / 128; ++line)
            if (buffer->turns[line] > run->hottest) run->hottest = buffer->turns[line];
        free(buffer->turns);
        shadow_free(&run->buffers[k].shadow);
    }
    shadow_free(&block.shadow);
    for (s64 k = 0; run->l1 && k < setup->multiprocessors; ++k) free(run->l1[k].lines);
    for (u32 k = 0; warps && k < frames; ++k) free(warps[k].copies), free(warps[k].met);
    free(run->l1), free(run->l2.lines), free(run->releases), free(run->flows), free(cycles);
    free(warps), free(registers), free(local), free(predicates), free(seen), free(block.shared);
    return status;
}

/* ---- Python ---- */

enum { CODE, TABLES, CONSTANTS, PREDICATES, SPECIALS, PARAMETERS, SETUP, VIEWS };

static int take_buffers(Run *run, PyObject *listed, Py_buffer *views, Py_ssize_t count) {
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *item = PyList_GetItem(listed, k), *array;
        int writable, fresh;
        if (!item || !PyArg_ParseTuple(item, "Opp", &array, &writable, &fresh)) return 0;
        if (PyObject_GetBuffer(array, &views[k], writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return 0;
        run->buffers[k] = (Buffer){views[k].buf, (u64)views[k].len, writable, fresh, {NULL, NULL, 0, 0}, NULL};
        run->buffer_count = k + 1;
    }
    return 1;
}

static PyObject *run_program(PyObject *self, PyObject *args) {
    Py_buffer view[VIEWS] = {{NULL}}, blocks = {NULL}, lines = {NULL}, *arrays = NULL;
    PyObject *listed, *block_counters, *line_counters, *answer = NULL;
    Run run = {.pause = pause_run};
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*O!OO:run", &view[0], &view[1], &view[2], &view[3], &view[4], &view[5],
                          &view[6], &PyList_Type, &listed, &block_counters, &line_counters))
        return NULL;
    count = PyList_Size(listed);
    run.buffers = calloc((size_t)count + 1, sizeof(Buffer)), arrays = calloc((size_t)count + 1, sizeof(Py_buffer));
    if (!run.buffers || !arrays) {
        PyErr_NoMemory();
        goto done;
    }
    if (!take_buffers(&run, listed, arrays, count)) goto done;
    if (block_counters != Py_None && (PyObject_GetBuffer(block_counters, &blocks, PyBUF_WRITABLE) ||
                                      PyObject_GetBuffer(line_counters, &lines, PyBUF_WRITABLE)))
        goto done;
    run.code = view[CODE].buf, run.instructions = view[CODE].len / (s64)sizeof(Instruction);
    run.tables = view[TABLES].buf, run.table_entries = view[TABLES].len / 4;
    run.constants = view[CONSTANTS].buf, run.constant_count = view[CONSTANTS].len / 24;
    run.predicate_constants = view[PREDICATES].buf, run.predicate_constant_count = view[PREDICATES].len / 8;
    run.specials = view[SPECIALS].buf, run.special_count = view[SPECIALS].len / 8;
    run.parameters = view[PARAMETERS].buf, run.parameter_bytes = view[PARAMETERS].len;
    run.blocks = blocks.buf, run.lines = lines.buf;
    int sized = view[SETUP].len == sizeof(Setup);
    if (sized) {
        memcpy(&run.setup, view[SETUP].buf, sizeof(Setup));
        sized = sound_program(&run);
    }
    if (sized && run.blocks)
        sized = (u64)blocks.len ==
                    sizeof(BlockCounters) * (u64)(run.setup.grid[0] * run.setup.grid[1] * run.setup.grid[2]) &&
                (u64)lines.len == sizeof(LineCounters) * (u64)run.instructions;
    if (!sized) {
        PyErr_SetString(PyExc_ValueError, "the encoded program is not sound");
        goto done;
    }
    run.state = PyEval_SaveThread();
    const int status = execute(&run);
    PyEval_RestoreThread(run.state);
    if (status == NO_MEMORY) PyErr_NoMemory();
    else if (status != INTERRUPTED) {
        const Fault *f = &run.fault;
        answer = Py_BuildValue("(LLLLLLLLLLKK)", (long long)f->kind, (long long)f->pc, (long long)f->block,
                               (long long)f->thread, (long long)f->buffer, (long long)f->offset, (long long)f->size,
                               (long long)f->access, (long long)f->other, (long long)f->other_access,
                               (unsigned long long)run.total, (unsigned long long)run.hottest);
    }
done:
    for (s64 k = 0; arrays && k < run.buffer_count; ++k) PyBuffer_Release(&arrays[k]);
    for (int k = 0; k < VIEWS; ++k) PyBuffer_Release(&view[k]);
    if (blocks.obj) PyBuffer_Release(&blocks);
    if (lines.obj) PyBuffer_Release(&lines);
    free(arrays), free(run.buffers);
    return answer;
}

static PyMethodDef methods[] = {
    {"run", run_program, METH_VARARGS,
     "run(code, tables, constants, predicates, specials, parameters, setup, buffers, block_counters, line_counters)"},
    {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "sparsegen.ptx._executor", "PTX on the CPU.", -1, methods};

PyMODINIT_FUNC PyInit__executor(void) { return PyModule_Create(&module); }
