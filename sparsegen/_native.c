/* The call path of CPU kernels: operand checks, a persistent thread pool, and kernels called through their doors.
 *
 * A Plan holds launches; a launch is a door (see prelude.py), the words it reads and cut points of its work items.
 * Everything a call needs is computed when the Plan is made, so that a call costs two buffer requests and the kernel.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Door)(const int64_t *words, const void *x, void *y, double alpha, double beta, uint32_t *status,
                     int64_t begin, int64_t end);

typedef struct {
    Door door;
    int64_t *words;
    int64_t *cuts; /* pieces + 1 */
    int64_t pieces;
    int later; /* an earlier launch has applied beta */
} Launch;

/* ---- thread pool: every thread owns a run of pieces and, when done, takes what others have left ---- */

enum { MOST_THREADS = 256, SPINS = 4000 };

typedef struct {
    const Launch *launch;
    const void *x;
    void *y;
    double alpha, beta;
    _Atomic uint32_t status;
    int threads, cpu;
} Job;

static pthread_mutex_t pool_busy = PTHREAD_MUTEX_INITIALIZER; /* one job at a time; who finds it taken runs alone */
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER;
static Job *pool_job;
static atomic_uint pool_generation;
static int pool_size;
static unsigned pool_joined[MOST_THREADS]; /* the generation at which each thread was made: earlier jobs are not its own */
/* Threads at work on the job. Whoever is late finds it closed: nobody waits for a thread that has not begun. */
enum { CLOSED = 1 << 30 };
static atomic_int pool_working = CLOSED;
static struct {
    _Atomic int64_t next;
    char apart[56]; /* a cache line each */
} claim[MOST_THREADS];

