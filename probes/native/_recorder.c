/* The fast paths of spans and marks for one Python: what probes/span.py does for the common call,
 * on the same recorders and segments. Everything uncommon is handed to the Python functions.
 *
 * A Recorder (probes/recorder.py) inherits from Room, which holds what the fast paths touch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <structmember.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "counter_clock.h"
#include "format.h"

#ifdef Py_GIL_DISABLED
#error "the fast paths rely on the GIL; without it the Python recorder is used"
#endif

enum {
    WORDS_A_CELL = RCA_CELL_BYTES / 8,
    GATE_WORDS = 32 * WORDS_A_CELL, /* as in recorder.py */
    FREE_SPANS = 64,
    KNOWN = 64,
};

#define FAILED ((int64_t)RCA_FLAG_ERROR << 40)
#define RICH ((int64_t)RCA_FLAG_MORE << 40)
#define SUSPENDED ((int64_t)RCA_FLAG_ASYNC << 40)

/* Words of the texts looked up lately, by the address of the text: names in a program's code are the
 * same objects each time, and a look into a dictionary of large numbers costs as much as all else. */
typedef struct Known {
    PyObject *text; /* held, so that its address means no other */
    int64_t word;
} Known;

typedef struct Room {
    PyObject_HEAD
    Py_ssize_t at, last; /* the next free word, and where the gate is looked at again */
    Py_ssize_t end;      /* of the block, in words; -1: nothing more is written */
    int64_t *words;
    PyObject *view; /* the memoryview that `words` points into */
    PyObject *spans, *marks, *ids, *kinds;
    Known known_spans[KNOWN], known_marks[KNOWN], known_kinds[KNOWN];
} Room;

typedef struct Span {
    PyObject_HEAD
    vectorcallfunc call; /* what `with` calls, on entry and on exit */
    PyObject *view;      /* keeps the block mapped */
    int64_t *cell;
    unsigned generation;
} Span;

/* Counts forks: in a child every recorder and span from before belongs to the parent. */
static unsigned generation;

/* A thread's recorder, kept alive by the list of recorders in Python. */
typedef struct Own {
    Room *room;
    unsigned generation;
} Own;

static _Thread_local Own own;

/* When an edge of a span is the next reason to look at this thread, ns; 0 outside of steps. */
static _Thread_local int64_t look_at;
static int stepping; /* whether any thread ever was: spares spans elsewhere the way to its storage */
static void look_around(int64_t now);

static const volatile unsigned char *gate; /* first byte of the control file: 1 record */
static PyObject *gate_view;                /* keeps it mapped */

static PyObject *slow_span, *slow_record, *off, *request_variable, *refill_name, *faults;
static PyInterpreterState *home; /* what is static here serves one interpreter */
static int scoped;
static Span *free_spans[FREE_SPANS];
static int free_count;

static void in_child(void)
{
    generation++;
}

/* ---------------------------------------------------------------- Room */

static PyObject *room_view(Room *self, void *unused)
{
    (void)unused;
    if (!self->view) {
        PyErr_SetString(PyExc_AttributeError, "words");
        return NULL;
    }
    return Py_NewRef(self->view);
}

static int room_set_view(Room *self, PyObject *view, void *unused)
{
    (void)unused;
    if (!view || !PyMemoryView_Check(view)) {
        PyErr_SetString(PyExc_TypeError, "words must be a memoryview");
        return -1;
    }
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    if (buffer->itemsize != 8 || buffer->readonly || !PyBuffer_IsContiguous(buffer, 'C')) {
        PyErr_SetString(PyExc_ValueError, "words must be writable and 8 bytes wide");
        return -1;
    }
    Py_XSETREF(self->view, Py_NewRef(view));
    self->words = buffer->buf;
    return 0;
}

static int room_traverse(Room *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->view);
    Py_VISIT(self->spans);
    Py_VISIT(self->marks);
    Py_VISIT(self->ids);
    Py_VISIT(self->kinds);
    return 0;
}

static void forget(Known *known)
{
    for (int i = 0; i < KNOWN; i++)
        Py_CLEAR(known[i].text);
}

