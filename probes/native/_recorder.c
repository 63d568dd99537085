/* Spans and marks for one Python: what probes/span.py does, on the same recorders and segments.
 * What no call of a program repeats (the first record of a thread, the first use of a name) is
 * handed to the Python functions, and so are wrong calls.
 *
 * A Recorder (probes/recorder.py) inherits from Room, which holds what is touched here. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <structmember.h>

#include "counter_clock.h"
#include "format.h"
#include "recorder_look.h"
#include "recorder_room.h"
#include "recorder_steps.h"

#ifdef Py_GIL_DISABLED
#error "the fast paths rely on the GIL; without it the Python recorder is used"
#endif

enum { FREE_SPANS = 64, MOST_NUMBERS = 32 };

#define FAILED ((int64_t)RCA_FLAG_ERROR << 40)
#define RICH ((int64_t)RCA_FLAG_MORE << 40)
#define SUSPENDED ((int64_t)RCA_FLAG_ASYNC << 40)

typedef struct Span {
    PyObject_HEAD
    vectorcallfunc call; /* what `with` calls, on entry and on exit */
    PyObject *view;      /* keeps the block mapped */
    int64_t *cell;
    unsigned generation;
} Span;

static PyObject *gate_view; /* keeps it mapped */

/* Of span.py and plain.py; what may be anything is understood there, for both recorders alike. */
static PyObject *slow_span, *slow_record, *slow_suspendable, *off, *request_variable;
static PyObject *plain_text, *plain_whole, *plain_number, *host;
static PyInterpreterState *home; /* what is static here serves one interpreter */
static int scoped;
static Span *free_spans[FREE_SPANS];
static int free_count;

static void in_child(void)
{
    generation++;
}

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

static PyObject *held(PyObject *view, int64_t *cell)
{
    Span *made = new_span();
    if (made)
        hold(made, view, cell);
    return (PyObject *)made;
}

static int is_held(PyObject *object)
{
    return Py_IS_TYPE(object, span_type);
}

static int64_t *cell_of(PyObject *object)
{
    const Span *span = (const Span *)object;
    return is_held(object) && span->generation == generation ? span->cell : NULL;
}

/* ---------------------------------------------------------------- arguments */

/* What a span may be given, in the order of its parameters. */
enum { NAME, KIND, REQUEST, STEP, BYTES, PATH, ARGUMENTS };

static const char *const argument_names[ARGUMENTS] = {"name", "kind",  "request",
                                                      "step", "bytes", "path"};
static PyObject *argument_texts[ARGUMENTS]; /* the same, interned, as those in a program's code */

static int names_argument(PyObject *keyword, int which)
{
    return keyword == argument_texts[which] ||
           !PyUnicode_CompareWithASCIIString(keyword, argument_names[which]);
}

/* Which argument a keyword names among the first few; -1: none of them. */
static int argument_of(PyObject *keyword, int takes)
{
    for (int i = NAME; i < takes; i++)
        if (keyword == argument_texts[i])
            return i;
    for (int i = NAME; i < takes; i++)
        if (names_argument(keyword, i))
            return i;
    return -1;
}

/* Puts the arguments of a call into their places, borrowed, NULL for None where that means nothing;
 * whether the call is right. */
static int place(PyObject **at, int takes, PyObject *const *arguments, Py_ssize_t count,
                 PyObject *keywords)
{
    if (count > takes)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        at[i] = arguments[i];
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
        int found = argument_of(PyTuple_GET_ITEM(keywords, i), takes);
        if (found < 0 || at[found])
            return 0;
        at[found] = arguments[count + i];
    }
    for (int i = REQUEST; i < takes; i++)
        if (at[i] == Py_None)
            at[i] = NULL;
    return at[NAME] != NULL;
}

/* An argument as an exact str or int, new. */
static PyObject *exactly(PyObject *given, int which)
{
    int number = which == STEP || which == BYTES;
    if (number ? PyLong_CheckExact(given) : PyUnicode_CheckExact(given))
        return Py_NewRef(given);
    return PyObject_CallOneArg(number ? plain_whole : plain_text, given);
}