static int this_cpu(void) {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

/* Two threads that share a processor take turns, and the system may leave them there for milliseconds. */
static void leave_cpu(int cpu) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (cpu < 0 || cpu != sched_getcpu() || sched_getaffinity(getpid(), sizeof allowed, &allowed)) return;
    CPU_CLR(cpu, &allowed);
    if (CPU_COUNT(&allowed)) sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(Job *job, int thread) {
    const Launch *launch = job->launch;
    uint32_t status = 0;
    for (int turn = 0; turn < job->threads; ++turn) {
        int owner = (thread + turn) % job->threads;
        int64_t last = launch->pieces * (owner + 1) / job->threads;
        for (int64_t piece; (piece = atomic_fetch_add(&claim[owner].next, 1)) < last;)
            if (launch->cuts[piece] < launch->cuts[piece + 1])
                launch->door(launch->words, job->x, job->y, job->alpha, job->beta, &status, launch->cuts[piece],
                             launch->cuts[piece + 1]);
    }
    if (status) atomic_store(&job->status, 1);
}

static void *pool_thread(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned seen = pool_joined[thread];
    for (;;) {
        for (int spin = 0; spin < SPINS && atomic_load(&pool_generation) == seen; ++spin) relax();
        if (atomic_load(&pool_generation) == seen) {
            pthread_mutex_lock(&pool_mutex);
            while (atomic_load(&pool_generation) == seen) pthread_cond_wait(&pool_wake, &pool_mutex);
            pthread_mutex_unlock(&pool_mutex);
        }
        seen = atomic_load(&pool_generation);
        int working = atomic_load(&pool_working);
        while (!(working & CLOSED) && !atomic_compare_exchange_weak(&pool_working, &working, working + 1)) continue;
        if (working & CLOSED) continue;
        Job *job = pool_job;
        leave_cpu(job->cpu);
        if (thread < job->threads) work(job, thread);
        atomic_fetch_sub(&pool_working, 1);
    }
    return NULL;
}

static void pool_forget(void) { /* after fork the child has no pool threads: make new ones when wanted */
    pthread_mutex_init(&pool_busy, NULL);
    pthread_mutex_init(&pool_mutex, NULL);
    pthread_cond_init(&pool_wake, NULL);
    pool_size = 0;
    atomic_store(&pool_generation, 0);
    atomic_store(&pool_working, CLOSED);
}

static int pool_grow(int threads) { /* the caller counts as one */
    while (pool_size + 1 < threads) {
        pthread_t id;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pool_joined[pool_size + 1] = atomic_load(&pool_generation);
        int failed = pthread_create(&id, &attributes, pool_thread, (void *)(intptr_t)(pool_size + 1));
        pthread_attr_destroy(&attributes);
        if (failed) break;
        ++pool_size;
    }
    return pool_size + 1;
}

static uint32_t run_alone(const Launch *launch, const void *x, void *y, double alpha, double beta) {
    uint32_t status = 0;
    int64_t end = launch->cuts[launch->pieces];
    if (end > 0) launch->door(launch->words, x, y, alpha, beta, &status, 0, end);
    return status;
}

static uint32_t run_launch(const Launch *launch, int threads, const void *x, void *y, double alpha, double beta) {
    if (threads == 1 || pthread_mutex_trylock(&pool_busy)) return run_alone(launch, x, y, alpha, beta);
    int grown = pool_grow(threads);
    if (threads > grown) threads = grown;
    Job job = {.launch = launch, .x = x, .y = y, .alpha = alpha, .beta = beta, .threads = threads, .cpu = this_cpu()};
    for (int thread = 0; thread < threads; ++thread)
        atomic_store(&claim[thread].next, launch->pieces * thread / threads);
    pool_job = &job;
    atomic_store(&pool_working, 0);
    pthread_mutex_lock(&pool_mutex);
    atomic_fetch_add(&pool_generation, 1);
    pthread_cond_broadcast(&pool_wake);
    pthread_mutex_unlock(&pool_mutex);
    work(&job, 0);
    atomic_fetch_or(&pool_working, CLOSED);
    for (int spin = 0; atomic_load(&pool_working) != CLOSED; ++spin) {
        relax();
        if (spin > SPINS) sched_yield();
    }
    uint32_t status = atomic_load(&job.status);
    pthread_mutex_unlock(&pool_busy);
    return status;
}

/* ---- Plan ---- */

typedef struct {
    PyObject_HEAD
    Launch *launches;
    Py_ssize_t count;
    int64_t x_shape[2], y_shape[2];
    int dimensions, x_by_row, y_by_row, threads, zero, release;
    int turn;            /* doors read x by rows, though it is given by columns */
    _Atomic(void *) spare; /* memory for that, when no call is using it */
    char format[4]; /* of the values, as buffers name it: "f", "d", "Zd"; only the first two can be zeroed or scaled */
    PyObject *keep;
} Plan;

static void plan_free(Plan *plan) {
    for (Py_ssize_t i = 0; i < plan->count; ++i) {
        free(plan->launches[i].words);
        free(plan->launches[i].cuts);
    }
    free(plan->launches);
    free(atomic_exchange(&plan->spare, NULL));
    plan->launches = NULL;
    plan->count = 0;
}

static void plan_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    plan_free((Plan *)self);
    Py_XDECREF(((Plan *)self)->keep);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int64_t *copied(PyObject *source, Py_ssize_t least, Py_ssize_t *count) {
    Py_buffer view;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)) return NULL;
    int64_t *words = NULL;
    *count = view.len / 8;
    if (view.len % 8 || *count < least)
        PyErr_Format(PyExc_ValueError, "expected at least %zd int64, got %zd bytes", least, view.len);
    else if (!(words = malloc(view.len ? view.len : 8)))
        PyErr_NoMemory();
    else
        memcpy(words, view.buf, view.len);
    PyBuffer_Release(&view);
    return words;
}

