/* Looks at threads from outside, for the launcher: what probes/watch.py does, at a tenth of its price,
 * since a server has many threads and all are looked at a hundred times a second. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "format.h"

/* A thread that was blocked for so long since the last look is asked for its page faults: that costs
 * more than the rest, and only then they matter. */
#define BLOCKED_NS 500000

enum {
    MOST_KEPT = 128, /* files of faults that stay open; others are opened for each look */
    TEXT_BYTES = 1024,
    FAULTS_FIELD = 10, /* behind the name: the state is the first */
    KERNEL_FIELD = 13,
    CPU_FIELD = 37,
    SCHED_FAULTS = 1,
    REST = 19, /* a look that took some CPU time rests so many times as long: a share of 5 % */
};

static int kept;
static uint64_t tick_us;

typedef struct Watch {
    PyObject_HEAD
    int pid, tid;
    int schedstat, stat; /* descriptors; stat is -1 while not open */
    unsigned long long on_cpu, delay, slices;
    int64_t seen, told; /* the last look, and the last that read `stat` */
    long long every;    /* ns after which it is read in any case; 0: only for faults */
    char asked, ran, ended;
} Watch;

/* What a thread's `stat` says: major faults, time in the kernel, µs, and the CPU it ran on last. */
typedef struct Told {
    int known;
    uint64_t faults, kernel, cpu;
} Told;

static int open_file(const Watch *watch, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", watch->pid, watch->tid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* What a file of /proc says now; 0 bytes where its thread has ended. */
static size_t read_file(int fd, char *text)
{
    ssize_t bytes = pread(fd, text, TEXT_BYTES - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0 ? (size_t)bytes : 0;
}

/* ---------------------------------------------------------------- one thread */

static void parse_stat(const char *text, Told *told)
{
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    int field = 0;
    for (; at && *at && field < CPU_FIELD; at++) {
        if (*at != ' ')
            continue;
        field++;
        if (field == FAULTS_FIELD)
            told->faults = strtoull(at + 1, NULL, 10);
        if (field == KERNEL_FIELD)
            told->kernel = strtoull(at + 1, NULL, 10) * tick_us;
        if (field == CPU_FIELD)
            told->cpu = strtoull(at + 1, NULL, 10);
    }
    told->known = field == CPU_FIELD;
}

static void ask_stat(Watch *watch, Told *told)
{
    char text[TEXT_BYTES];
    int fd = watch->stat >= 0 ? watch->stat : open_file(watch, "stat");
    if (fd < 0)
        return;
    size_t bytes = read_file(fd, text);
    if (watch->stat < 0 && __atomic_load_n(&kept, __ATOMIC_RELAXED) < MOST_KEPT) {
        watch->stat = fd;
        __atomic_add_fetch(&kept, 1, __ATOMIC_RELAXED);
    } else if (watch->stat < 0) {
        close(fd);
    }
    if (bytes)
        parse_stat(text, told);
}

static int parse_schedstat(const char *text, uint64_t values[3])
{
    char *end = (char *)text;
    for (int i = 0; i < 3; i++) {
        const char *from = end;
        values[i] = strtoull(from, &end, 10);
        if (end == from)
            return 0;
    }
    return 1;
}

static void write_cells(Cell *at, const Watch *watch, const Told *told)
{
    at[1].a = (int64_t)watch->delay;
    at[1].b = (int64_t)watch->slices;
    at[1].c = (uint32_t)told->faults;
    at[1].d = told->known ? SCHED_FAULTS : 0;
    at[1].e = (uint32_t)told->kernel;
    at[1].tag = cell_tag(RCA_MORE, 0);
    at->a = watch->seen;
    at->b = (int64_t)watch->on_cpu;
    at->c = told->known ? (uint32_t)told->cpu + 1 : 0;
    at->d = (uint32_t)watch->pid;
    at->e = (uint32_t)watch->tid;
    __atomic_store_n(&at->tag, cell_tag(RCA_SCHED, RCA_FLAG_MORE), __ATOMIC_RELEASE);
}

/* Writes two cells where the thread's numbers have changed; the cells written. */
static size_t look_at(Watch *watch, Cell *at)
{
    char text[TEXT_BYTES];
    uint64_t values[3];
    Told told = {0};
    watch->ran = 0;
    if (watch->ended || !read_file(watch->schedstat, text) || !parse_schedstat(text, values)) {
        watch->ended = 1;
        return 0;
    }
    if (values[0] == watch->on_cpu && values[1] == watch->delay && values[2] == watch->slices)
        return 0;
    int64_t now = clock_monotonic();
    int64_t busy = (int64_t)(values[0] - watch->on_cpu + values[1] - watch->delay);
    int ask = !watch->asked || now - watch->seen - busy >= BLOCKED_NS ||
              (watch->every && now - watch->told >= watch->every);
    watch->on_cpu = values[0];
    watch->delay = values[1];
    watch->slices = values[2];
    watch->seen = now;
    watch->asked = watch->ran = 1;
    if (ask) {
        watch->told = now;
        ask_stat(watch, &told);
    }
    write_cells(at, watch, &told);
    return 2;
}

/* ---------------------------------------------------------------- Watch */

static int watch_init(Watch *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"pid", "tid", "every", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "ii|L", names, &self->pid, &self->tid,
                                     &self->every))
        return -1;
    self->schedstat = open_file(self, "schedstat");
    self->seen = clock_monotonic();
    if (self->schedstat >= 0)
        return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    (void)arguments, (void)keywords;
    Watch *self = (Watch *)type->tp_alloc(type, 0);
    if (self)
        self->schedstat = self->stat = -1;
    return (PyObject *)self;
}