static void drop(PyObject **objects, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        Py_CLEAR(objects[i]);
}

/* Whether what was raised is ours to keep from the program, which it then is. Anything else came out
 * of code of the program that ran in a call of ours. */
static int ours(void)
{
    if (!PyErr_ExceptionMatches(faults))
        return 0;
    PyErr_Clear();
    return 1;
}

/* ---------------------------------------------------------------- span */

/* A step or a size: -1, which stands for none, where it is too large for a cell or negative. */
static int64_t whole(PyObject *given)
{
    int overflow;
    int64_t number = given ? PyLong_AsLongLongAndOverflow(given, &overflow) : -1;
    return number < 0 || overflow ? -1 : number;
}

/* Fills a MORE cell, which tells more of the cell before it. */
static void put_more(int64_t *more, int64_t step, int64_t bytes, int64_t path)
{
    more[0] = step;
    more[1] = bytes;
    more[2] = path;
    __atomic_store_n(&more[3], (int64_t)cell_tag(RCA_MORE, 0) << 32, __ATOMIC_RELEASE);
}

/* Word 2 of a cell: the request, that of the scope where none is given, and the kind. */
static inline int add_request(Room *here, PyObject *request, PyObject *kind, int64_t *word)
{
    PyObject *scope = NULL;
    int known = 1;
    if (scoped && !request && PyContextVar_Get(request_variable, Py_None, &scope) < 0) {
        PyErr_Clear();
        return 0;
    }
    if (scope && scope != Py_None)
        request = scope;
    if (request)
        known = PyUnicode_CheckExact(request) &&
                recall(here->known_ids, here->ids, request, word);
    Py_XDECREF(scope);
    return known && (!kind || recall(here->known_kinds, here->kinds, kind, word));
}

/* A span of exact arguments, new: its cell and, where it has more to say, the one behind it. NULL
 * with nothing raised: Python must see to it. */
static inline __attribute__((always_inline)) PyObject *new_cells(PyObject *const *at, int64_t flags)
{
    int more = at[STEP] || at[BYTES] || at[PATH];
    int64_t middle = 0, last = 0, path = 0;
    Room *here = own_room();
    int room = has_room(here, more ? 2 : 1);
    if (room < 0)
        return room == RAISED ? NULL : Py_NewRef(off);
    if (!room || !recall(here->known_spans, here->spans, at[NAME], &last) ||
        !add_request(here, at[REQUEST], at[KIND], &middle) ||
        (at[PATH] && !recall(here->known_ids, here->ids, at[PATH], &path)))
        return NULL;
    Span *made = new_span();
    if (!made) {
        PyErr_Clear();
        return Py_NewRef(off);
    }
    int64_t *cell = next_cells(here, more ? 2 : 1);
    hold(made, here->view, cell);
    cell[2] = middle;
    if (more)
        put_more(cell + WORDS_A_CELL, whole(at[STEP]), whole(at[BYTES]), path);
    __atomic_store_n(&cell[3], last | flags | (more ? RICH : 0), __ATOMIC_RELEASE);
    return (PyObject *)made;
}

/* The Python function that does what is uncommon, with arguments that were made exact. */
static PyObject *slowly(PyObject *slow, int takes, PyObject *const *exact)
{
    PyObject *all[ARGUMENTS];
    for (int i = NAME; i < takes; i++)
        all[i] = exact[i] ? exact[i] : i == KIND ? host : Py_None;
    return PyObject_Vectorcall(slow, all, (size_t)takes, NULL);
}