/* Plan(launches, x_shape, y_shape, kind, x_by_row, y_by_row, threads, zero, release, keep, turn = False)
 * launches: [(address of the door, words, cuts, later)]; shapes: pairs, (n, -1) for a vector; kind: a buffer's format;
 * turn: every call copies an x given by columns into rows, and doors read the copy. */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *launches, *keep;
    long long x0, x1, y0, y1;
    const char *kind;
    int x_by_row, y_by_row, threads, zero, release, turn = 0;
    if (!PyArg_ParseTuple(args, "O!(LL)(LL)spppiiO|p:Plan", &PyList_Type, &launches, &x0, &x1, &y0, &y1, &kind, &x_by_row,
                          &y_by_row, &zero, &threads, &release, &keep, &turn))
        return NULL;
    if (strlen(kind) > 3 || threads < 1 || threads > MOST_THREADS) {
        PyErr_SetString(PyExc_ValueError, "threads must be from 1 to 256");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Plan *plan = (Plan *)allocate(type, 0);
    if (!plan) return NULL;
    plan->x_shape[0] = x0, plan->x_shape[1] = x1, plan->y_shape[0] = y0, plan->y_shape[1] = y1;
    plan->dimensions = x1 < 0 ? 1 : 2;
    plan->x_by_row = x_by_row, plan->y_by_row = y_by_row;
    strcpy(plan->format, kind);
    plan->threads = threads, plan->zero = zero, plan->release = release;
    plan->turn = turn && !x_by_row && x1 >= 0 && !kind[1] && strchr("fd", kind[0]);
    Py_INCREF(keep);
    plan->keep = keep;
    Py_ssize_t count = PyList_Size(launches);
    if (!(plan->launches = calloc(count ? count : 1, sizeof(Launch)))) {
        Py_DECREF(plan);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *words, *cuts;
        unsigned long long address;
        int later;
        Py_ssize_t length;
        Launch *launch = &plan->launches[i];
        PyObject *item = PyList_GetItem(launches, i);
        if (!item || !PyArg_ParseTuple(item, "KOOp", &address, &words, &cuts, &later)) goto failed;
        plan->count = i + 1;
        launch->door = (Door)(uintptr_t)address;
        launch->later = later;
        if (!(launch->words = copied(words, 1, &length)) || !(launch->cuts = copied(cuts, 2, &length))) goto failed;
        launch->pieces = length - 1;
    }
    return (PyObject *)plan;
failed:
    Py_DECREF(plan);
    return NULL;
}