static void watch_dealloc(Watch *self)
{
    if (self->schedstat >= 0)
        close(self->schedstat);
    if (self->stat >= 0) {
        close(self->stat);
        __atomic_sub_fetch(&kept, 1, __ATOMIC_RELAXED);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef watch_members[] = {
    {"pid", T_INT, offsetof(Watch, pid), READONLY, NULL},
    {"tid", T_INT, offsetof(Watch, tid), READONLY, NULL},
    {"delay", T_ULONGLONG, offsetof(Watch, delay), READONLY, NULL},
    {"ran", T_BOOL, offsetof(Watch, ran), READONLY, NULL},
    {"ended", T_BOOL, offsetof(Watch, ended), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject watch_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rca_llm.probes.native._watch.Watch",
    .tp_basicsize = sizeof(Watch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = watch_new,
    .tp_init = (initproc)watch_init,
    .tp_dealloc = (destructor)watch_dealloc,
    .tp_members = watch_members,
};

/* ---------------------------------------------------------------- look */

static PyObject *look(PyObject *self, PyObject *arguments)
{
    (void)self;
    PyObject *watches;
    Py_buffer words;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(arguments, "O!w*n", &PyList_Type, &watches, &words, &at))
        return NULL;
    Cell *cell = (Cell *)((char *)words.buf + at * 8);
    Cell *end = (Cell *)((char *)words.buf + words.len);
    for (Py_ssize_t i = 0; at >= 0 && i < PyList_GET_SIZE(watches) && end - cell >= 2; i++) {
        PyObject *watch = PyList_GET_ITEM(watches, i);
        if (Py_IS_TYPE(watch, &watch_type))
            cell += look_at((Watch *)watch, cell);
    }
    at = ((char *)cell - (char *)words.buf) / 8;
    PyBuffer_Release(&words);
    return PyLong_FromSsize_t(at);
}

/* ---------------------------------------------------------------- follow */

/* Threads that are looked at again and again, and where what they say goes. */
typedef struct Followed {
    PyObject *watches; /* a tuple, which nobody else changes meanwhile */
    Py_buffer words, gate, ends;
    Cell *cell, *end;
    long long period, until; /* ns */
} Followed;

static int64_t thread_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_until(int64_t ns)
{
    struct timespec at = {ns / 1000000000, ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* Looks at each once; whether all can be looked at again. */
static int look_at_all(Followed *all)
{
    int living = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all->watches); i++) {
        Watch *watch = (Watch *)PyTuple_GET_ITEM(all->watches, i);
        all->cell += look_at(watch, all->cell);
        living = living && !watch->ended;
    }
    return living && all->end - all->cell >= 2 * PyTuple_GET_SIZE(all->watches);
}

/* Whether records are wanted and nobody has ended this. */
static int goes_on(const Followed *all)
{
    return ((volatile char *)all->gate.buf)[0] == 1 && ((volatile char *)all->ends.buf)[0] == 0;
}

/* Without the GIL: between two looks no line of Python runs, which would cost more than the look. */
static void follow_all(Followed *all)
{
    int64_t due = clock_monotonic(), before = thread_time();
    while (look_at_all(all)) {
        int64_t now = clock_monotonic(), spent = thread_time() - before;
        int64_t rest = now + REST * spent;
        due = due + all->period > rest ? due + all->period : rest;
        if (due >= all->until)
            return;
        sleep_until(due);
        if (!goes_on(all))
            return;
        before = thread_time();
    }
}

static int are_watches(PyObject *watches)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watches); i++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(watches, i), &watch_type))
            return 0;
    return 1;
}

/* follow(watches, words, at, gate, ends, period, until): `look` now and every so many ns, until that
 * time, or the gate is shut, or `ends` is set, or a thread has ended, or there is no more room. */
static PyObject *follow(PyObject *self, PyObject *arguments)
{
    (void)self;
    PyObject *watches;
    Followed all;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(arguments, "O!w*ny*y*LL", &PyList_Type, &watches, &all.words, &at,
                          &all.gate, &all.ends, &all.period, &all.until))
        return NULL;
    all.watches = PyList_AsTuple(watches);
    all.cell = (Cell *)((char *)all.words.buf + at * 8);
    all.end = (Cell *)((char *)all.words.buf + all.words.len);
    if (all.watches && are_watches(all.watches) && all.gate.len && all.ends.len && at >= 0 &&
        all.end - all.cell >= 2 * PyTuple_GET_SIZE(all.watches)) {
        Py_BEGIN_ALLOW_THREADS
        follow_all(&all);
        Py_END_ALLOW_THREADS
    }
    at = ((char *)all.cell - (char *)all.words.buf) / 8;
    PyBuffer_Release(&all.words);
    PyBuffer_Release(&all.gate);
    PyBuffer_Release(&all.ends);
    if (!all.watches)
        return NULL;
    Py_DECREF(all.watches);
    return PyLong_FromSsize_t(at);
}

static PyMethodDef methods[] = {
    {"look", look, METH_VARARGS, NULL},
    {"follow", follow, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_watch",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__watch(void)
{
    long rate = sysconf(_SC_CLK_TCK);
    tick_us = rate > 0 ? 1000000u / (uint64_t)rate : 10000u;
    if (PyType_Ready(&watch_type) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Watch", (PyObject *)&watch_type) < 0)
        Py_CLEAR(made);
    return made;
}