static PyObject *span_at_length(PyObject *slow, int takes, int64_t flags,
                                PyObject *const *arguments, Py_ssize_t count, PyObject *keywords)
{
    PyObject *at[ARGUMENTS] = {NULL}, *exact[ARGUMENTS] = {NULL}, *made = NULL;
    if (!own_room() || !place(at, takes, arguments, count, keywords))
        return PyObject_Vectorcall(slow, arguments, (size_t)count, keywords);
    int all = 1;
    for (int i = NAME; all && i < takes; i++)
        all = !at[i] || (exact[i] = exactly(at[i], i));
    if (all) {
        made = new_cells(exact, flags);
        if (!made && !PyErr_Occurred())
            made = slowly(slow, takes, exact);
    } else if (ours())
        made = Py_NewRef(off);
    drop(exact, ARGUMENTS);
    return made;
}

static PyObject *fast_span(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                           PyObject *keywords)
{
    (void)module;
    /* Most calls give a name and nothing else, or a kind. */
    if (!keywords && count > 0 && count <= 2 && PyUnicode_CheckExact(arguments[0]) &&
        PyUnicode_CheckExact(arguments[count - 1])) {
        PyObject *at[ARGUMENTS] = {arguments[0], count == 2 ? arguments[1] : NULL};
        PyObject *made = new_cells(at, 0);
        if (made || PyErr_Occurred())
            return made;
    }
    return span_at_length(slow_span, ARGUMENTS, 0, arguments, count, keywords);
}

static PyObject *suspendable(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords)
{
    (void)module;
    if (!keywords && count == 2 && PyUnicode_CheckExact(arguments[0]) &&
        PyUnicode_CheckExact(arguments[1])) {
        PyObject *at[ARGUMENTS] = {arguments[0], arguments[1]};
        PyObject *made = new_cells(at, SUSPENDED);
        if (made || PyErr_Occurred())
            return made;
    }
    return span_at_length(slow_suspendable, STEP, SUSPENDED, arguments, count, keywords);
}

/* ---------------------------------------------------------------- record */

/* A number as an exact int of 64 bits or float, new; None where it is none. */
static PyObject *exact_number(PyObject *given)
{
    int overflow = 0;
    if (PyLong_CheckExact(given))
        PyLong_AsLongLongAndOverflow(given, &overflow);
    if (PyFloat_CheckExact(given) || (PyLong_CheckExact(given) && !overflow))
        return Py_NewRef(given);
    return PyObject_CallOneArg(plain_number, given);
}

/* Fills a NUMBER cell with an exact number, called by the id of its name. */
static void put_number(int64_t *cell, PyObject *number, int64_t id)
{
    int real = PyFloat_CheckExact(number);
    if (real) {
        double value = PyFloat_AS_DOUBLE(number);
        memcpy(&cell[1], &value, sizeof value);
    } else
        cell[1] = PyLong_AsLongLong(number);
    uint32_t tag = cell_tag(RCA_NUMBER, real ? RCA_FLAG_FLOAT : 0);
    __atomic_store_n(&cell[3], id | (int64_t)tag << 32, __ATOMIC_RELEASE);
}

/* A mark: what a call asks for, exact. */
typedef struct Mark {
    PyObject *name, *request;
    PyObject *const *names, *const *numbers; /* so many, None among them */
    Py_ssize_t count, known;                 /* and how many are not */
} Mark;

/* Writes a mark of this instant and its numbers. 1: done; 0: Python must; RAISED. */
static inline __attribute__((always_inline)) int put_mark(const Mark *mark, int64_t now)
{
    int64_t middle = 0, last = 0, ids[MOST_NUMBERS];
    Room *here = own_room();
    int room = has_room(here, 1 + mark->known);
    if (room < 0)
        return room == RAISED ? RAISED : 1;
    if (!room || !recall(here->known_marks, here->marks, mark->name, &last) ||
        !add_request(here, mark->request, NULL, &middle))
        return 0;
    for (Py_ssize_t i = 0; i < mark->count; i++) {
        ids[i] = 0;
        if (!recall(here->known_ids, here->ids, mark->names[i], &ids[i]))
            return 0;
    }
    int64_t *cell = next_cells(here, 1 + mark->known), *number = cell;
    for (Py_ssize_t i = 0; i < mark->count; i++)
        if (mark->numbers[i] != Py_None)
            put_number(number += WORDS_A_CELL, mark->numbers[i], ids[i]);
    cell[0] = now ? now : counter_clock();
    cell[2] = middle;
    __atomic_store_n(&cell[3], last, __ATOMIC_RELEASE);
    return 1;
}