/* Fill `view` if the operand can be used as it stands: kind, shape, order, alignment. 0: it cannot. */
static int fits(PyObject *operand, Py_buffer *view, const Plan *plan, const int64_t *shape, int by_row, int flags) {
    flags |= PyBUF_FORMAT | (by_row || plan->dimensions == 1 ? PyBUF_C_CONTIGUOUS : PyBUF_F_CONTIGUOUS);
    if (PyObject_GetBuffer(operand, view, flags)) {
        PyErr_Clear();
        return 0;
    }
    const char *format = view->format;
    if (format && *format == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>')) ++format; /* said, but native */
    if (view->ndim == plan->dimensions && format && !strcmp(format, plan->format) && view->shape[0] == shape[0] &&
        (plan->dimensions == 1 || view->shape[1] == shape[1]) && (uintptr_t)view->buf % view->itemsize == 0)
        return 1;
    PyBuffer_Release(view);
    return 0;
}

static void scale(void *y, char kind, Py_ssize_t bytes, double beta) {
    if (beta == 0)
        memset(y, 0, bytes);
    else if (beta != 1 && kind == 'f')
        for (Py_ssize_t i = 0; i < bytes / 4; ++i) ((float *)y)[i] *= (float)beta;
    else if (beta != 1)
        for (Py_ssize_t i = 0; i < bytes / 8; ++i) ((double *)y)[i] *= beta;
}

typedef uint64_t Pair __attribute__((vector_size(16), aligned(8), may_alias));

/* Rows begin to end of the n x k matrix x, given by columns, into y, by rows: a cache line of every column at a time. */
static void turn_door(const int64_t *words, const void *x, void *y, double alpha, double beta, uint32_t *status,
                      int64_t begin, int64_t end) {
    const int64_t n = words[0], k = words[1], size = words[2], step = 64 / size;
    for (int64_t first = begin; first < end; first += step) {
        const int64_t past = first + step < end ? first + step : end;
        int64_t column = 0;
        if (size == 8 && past - first == step)
            for (; column + 1 < k; column += 2) {
                const uint64_t *from = (const uint64_t *)x + column * n;
                uint64_t *to = (uint64_t *)y + column;
                for (int64_t row = first; row < past; row += 2) {
                    const Pair a = *(const Pair *)(from + row), b = *(const Pair *)(from + n + row);
                    *(Pair *)(to + row * k) = (Pair){a[0], b[0]};
                    *(Pair *)(to + row * k + k) = (Pair){a[1], b[1]};
                }
            }
        for (; column < k; ++column)
            for (int64_t row = first; row < past; ++row)
                if (size == 8)
                    ((uint64_t *)y)[row * k + column] = ((const uint64_t *)x)[column * n + row];
                else
                    ((uint32_t *)y)[row * k + column] = ((const uint32_t *)x)[column * n + row];
    }
}

/* A copy of x by rows, or NULL when there is no memory. The caller gives it back to plan->spare. */
static void *turned(Plan *plan, const void *x, int64_t size) {
    const int64_t n = plan->x_shape[0], k = plan->x_shape[1];
    int64_t words[3] = {n, k, size}, cuts[MOST_THREADS + 1];
    void *copy = atomic_exchange(&plan->spare, NULL);
    if (!copy && posix_memalign(&copy, 64, n * k * size + 64)) return NULL;
    for (int i = 0; i <= plan->threads; ++i) cuts[i] = n * i / plan->threads;
    Launch launch = {turn_door, words, cuts, plan->threads, 0};
    run_launch(&launch, plan->threads, x, copy, 0, 0);
    return copy;
}

static const char run_doc[] =
    "run(x, y, alpha, beta): y = alpha A x + beta y. Returns 0; 1 when a sum was not finite and must be computed again\n"
    "exactly (y is then not to be trusted); -1, with y untouched, when the operands cannot be used as they stand.";

static long run_plan(Plan *plan, PyObject *x_operand, PyObject *y_operand, double alpha, double beta) {
    Py_buffer x, y;
    if (!fits(x_operand, &x, plan, plan->x_shape, plan->x_by_row, 0)) return -1;
    if (!fits(y_operand, &y, plan, plan->y_shape, plan->y_by_row, PyBUF_WRITABLE)) {
        PyBuffer_Release(&x);
        return -1;
    }
    long status = 0;
    if ((char *)x.buf < (char *)y.buf + y.len && (char *)y.buf < (char *)x.buf + x.len) {
        status = -1;
    } else {
        PyThreadState *state = plan->release ? PyEval_SaveThread() : NULL;
        void *copy = plan->turn && plan->count ? turned(plan, x.buf, x.itemsize) : NULL;
        if (plan->turn && plan->count && !copy) {
            status = -1;
        } else {
            if (plan->zero) scale(y.buf, plan->format[0], y.len, beta);
            for (Py_ssize_t i = 0; i < plan->count; ++i)
                status |= run_launch(&plan->launches[i], plan->threads, copy ? copy : x.buf, y.buf, alpha,
                                     plan->zero || plan->launches[i].later ? 1.0 : beta);
            free(atomic_exchange(&plan->spare, copy));
        }
        if (state) PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&y);
    return status;
}

static PyObject *plan_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "run(x, y, alpha, beta)");
        return NULL;
    }
    double alpha = PyFloat_AsDouble(args[2]), beta = PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLong(run_plan((Plan *)self, args[0], args[1], alpha, beta));
}

static PyMethodDef plan_methods[] = {{"run", (PyCFunction)(void (*)(void))plan_run, METH_FASTCALL, run_doc}, {NULL}};
static PyType_Slot plan_slots[] = {{Py_tp_new, plan_new},
                                   {Py_tp_dealloc, plan_dealloc},
                                   {Py_tp_methods, plan_methods},
                                   {Py_tp_doc, "Launches of a CPU kernel, ready to run."},
                                   {0, NULL}};