static int room_clear(Room *self)
{
    forget(self->known_spans);
    forget(self->known_marks);
    forget(self->known_kinds);
    self->words = NULL;
    self->last = self->end = -1;
    Py_CLEAR(self->view);
    Py_CLEAR(self->spans);
    Py_CLEAR(self->marks);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->kinds);
    return 0;
}

static void room_dealloc(Room *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    room_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef room_members[] = {
    {"at", T_PYSSIZET, offsetof(Room, at), 0, NULL},
    {"last", T_PYSSIZET, offsetof(Room, last), 0, NULL},
    {"end", T_PYSSIZET, offsetof(Room, end), 0, NULL},
    {"spans", T_OBJECT_EX, offsetof(Room, spans), 0, NULL},
    {"marks", T_OBJECT_EX, offsetof(Room, marks), 0, NULL},
    {"ids", T_OBJECT_EX, offsetof(Room, ids), 0, NULL},
    {"kinds", T_OBJECT_EX, offsetof(Room, kinds), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef room_getset[] = {
    {"words", (getter)room_view, (setter)room_set_view, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot room_slots[] = {
    {Py_tp_doc, "What the fast paths touch of a recorder."},
    {Py_tp_dealloc, room_dealloc},
    {Py_tp_traverse, room_traverse},
    {Py_tp_clear, room_clear},
    {Py_tp_members, room_members},
    {Py_tp_getset, room_getset},
    {0, NULL},
};

static PyType_Spec room_spec = {
    .name = "_recorder.Room",
    .basicsize = sizeof(Room),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = room_slots,
};

/* ---------------------------------------------------------------- Span */

static PyTypeObject *span_type;

static PyObject *span_enter(Span *self, PyObject *unused)
{
    (void)unused;
    if (self->generation == generation) {
        int64_t now = counter_clock();
        __atomic_store_n(&self->cell[0], now, __ATOMIC_RELAXED);
        if (stepping)
            look_around(now);
    }
    return Py_NewRef((PyObject *)self);
}

static PyObject *span_exit(Span *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (self->generation == generation) {
        int64_t now = counter_clock();
        __atomic_store_n(&self->cell[1], now, __ATOMIC_RELAXED);
        if (count > 0 && arguments[0] != Py_None)
            self->cell[3] |= FAILED;
        if (stepping)
            look_around(now);
    }
    Py_RETURN_NONE;
}

static void span_dealloc(Span *self)
{
    Py_CLEAR(self->view);
    if (free_count < FREE_SPANS) {
        free_spans[free_count++] = self;
        return;
    }
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* A span stands for its own `__enter__` and `__exit__`, and knows by the number of arguments which
 * of them is called: `with` would allocate a bound method for each, a third of a span's price. */
static PyObject *span_call(PyObject *span, PyObject *const *arguments, size_t flagged,
                           PyObject *keywords)
{
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    if (!count && !keywords)
        return span_enter((Span *)span, NULL);
    if (count == 3 && !keywords)
        return span_exit((Span *)span, arguments, count);
    PyErr_SetString(PyExc_TypeError, "a span is no function: with span(name): ...");
    return NULL;
}

static PyMethodDef span_methods[] = {
    {"__enter__", (PyCFunction)span_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void *)span_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef span_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Span, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* What lies in the type as `__enter__` and as `__exit__`: asked of a span it gives the span, asked of
 * the type (contextlib.ExitStack) the method. */
typedef struct Side {
    PyObject_HEAD
    PyObject *method;
} Side;

static PyObject *side_get(Side *self, PyObject *span, PyObject *type)
{
    (void)type;
    return Py_NewRef(span ? span : self->method);
}

static void side_dealloc(Side *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(self->method);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot side_slots[] = {
    {Py_tp_descr_get, side_get},
    {Py_tp_dealloc, side_dealloc},
    {0, NULL},
};

static PyType_Spec side_spec = {
    .name = "_recorder.Side",
    .basicsize = sizeof(Side),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = side_slots,
};

/* Puts a side in the place of each method; whether that worked. */
static int put_sides(PyTypeObject *span)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&side_spec);
    int done = type != NULL;
    for (PyMethodDef *method = span_methods; done && method->ml_name; method++) {
        Side *side = PyObject_New(Side, type);
        if (side)
            side->method = PyDescr_NewMethod(span, method);
        done = side && side->method &&
               !PyObject_SetAttrString((PyObject *)span, method->ml_name, (PyObject *)side);
        Py_XDECREF(side);
    }
    Py_XDECREF(type);
    return done;
}

static PyType_Slot span_slots[] = {
    {Py_tp_doc, "A span whose cell is reserved: entering stores the start, leaving the end."},
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_members, span_members},
    {Py_tp_call, PyVectorcall_Call},
    {0, NULL},
};

static PyType_Spec span_spec = {
    .name = "_recorder.Span",
    .basicsize = sizeof(Span),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = span_slots,
};

static Span *new_span(void)
{
    if (free_count) {
        Span *self = free_spans[--free_count];
        Py_SET_REFCNT((PyObject *)self, 1);
        return self;
    }
    Span *self = PyObject_New(Span, span_type);
    if (self)
        self->call = span_call;
    return self;
}

/* Lets a span stand for a cell that was reserved in a block. */
static void hold(Span *self, PyObject *view, int64_t *cell)
{
    self->view = Py_NewRef(view);
    self->cell = cell;
    self->generation = generation;
}

/* ---------------------------------------------------------------- span and record */

/* What a call asks for, as far as the fast paths know it; borrowed. */
typedef struct Call {
    PyObject *name, *kind, *request, *step;
} Call;

static int parse_all(Call *call, PyObject *const *arguments, Py_ssize_t count, PyObject *keywords,
                     int takes_kind)
{
    PyObject **places[] = {&call->name, takes_kind ? &call->kind : &call->request, &call->request};
    if (count > (takes_kind ? 3 : 2))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        *places[i] = arguments[i];
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        if (takes_kind && !call->kind && !PyUnicode_CompareWithASCIIString(keyword, "kind"))
            call->kind = arguments[count + i];
        else if (!call->request && !PyUnicode_CompareWithASCIIString(keyword, "request"))
            call->request = arguments[count + i];
        else if (takes_kind && !PyUnicode_CompareWithASCIIString(keyword, "step"))
            call->step = arguments[count + i];
        else
            return 0;
    }
    if (call->request == Py_None)
        call->request = NULL;
    if (call->step == Py_None)
        call->step = NULL;
    return (!call->step || PyLong_CheckExact(call->step)) &&
           (!call->kind || PyUnicode_CheckExact(call->kind)) &&
           (!call->request || PyUnicode_CheckExact(call->request));
}

/* Whether the fast paths know what is asked for; most calls give a name and nothing else. */
static inline int parse(Call *call, PyObject *const *arguments, Py_ssize_t count,
                        PyObject *keywords, int takes_kind)
{
    if (count < 1 || !PyUnicode_CheckExact(arguments[0]))
        return 0;
    call->name = arguments[0];
    return (count == 1 && !keywords) || parse_all(call, arguments, count, keywords, takes_kind);
}

/* Looks a text up and ors its word into `into`; 0 where the slow path must name it first. */
static int look_up(PyObject *words, PyObject *text, int64_t *into)
{
    PyObject *word = PyDict_GetItemWithError(words, text);
    if (!word) {
        PyErr_Clear();
        return 0;
    }
    *into |= PyLong_AsLongLong(word);
    return 1;
}

/* The same by what is known already; words never change while their recorder lives. */
static inline int recall(Known *known, PyObject *words, PyObject *text, int64_t *into)
{
    Known *at = &known[((uintptr_t)text >> 4) % KNOWN];
    int64_t word = 0;
    if (at->text == text) {
        *into |= at->word;
        return 1;
    }
    if (!look_up(words, text, &word))
        return 0;
    Py_XSETREF(at->text, Py_NewRef(text));
    at->word = word;
    *into |= word;
    return 1;
}

/* Word 2 of a cell: the request, that of the scope where none is given, and the kind. */
static inline int add_request(Room *here, Call *call, int64_t *word)
{
    PyObject *scope = NULL;
    int known = 1;
    if (scoped && !call->request && PyContextVar_Get(request_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return 0;
    }
    PyObject *request = call->request ? call->request : scope;
    if (request && request != Py_None)
        known = PyUnicode_CheckExact(request) && look_up(here->ids, request, word);
    Py_XDECREF(scope);
    return known && (!call->kind || recall(here->known_kinds, here->kinds, call->kind, word));
}

/* Whether this thread has a recorder with room for some cells: 0 where Python must see to it,
 * NOTHING where none may be written, RAISED where Python code that ran in between (a signal handler
 * of the program) has raised. */
enum { NOTHING = -1, RAISED = -2 };

static int refill(Room *here)
{
    if (gate && !*gate)
        return NOTHING;
    if (gate && here->at < here->end) {
        Py_ssize_t next = here->at + GATE_WORDS;
        here->last = next < here->end ? next : here->end;
        return 1;
    }
    PyObject *more = PyObject_CallMethodNoArgs((PyObject *)here, refill_name);
    int room = more ? PyObject_IsTrue(more) : 0;
    Py_XDECREF(more);
    if (!more && !PyErr_ExceptionMatches(faults))
        return RAISED;
    if (!more)
        PyErr_Clear();
    return here->at < here->last ? room : more ? NOTHING : 0;
}

static inline int has_room(Room *here, Py_ssize_t cells)
{
    if (!here)
        return 0;
    if (here->at + (cells - 1) * WORDS_A_CELL < here->last)
        return 1;
    return cells > 1 ? 0 : refill(here);
}

/* The calling thread's recorder, NULL where it has none. */
static inline Room *own_room(void)
{
    const Own *mine = &own; /* asking for its address is a call */
    return mine->generation == generation ? mine->room : NULL;
}

/* Reserves cells; nothing between this and their last store runs Python code. */
static inline int64_t *next_cells(Room *here, Py_ssize_t count)
{
    int64_t *cell = here->words + here->at;
    here->at += count * WORDS_A_CELL;
    return cell;
}

/* ---------------------------------------------------------------- looks at the own thread */

/* A look costs about a microsecond: so often it is less than a thousandth of the time. */
#define LOOK_EVERY_NS 2000000
/* By how much the kernel's count of time on CPU may lag: it is brought up to date at ticks. */
#define LOOK_NEAR_NS 20000000

/* The thread's schedstat, kept open, and its id; of a process before a fork nothing is kept. */
static _Thread_local struct {
    unsigned generation;
    int known, descriptor, thread;
} self_look;

static int64_t thread_time(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now))
        return -1;
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Run-queue delay and time slices so far. A program may close descriptors that it does not know, and
 * get the number again for a file of its own: what is read must agree with the thread's clock. A
 * descriptor that does not is let go of, never closed. */
static int read_schedstat(int64_t on_cpu, int64_t *delay, int64_t *slices)
{
    char text[100], *at = text;
    ssize_t got = -1;
    if (!self_look.known || self_look.generation != generation) {
        self_look.generation = generation;
        self_look.thread = (int)syscall(SYS_gettid);
        self_look.descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        self_look.known = 1;
    }
    if (self_look.descriptor >= 0)
        got = pread(self_look.descriptor, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    int64_t told = strtoll(at, &at, 10);
    *delay = strtoll(at, &at, 10);
    *slices = strtoll(at, &at, 10);
    if (got > 0 && told <= on_cpu + LOOK_NEAR_NS && on_cpu - told <= LOOK_NEAR_NS)
        return 1;
    self_look.known = self_look.descriptor < 0; /* what cannot be opened is not tried again */
    return 0;
}

/* Whether a look can be written without Python: up to the end of the block, where the gate is open. */
static int has_room_for_look(Room *here)
{
    if (has_room(here, 2) == 1)
        return 1;
    if (!here || !gate || !*gate || here->at + 2 * WORDS_A_CELL > here->end)
        return 0;
    return refill(here) == 1;
}

/* Writes what the kernel says of the calling thread, as looks.py does; 0 where there is no room. */
static int write_look(void)
{
    struct rusage usage;
    int64_t delay, slices, on_cpu = thread_time();
    Room *here = own_room();
    if (!has_room_for_look(here))
        return 0;
    if (!read_schedstat(on_cpu, &delay, &slices) || getrusage(RUSAGE_THREAD, &usage))
        return 1;
    int64_t kernel = usage.ru_stime.tv_sec * INT64_C(1000000) + usage.ru_stime.tv_usec;
    int64_t *cell = next_cells(here, 2), *more = cell + WORDS_A_CELL;
    more[0] = delay;
    more[1] = slices;
    more[2] = (int64_t)(uint32_t)usage.ru_majflt | INT64_C(1) << 32;
    more[3] = (int64_t)(uint32_t)kernel | (int64_t)cell_tag(RCA_MORE, 0) << 32;
    cell[0] = counter_clock();
    cell[1] = on_cpu;
    cell[2] = (int64_t)getpid() << 32;
    __atomic_store_n(&cell[3],
                     (int64_t)(uint32_t)self_look.thread |
                         (int64_t)cell_tag(RCA_SCHED, RCA_FLAG_MORE) << 32,
                     __ATOMIC_RELEASE);
    return 1;
}

/* Looks at the edge of a span in a step, so that what is counted there is told from what is around. */
static void look_around(int64_t now)
{
    if (!look_at || now < look_at)
        return;
    int before = errno;
    if (write_look())
        look_at = now + LOOK_EVERY_NS;
    errno = before;
}

static PyObject *look(PyObject *module, PyObject *within)
{
    (void)module;
    int inside = PyObject_IsTrue(within) == 1;
    stepping |= inside;
    look_at = inside ? counter_clock() + LOOK_EVERY_NS : 0;
    return PyBool_FromLong(write_look());
}

static PyObject *edge(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    if (look_at)
        look_around(counter_clock());
    Py_RETURN_NONE;
}

/* The number of a step: -1, which stands for none, where it is too large for a cell. */
static int64_t step_number(PyObject *step)
{
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(step, &overflow);
    return overflow || number < 0 ? -1 : number;
}

/* Fills a MORE cell, which tells the step of the span before it; no path, no size. */
static void put_step(int64_t *more, int64_t step)
{
    more[0] = step;
    more[1] = -1;
    __atomic_store_n(&more[3], (int64_t)cell_tag(RCA_MORE, 0) << 32, __ATOMIC_RELEASE);
}

static PyObject *fast_span(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords)
{
    (void)module;
    Call call = {0};
    int64_t middle = 0, last = 0;
    if (!parse(&call, arguments, count, keywords, 1))
        return PyObject_Vectorcall(slow_span, arguments, (size_t)count, keywords);
    Room *here = own_room();
    int room = has_room(here, call.step ? 2 : 1);
    if (room < 0)
        return room == RAISED ? NULL : Py_NewRef(off);
    if (!room || !recall(here->known_spans, here->spans, call.name, &last) ||
        !add_request(here, &call, &middle))
        return PyObject_Vectorcall(slow_span, arguments, (size_t)count, keywords);
    Span *made = new_span();
    if (!made)
        return NULL;
    int64_t *cell = next_cells(here, call.step ? 2 : 1);
    hold(made, here->view, cell);
    cell[2] = middle;
    if (call.step)
        put_step(cell + WORDS_A_CELL, step_number(call.step));
    __atomic_store_n(&cell[3], call.step ? last | RICH : last, __ATOMIC_RELEASE);
    return (PyObject *)made;
}

static PyObject *fast_record(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords)
{
    (void)module;
    Call call = {0};
    int64_t middle = 0, last = 0;
    Room *here = own_room();
    int room = parse(&call, arguments, count, keywords, 0) ? has_room(here, 1) : 0;
    if (room == RAISED)
        return NULL;
    if (room < 0)
        Py_RETURN_NONE;
    if (!room || !recall(here->known_marks, here->marks, call.name, &last) ||
        !add_request(here, &call, &middle))
        return PyObject_Vectorcall(slow_record, arguments, (size_t)count, keywords);
    int64_t *cell = next_cells(here, 1);
    cell[0] = counter_clock();
    cell[2] = middle;
    __atomic_store_n(&cell[3], last, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- what has happened already */

/* over(name, kind, start, end, request, overlaps): a span of the past, which belongs to no scope.
 * False: nothing was written, the slow path must. */
static PyObject *over(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    int64_t middle = 0, last = 0;
    Room *here = own_room();
    int room = count == 6 ? has_room(here, 1) : 0;
    if (room == RAISED)
        return NULL;
    if (room < 0)
        Py_RETURN_TRUE;
    PyObject *request = room ? arguments[4] : NULL;
    if (!room || !PyUnicode_CheckExact(arguments[0]) || !PyUnicode_CheckExact(arguments[1]) ||
        !(request == Py_None || PyUnicode_CheckExact(request)) ||
        !PyLong_CheckExact(arguments[2]) || !PyLong_CheckExact(arguments[3]) ||
        !recall(here->known_spans, here->spans, arguments[0], &last) ||
        !recall(here->known_kinds, here->kinds, arguments[1], &middle) ||
        !(request == Py_None || look_up(here->ids, request, &middle)))
        Py_RETURN_FALSE;
    int64_t start = PyLong_AsLongLong(arguments[2]), end = PyLong_AsLongLong(arguments[3]);
    if (PyErr_Occurred())
        return NULL;
    int64_t *cell = next_cells(here, 1);
    cell[0] = start;
    cell[1] = end;
    cell[2] = middle;
    last |= arguments[5] == Py_True ? SUSPENDED : 0;
    __atomic_store_n(&cell[3], last, __ATOMIC_RELEASE);
    Py_RETURN_TRUE;
}

/* A step under way: its cell, a MORE cell, and one of each request of its batch behind them, or how
 * many cells back the step stands that has the same batch. */
static PyObject *step_under_way(PyObject *view, int64_t *cell, int64_t id, int64_t start,
                                Py_buffer *batch, uint32_t back)
{
    int64_t tag = (int64_t)cell_tag(RCA_STEP, RCA_FLAG_MORE) << 32 | back;
    Span *made = new_span();
    if (!made)
        return NULL;
    hold(made, view, cell);
    put_step(cell + WORDS_A_CELL, id);
    memcpy(cell + 2 * WORDS_A_CELL, batch->buf, (size_t)batch->len);
    cell[0] = start;
    cell[2] = (int64_t)(batch->len / RCA_CELL_BYTES) << 32;
    __atomic_store_n(&cell[3], tag, __ATOMIC_RELEASE);
    return (PyObject *)made;
}

/* Room that Python has reserved, (words, at), as a pointer; NULL where it lies in no block. */
static int64_t *reserved(PyObject *words, Py_ssize_t at, Py_ssize_t cells)
{
    Py_buffer *block = PyMemoryView_Check(words) ? PyMemoryView_GET_BUFFER(words) : NULL;
    if (!block || block->readonly || at < 0 || (at + cells * WORDS_A_CELL) * 8 > block->len) {
        PyErr_SetString(PyExc_ValueError, "no room in words");
        return NULL;
    }
    return (int64_t *)block->buf + at;
}

/* step(words, at, id, start, batch, back): fills room for a step whose batch is given as its cells,
 * or stands some cells back. */
static PyObject *begin_step(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *words;
    Py_ssize_t at;
    long long id, start;
    unsigned back;
    Py_buffer batch;
    if (!PyArg_ParseTuple(arguments, "OnLLy*I", &words, &at, &id, &start, &batch, &back))
        return NULL;
    int64_t *cell = reserved(words, at, 2 + batch.len / RCA_CELL_BYTES);
    PyObject *made = cell ? step_under_way(words, cell, id, start, &batch, back) : NULL;
    PyBuffer_Release(&batch);
    return made;
}

/* step_over(step, end, tokens): so many tokens of every request left with a step, which is over. */
static PyObject *step_over(PyObject *module, PyObject *arguments)
{
    (void)module;
    Span *step;
    long long end, tokens;
    if (!PyArg_ParseTuple(arguments, "O!LL", span_type, &step, &end, &tokens))
        return NULL;
    if (step->generation != generation)
        Py_RETURN_NONE;
    int64_t *more = step->cell + WORDS_A_CELL, *request = more + WORDS_A_CELL;
    if ((uint32_t)step->cell[3])
        more[1] = tokens;
    for (int64_t i = step->cell[2] >> 32; i > 0; i--, request += WORDS_A_CELL)
        request[1] = tokens;
    __atomic_store_n(&step->cell[1], end, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- module */

static PyObject *adopt(PyObject *module, PyObject *recorder)
{
    PyObject *type = PyObject_GetAttrString(module, "Room");
    int fits = type ? PyObject_IsInstance(recorder, type) : -1;
    Py_XDECREF(type);
    if (fits < 0)
        return NULL;
    own = (Own){fits ? (Room *)recorder : NULL, generation};
    Py_RETURN_NONE;
}

static PyObject *watch_gate(PyObject *module, PyObject *view)
{
    (void)module;
    if (!PyMemoryView_Check(view) || PyMemoryView_GET_BUFFER(view)->len < 1) {
        PyErr_SetString(PyExc_TypeError, "the gate must be a memoryview");
        return NULL;
    }
    Py_XSETREF(gate_view, Py_NewRef(view));
    gate = PyMemoryView_GET_BUFFER(view)->buf;
    Py_RETURN_NONE;
}

static PyObject *watch_requests(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    scoped = 1;
    Py_RETURN_NONE;
}

static PyObject *prepare(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *span, *record, *nothing, *variable, *own;
    if (!PyArg_ParseTuple(arguments, "OOOOO", &span, &record, &nothing, &variable, &own))
        return NULL;
    Py_XSETREF(slow_span, Py_NewRef(span));
    Py_XSETREF(slow_record, Py_NewRef(record));
    Py_XSETREF(off, Py_NewRef(nothing));
    Py_XSETREF(request_variable, Py_NewRef(variable));
    Py_XSETREF(faults, Py_NewRef(own));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"span", (PyCFunction)(void *)fast_span, METH_FASTCALL | METH_KEYWORDS,
     "span(name, kind='host', request=None, step=None, bytes=None, path=None)\n--\n\n"
     "A context manager that records the time spent inside it; as `rca_llm.probes.span.span`."},
    {"record", (PyCFunction)(void *)fast_record, METH_FASTCALL | METH_KEYWORDS,
     "record(name, request=None, **numbers)\n--\n\n"
     "Mark this instant; as `rca_llm.probes.span.record`."},
    {"over", (PyCFunction)(void *)over, METH_FASTCALL,
     "over(name, kind, start, end, request, overlaps)\n--\n\n"
     "Write a span of the past; False where nothing was written and Python must."},
    {"step", begin_step, METH_VARARGS,
     "step(words, at, id, start, batch, back)\n--\n\n"
     "Fill reserved room for a step; gives what `step_over` takes."},
    {"step_over", step_over, METH_VARARGS,
     "step_over(step, end, tokens)\n--\n\n"
     "End a step with which so many tokens of every request of its batch came."},
    {"adopt", adopt, METH_O, "Make a recorder that of the calling thread."},
    {"watch_gate", watch_gate, METH_O, "Look at this memoryview whether to record."},
    {"watch_requests", watch_requests, METH_NOARGS, "Look for request scopes from here on."},
    {"look", look, METH_O,
     "look(within)\n--\n\n"
     "Look at the calling thread, from here on at edges of its spans too, or no more;\n"
     "whether there was room."},
    {"edge", edge, METH_NOARGS,
     "Look at the calling thread if it is in a step and was not looked at for 2 ms, as spans do."},
    {"prepare", prepare, METH_VARARGS,
     "Take the slow span and record, OFF, the variable, and what recording itself may raise."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_recorder", "Fast paths of spans and marks.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__recorder(void)
{
    if (home && home != PyInterpreterState_Get()) {
        PyErr_SetString(PyExc_ImportError, "the fast paths serve one interpreter of a process");
        return NULL;
    }
    home = PyInterpreterState_Get();
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *room = PyType_FromSpec(&room_spec);
    span_type = (PyTypeObject *)PyType_FromSpec(&span_spec);
    refill_name = PyUnicode_InternFromString("refill");
    if (!module || !room || !span_type || !refill_name || !put_sides(span_type) ||
        PyModule_AddObject(module, "Room", room) < 0)
        return NULL;
    counter_prepare();
    pthread_atfork(NULL, NULL, in_child);
    return module;
}