/* A call of `record`, with room for what is made exact of its arguments, in their order. */
typedef struct Marking {
    PyObject *const *arguments;
    Py_ssize_t count, all; /* those by position, and with those by keyword */
    PyObject *keywords;
    PyObject *exact[2 + MOST_NUMBERS];
} Marking;

/* The keyword of an argument. */
static PyObject *keyword_of(const Marking *call, Py_ssize_t i)
{
    return i < call->count ? argument_texts[i ? REQUEST : NAME]
                           : PyTuple_GET_ITEM(call->keywords, i - call->count);
}

/* Whether a call is right, and all of its keywords are exact. */
static int is_right(const Marking *call)
{
    if (call->count < 1 || call->count > 2 || call->all - call->count > MOST_NUMBERS)
        return 0;
    for (Py_ssize_t i = call->count; i < call->all; i++) {
        PyObject *keyword = keyword_of(call, i);
        if (!PyUnicode_CheckExact(keyword) || names_argument(keyword, NAME) ||
            (call->count == 2 && names_argument(keyword, REQUEST)))
            return 0;
    }
    return 1;
}

/* Makes the arguments exact and writes the mark. 1: done; 0: Python must; RAISED. */
static int mark_exactly(Marking *call, int64_t now)
{
    PyObject *names[MOST_NUMBERS], *numbers[MOST_NUMBERS];
    Mark mark = {.names = names, .numbers = numbers};
    for (Py_ssize_t i = 0; i < call->all; i++) {
        PyObject *keyword = keyword_of(call, i), *given = call->arguments[i];
        int text = i < call->count || names_argument(keyword, REQUEST);
        int none = text && i && given == Py_None;
        PyObject *exact = none ? Py_NewRef(given) : text ? exactly(given, NAME) : exact_number(given);
        if (!(call->exact[i] = exact))
            return ours() ? 1 : RAISED;
        if (!i)
            mark.name = exact;
        else if (text)
            mark.request = none ? NULL : exact;
        else {
            names[mark.count] = keyword;
            numbers[mark.count++] = exact;
            mark.known += exact != Py_None;
        }
    }
    return put_mark(&mark, now);
}

static PyObject *mark_at_length(PyObject *const *arguments, Py_ssize_t count, PyObject *keywords)
{
    int64_t now = counter_clock();
    Py_ssize_t all = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
    Marking call = {arguments, count, all, keywords, {NULL}};
    if (!own_room() || !is_right(&call))
        return PyObject_Vectorcall(slow_record, arguments, (size_t)count, keywords);
    int done = mark_exactly(&call, now);
    PyObject *made = done == 1 ? Py_NewRef(Py_None) : NULL;
    if (!done)
        made = PyObject_Vectorcall(slow_record, call.exact, (size_t)count, keywords);
    drop(call.exact, all);
    return made;
}