static PyType_Spec plan_spec = {"sparsegen._native.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT, plan_slots};

/* ---- Call: the shortest way from a Python call to a Plan, for kernels to inherit ---- */

static PyObject *ndarray, *plan_type, *one, *zero, *out_name, *other_name;

typedef struct {
    PyObject_HEAD
    PyObject *plan;
} Call;

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static void call_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Call *)self)->plan);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* (x, out=None, alpha=1, beta=0). Whole operands with neither alpha nor beta run at once; all else goes to _other. */
static PyObject *call_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *plan = ((Call *)self)->plan, *x = NULL, *out = NULL;
    Py_ssize_t count = PyTuple_Size(args), named = kwargs ? PyDict_Size(kwargs) : 0;
    if (count == 2 && !named)
        out = PyTuple_GetItem(args, 1);
    else if (count == 1 && named == 1)
        out = PyDict_GetItemWithError(kwargs, out_name);
    if (PyErr_Occurred()) return NULL;
    if (out && (PyObject *)Py_TYPE(out) == ndarray && plan && plan != Py_None) {
        long status;
        x = PyTuple_GetItem(args, 0);
        if ((PyObject *)Py_TYPE(plan) == plan_type) {
            status = run_plan((Plan *)plan, x, out, 1.0, 0.0);
        } else { /* a library's call in the guise of a plan's run */
            PyObject *answer = PyObject_CallFunctionObjArgs(plan, x, out, NULL);
            if (!answer) return NULL;
            status = PyLong_AsLong(answer);
            Py_DECREF(answer);
        }
        if (status == 0) {
            Py_INCREF(out);
            return out;
        }
    }
    static char *names[] = {"x", "out", "alpha", "beta", NULL};
    PyObject *alpha = one, *beta = zero;
    out = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO:kernel", names, &x, &out, &alpha, &beta)) return NULL;
    return PyObject_CallMethodObjArgs(self, other_name, x, out, alpha, beta, NULL);
}

static PyMemberDef call_members[] = {
    {"_plan", T_OBJECT, offsetof(Call, plan), 0, "what runs whole operands: a Plan, a callable (x, y) -> status, or None"}, {NULL}};
static PyType_Slot call_slots[] = {{Py_tp_new, call_new},
                                   {Py_tp_dealloc, call_dealloc},
                                   {Py_tp_call, call_call},
                                   {Py_tp_members, call_members},
                                   {Py_tp_doc, "What kernels inherit their call from."},
                                   {0, NULL}};
static PyType_Spec call_spec = {"sparsegen._native.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                call_slots};

/* ---- what the machine can read ---- */

static void read_door(const int64_t *words, const void *x, void *y, double alpha, double beta, uint32_t *status,
                      int64_t begin, int64_t end) {
    const uint64_t *data = (const uint64_t *)(uintptr_t)words[0];
    uint64_t sums[16] = {0};
    for (int64_t i = begin * 16; i < end * 16; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += data[i + j];
    for (int j = 1; j < 16; ++j) sums[0] += sums[j];
    if (sums[0] == 20260) *status = 1; /* keeps the sums alive */
}

static PyObject *read_buffer(PyObject *self, PyObject *args) {
    Py_buffer view;
    int threads, repeats;
    if (!PyArg_ParseTuple(args, "y*ii:read", &view, &threads, &repeats)) return NULL;
    int64_t words[1] = {(int64_t)(uintptr_t)view.buf}, cuts[MOST_THREADS + 1];
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    for (int i = 0; i <= threads; ++i) cuts[i] = view.len / 128 * i / threads;
    Launch launch = {read_door, words, cuts, threads, 0};
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < repeats; ++i) run_launch(&launch, threads, NULL, NULL, 0, 0);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"read", read_buffer, METH_VARARGS, "read(buffer, threads, repeats): read the buffer from end to end."}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "sparsegen._native", "The call path of CPU kernels.", -1, methods};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *made = PyModule_Create(&module), *numpy = PyImport_ImportModule("numpy");
    PyObject *call_type = PyType_FromSpec(&call_spec);
    plan_type = PyType_FromSpec(&plan_spec);
    if (!made || !numpy || !call_type || !plan_type || !(ndarray = PyObject_GetAttrString(numpy, "ndarray"))) return NULL;
    one = PyLong_FromLong(1), zero = PyLong_FromLong(0);
    out_name = PyUnicode_InternFromString("out"), other_name = PyUnicode_InternFromString("_other");
    if (!one || !zero || !out_name || !other_name) return NULL;
    if (PyModule_AddObjectRef(made, "Plan", plan_type) || PyModule_AddObjectRef(made, "Call", call_type)) return NULL;
    Py_DECREF(numpy);
    Py_DECREF(call_type);
    pthread_atfork(NULL, NULL, pool_forget);
    return made;
}
