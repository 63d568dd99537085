/* The least that a span can cost in Python: context managers in C that do nothing, the usual way and
 * without bound methods (as ours), or only read the clock on entry and exit, and a function that only
 * reads the clock. Compare with `span` and `record`. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "clock.h"

typedef struct Bare {
    PyObject_HEAD
    vectorcallfunc call;
} Bare;

static volatile int64_t seen;
static PyObject *idle, *timed, *bare;

static PyObject *enter_idle(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *exit_idle(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    Py_RETURN_NONE;
}

static PyObject *enter_timed(PyObject *self, PyObject *unused)
{
    (void)unused;
    seen = clock_monotonic();
    return Py_NewRef(self);
}

static PyObject *exit_timed(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    seen = clock_monotonic();
    Py_RETURN_NONE;
}

static PyMethodDef idle_methods[] = {
    {"__enter__", enter_idle, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void *)exit_idle, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef timed_methods[] = {
    {"__enter__", enter_timed, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void *)exit_timed, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject idle_type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "Idle",
                                 .tp_basicsize = sizeof(PyObject), .tp_methods = idle_methods};
static PyTypeObject timed_type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "Timed",
                                  .tp_basicsize = sizeof(PyObject), .tp_methods = timed_methods};

/* Stands for its own `__enter__` and `__exit__`. */
static PyObject *call_bare(PyObject *self, PyObject *const *arguments, size_t count,
                           PyObject *keywords)
{
    (void)arguments, (void)keywords;
    return Py_NewRef(PyVectorcall_NARGS(count) ? Py_None : self);
}

static PyObject *get_bare(PyObject *side, PyObject *self, PyObject *type)
{
    (void)type;
    return Py_NewRef(self ? self : side);
}

static PyTypeObject side_type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "Side",
                                 .tp_basicsize = sizeof(PyObject), .tp_descr_get = get_bare};
static PyTypeObject bare_type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "Bare",
                                 .tp_basicsize = sizeof(Bare),
                                 .tp_vectorcall_offset = offsetof(Bare, call),
                                 .tp_call = PyVectorcall_Call,
                                 .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL};

static PyObject *make_bare(void)
{
    PyObject *side = (PyObject *)PyObject_New(PyObject, &side_type);
    PyObject *both = side ? Py_BuildValue("{sOsO}", "__enter__", side, "__exit__", side) : NULL;
    bare_type.tp_dict = both;
    if (!both || PyType_Ready(&bare_type) < 0)
        return NULL;
    Bare *made = PyObject_New(Bare, &bare_type);
    if (made)
        made->call = call_bare;
    return (PyObject *)made;
}

static PyObject *give_bare(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    return Py_NewRef(bare);
}

static PyObject *give_idle(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    return Py_NewRef(idle);
}

static PyObject *give_timed(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    return Py_NewRef(timed);
}

static PyObject *mark_timed(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)arguments, (void)count;
    seen = clock_monotonic();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"idle", (PyCFunction)(void *)give_idle, METH_FASTCALL, NULL},
    {"bare", (PyCFunction)(void *)give_bare, METH_FASTCALL, NULL},
    {"timed", (PyCFunction)(void *)give_timed, METH_FASTCALL, NULL},
    {"mark", (PyCFunction)(void *)mark_timed, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "span_floor", NULL, -1, functions,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_span_floor(void)
{
    if (PyType_Ready(&idle_type) < 0 || PyType_Ready(&timed_type) < 0 ||
        PyType_Ready(&side_type) < 0)
        return NULL;
    bare = make_bare();
    idle = (PyObject *)PyObject_New(PyObject, &idle_type);
    timed = (PyObject *)PyObject_New(PyObject, &timed_type);
    return idle && timed && bare ? PyModule_Create(&definition) : NULL;
}