static PyObject *fast_record(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                             PyObject *keywords)
{
    (void)module;
    if (count == 1 && !keywords && PyUnicode_CheckExact(arguments[0])) {
        int done = put_mark(&(Mark){.name = arguments[0]}, 0);
        if (done)
            return done == RAISED ? NULL : Py_NewRef(Py_None);
    }
    return mark_at_length(arguments, count, keywords);
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
    PyObject **places[] = {&slow_span, &slow_record,      &slow_suspendable, &plain_text,  &plain_whole,
                           &plain_number, &off, &request_variable, &faults};
    enum { GIVEN = sizeof places / sizeof *places };
    if (PyTuple_GET_SIZE(arguments) != GIVEN) {
        PyErr_SetString(PyExc_TypeError, "prepare takes other arguments");
        return NULL;
    }
    for (int i = 0; i < GIVEN; i++)
        Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"span", (PyCFunction)(void *)fast_span, METH_FASTCALL | METH_KEYWORDS,
     "span(name, kind='host', request=None, step=None, bytes=None, path=None)\n--\n\n"
     "A context manager that records the time spent inside it; as `rca_llm.probes.span.span`."},
    {"record", (PyCFunction)(void *)fast_record, METH_FASTCALL | METH_KEYWORDS,
     "record(name, request=None, **numbers)\n--\n\n"
     "Mark this instant; as `rca_llm.probes.span.record`."},
    {"suspendable", (PyCFunction)(void *)suspendable, METH_FASTCALL | METH_KEYWORDS,
     "suspendable(name, kind, request=None)\n--\n\n"
     "A span that may overlap others of its thread; as `rca_llm.probes.span.suspendable`."},
    {"over", (PyCFunction)(void *)over, METH_FASTCALL,
     "over(name, kind, start, end, request, overlaps)\n--\n\n"
     "Write a span of the past; False where nothing was written and Python must."},
    {"step", begin_step, METH_VARARGS,
     "step(words, at, id, start, batch, back)\n--\n\n"
     "Fill reserved room for a step; gives what `step_over` takes."},
    {"step_over", step_over, METH_VARARGS,
     "step_over(step, end, tokens)\n--\n\n"
     "End a step with which so many tokens of every request of its batch came."},
    {"event", (PyCFunction)(void *)event, METH_FASTCALL,
     "event(code, request, count, time=None)\n--\n\n"
     "Write what happened to a request; False where nothing was written and Python must."},
    {"enter_step", (PyCFunction)(void *)enter_step, METH_FASTCALL,
     "enter_step(number, requests, mode, phases)\n--\n\n"
     "Begin a step with {request: (phase, tokens)} or None; gives what `leave_step` takes,\n"
     "None where nothing is recorded, False where Python must see to it."},
    {"leave_step", (PyCFunction)(void *)leave_step, METH_FASTCALL,
     "leave_step(step, mode)\n--\n\nEnd a step; False where `enter_step` did not give it."},
    {"single", (PyCFunction)(void *)single, METH_FASTCALL,
     "single(objects, name)\n--\n\n"
     "Whether the attribute of that name has a length of 1 in every object of a list."},
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
     "prepare(span, record, suspendable, text, whole, number, off, variable, faults)\n--\n\n"
     "Take what does the uncommon, what makes arguments plain, OFF, the variable of the request,\n"
     "and what recording itself may raise."},
    {NULL, NULL, 0, NULL},
};

/* Texts that are compared and looked up by their address; whether there are all of them. */
static int intern_texts(void)
{
    for (int i = 0; i < ARGUMENTS; i++)
        if (!(argument_texts[i] = PyUnicode_InternFromString(argument_names[i])))
            return 0;
    refill_name = PyUnicode_InternFromString("refill");
    host = PyUnicode_InternFromString("host");
    return refill_name && host;
}

/* Fills the module, in one interpreter of a process: another finds that it cannot be imported. */
static int fill(PyObject *module)
{
    if (home && home != PyInterpreterState_Get()) {
        PyErr_SetString(PyExc_ImportError, "the fast paths serve one interpreter of a process");
        return -1;
    }
    home = PyInterpreterState_Get();
    free_count = 0;
    PyObject *room = PyType_FromSpec(&room_spec);
    span_type = (PyTypeObject *)PyType_FromSpec(&span_spec);
    if (!room || !span_type || !intern_texts() || !put_sides(span_type) ||
        PyModule_AddObject(module, "Room", room) < 0)
        return -1;
    counter_prepare();
    pthread_atfork(NULL, NULL, in_child);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_recorder",
    .m_doc = "Fast paths of spans and marks.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__recorder(void)
{
    return PyModuleDef_Init(&module_definition);
}
