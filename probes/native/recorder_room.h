/* Room: what the fast paths touch of a recorder (probes/recorder.py), the texts that they know, and
 * pages of the file made ahead of what is written. Part of _recorder.c. */
#ifndef RCA_RECORDER_ROOM_H
#define RCA_RECORDER_ROOM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <structmember.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "format.h"

enum {
    WORDS_A_CELL = RCA_CELL_BYTES / 8,
    GATE_WORDS = 32 * WORDS_A_CELL, /* as in recorder.py */
    KNOWN = 64,
    AHEAD_BYTES = 64 * 1024,
    AHEAD_WORDS = AHEAD_BYTES / 8,
};

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
    Py_ssize_t begin;    /* of the block in the file, in bytes */
    Py_ssize_t ready;    /* the word up to which pages were made ahead */
    int64_t *words;
    PyObject *view; /* the memoryview that `words` points into */
    PyObject *path; /* of the file */
    PyObject *spans, *marks, *ids, *kinds;
    Known known_spans[KNOWN], known_marks[KNOWN], known_kinds[KNOWN], known_ids[KNOWN];
} Room;

/* Counts forks: in a child every recorder and span from before belongs to the parent. */
static unsigned generation;

/* A thread's recorder, kept alive by the list of recorders in Python. */
typedef struct Own {
    Room *room;
    unsigned generation;
} Own;

static _Thread_local Own own;

static const volatile unsigned char *gate; /* first byte of the control file: 1 record */
static PyObject *faults, *refill_name;

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
    self->ready = 0;
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
    Py_VISIT(self->path);
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
    forget(self->known_ids);
    self->words = NULL;
    self->last = self->end = -1;
    Py_CLEAR(self->view);
    Py_CLEAR(self->spans);
    Py_CLEAR(self->marks);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->kinds);
    Py_CLEAR(self->path);
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
    {"begin", T_PYSSIZET, offsetof(Room, begin), 0, NULL},
    {"path", T_OBJECT_EX, offsetof(Room, path), 0, NULL},
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

/* The calling thread's recorder, NULL where it has none. */
static inline Room *own_room(void)
{
    const Own *mine = &own; /* asking for its address is a call */
    return mine->generation == generation ? mine->room : NULL;
}

/* ---------------------------------------------------------------- room for cells */

/* Writes zeros into a part of the file, by its path as recorder.py maps it: the program may close
 * descriptors that it does not know. Not through the C library, whose calls are the program's. */
static void write_zeros(PyObject *path, Py_ssize_t offset, Py_ssize_t size)
{
#if defined(__LP64__) && defined(SYS_pwrite64)
    static const char zeros[AHEAD_BYTES];
    const char *name = path && PyUnicode_CheckExact(path) ? PyUnicode_AsUTF8(path) : NULL;
    if (!name) {
        PyErr_Clear();
        return;
    }
    int before = errno;
    long descriptor = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CLOEXEC);
    if (descriptor >= 0) {
        syscall(SYS_pwrite64, descriptor, zeros, size, offset);
        syscall(SYS_close, descriptor);
    }
    errno = before;
#else
    (void)path, (void)offset, (void)size;
#endif
}

/* Whether a touch of the first of these pages, which hold nothing yet, brings the others too. */
static int mapped_together(int64_t *pages)
{
    struct rusage before, after;
    if (getrusage(RUSAGE_THREAD, &before))
        return 0;
    __atomic_store_n(pages, 0, __ATOMIC_RELAXED);
    __atomic_store_n(pages + AHEAD_WORDS - 1, 0, __ATOMIC_RELAXED);
    return !getrusage(RUSAGE_THREAD, &after) &&
           after.ru_minflt + after.ru_majflt <= before.ru_minflt + before.ru_majflt + 1;
}

/* 1: pages that were written together are mapped together, here. Below: so often they were not, as
 * by chance (a boundary between page tables), or because kernel or file system never do. */
static int together;
enum { GIVE_UP = -3 };

/* Grows where writing ahead takes long, as on a network's file system, which may flush each time. */
static int tardy;
enum { LONG_NS = 1000000, ONE_IN = 8, TOO_TARDY = 3 * ONE_IN };

/* Makes the pages behind the next free word, up to a word, before they are touched: a page that is
 * touched first costs as much as a hundred records. Where sixteen that are written at once are mapped
 * by one touch (Linux 6.16 on ext4), they cost a third. What is not made ahead is made by a touch. */
static void make_pages(Room *here, Py_ssize_t until)
{
    Py_ssize_t start = (here->at + AHEAD_WORDS - 1) / AHEAD_WORDS * AHEAD_WORDS;
    if (start < here->ready)
        start = here->ready;
    if (start >= until || start + AHEAD_WORDS > here->end || together == GIVE_UP)
        return;
    here->ready = start + AHEAD_WORDS;
    int64_t begun = clock_monotonic();
    write_zeros(here->path, here->begin + start * 8, AHEAD_BYTES);
    tardy += clock_monotonic() - begun > LONG_NS ? ONE_IN : tardy > 0 ? -1 : 0;
    if (together <= 0)
        together = mapped_together(here->words + start) ? 1 : together - 1;
    if (tardy > TOO_TARDY)
        together = GIVE_UP;
}

/* Lets the fast paths go on up to where the gate is looked at again, or to the end of the block. */
static void open_window(Room *here)
{
    Py_ssize_t next = here->at + GATE_WORDS;
    here->last = next < here->end ? next : here->end;
    make_pages(here, here->last);
}

/* Whether this thread has a recorder with room for some cells: 0 where Python must see to it,
 * NOTHING where none may be written, RAISED where Python code that ran in between (a signal handler
 * of the program) has raised. */
enum { NOTHING = -1, RAISED = -2 };

static int grow(Room *here, Py_ssize_t cells)
{
    PyObject *count = PyLong_FromSsize_t(cells);
    PyObject *more =
        count ? PyObject_CallMethodOneArg((PyObject *)here, refill_name, count) : NULL;
    int room = more == Py_True;
    Py_XDECREF(count);
    Py_XDECREF(more);
    if (!more && !PyErr_ExceptionMatches(faults))
        return RAISED;
    if (!more)
        PyErr_Clear();
    if (here->at + cells * WORDS_A_CELL > here->end)
        return more ? NOTHING : 0;
    if (room)
        open_window(here);
    return room;
}

static int refill(Room *here, Py_ssize_t cells)
{
    if (gate && !*gate)
        return NOTHING;
    if (!gate || here->at + cells * WORDS_A_CELL > here->end)
        return grow(here, cells);
    open_window(here);
    return 1;
}

static inline int has_room(Room *here, Py_ssize_t cells)
{
    if (!here)
        return 0;
    return here->at + cells * WORDS_A_CELL <= here->last ? 1 : refill(here, cells);
}

/* Reserves cells; nothing between this and their last store runs Python code. */
static inline int64_t *next_cells(Room *here, Py_ssize_t count)
{
    int64_t *cell = here->words + here->at;
    here->at += count * WORDS_A_CELL;
    return cell;
}

/* ---------------------------------------------------------------- words of texts */

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

#endif
