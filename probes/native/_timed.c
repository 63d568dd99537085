/* Wraps a callable so that its long calls are reported, and nothing else about it changes: no frame
 * of ours in a traceback, exceptions and results passed on as they are, methods bound as before. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "clock.h"

typedef struct Timed {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function, *report, *attributes, *weak;
    long long shortest_ns;
} Timed;

/* Tells of a call that has ended, and hands on its result, or NULL where it raised. A report does
 * not raise by itself: what comes out of one is of a signal handler of the program, and goes on. */
static PyObject *tell(Timed *self, int64_t begun, int64_t ended, PyObject *first, PyObject *result)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *told = PyObject_CallFunction(self->report, "LLO", (long long)begun, (long long)ended,
                                           first ? first : Py_None);
    if (told) {
        Py_DECREF(told);
        PyErr_Restore(kind, value, trace);
        return result;
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *timed_call(Timed *self, PyObject *const *arguments, size_t flags,
                            PyObject *keywords)
{
    PyObject *first = PyVectorcall_NARGS(flags) ? arguments[0] : NULL;
    Py_INCREF(self);
    Py_XINCREF(first);
    int64_t begun = clock_monotonic();
    PyObject *result = PyObject_Vectorcall(self->function, arguments, flags, keywords);
    int64_t ended = clock_monotonic();
    if (self->report && ended - begun >= self->shortest_ns)
        result = tell(self, begun, ended, first, result);
    Py_XDECREF(first);
    Py_DECREF(self);
    return result;
}

/* Binds as the function does: functions in C, pickle's say, do not. */
static PyObject *timed_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    int binds = Py_TYPE(((Timed *)self)->function)->tp_descr_get != NULL;
    return binds && object ? PyMethod_New(self, object) : Py_NewRef(self);
}

static PyObject *timed_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"function", "report", "shortest_ns", NULL};
    PyObject *function, *report;
    long long shortest_ns;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOL", names, &function, &report,
                                     &shortest_ns))
        return NULL;
    if (!PyCallable_Check(function) || !PyCallable_Check(report)) {
        PyErr_SetString(PyExc_TypeError, "function and report must be callable");
        return NULL;
    }
    Timed *self = (Timed *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->call = (vectorcallfunc)(void *)timed_call;
    self->function = Py_NewRef(function);
    self->report = Py_NewRef(report);
    self->shortest_ns = shortest_ns;
    return (PyObject *)self;
}

static int timed_traverse(Timed *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->report);
    Py_VISIT(self->attributes);
    return 0;
}

static int timed_clear(Timed *self)
{
    Py_CLEAR(self->report);
    Py_CLEAR(self->attributes);
    return 0;
}

static void timed_dealloc(Timed *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    timed_clear(self);
    Py_CLEAR(self->function);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *timed_repr(Timed *self)
{
    return PyObject_Repr(self->function);
}

/* Functions are pickled by the name that leads to them, and so is what stands in their place. */
static PyObject *timed_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__");
}

/* What is not an attribute of the wrapper is one of the function: __code__, __defaults__, … */
static PyObject *timed_attribute(Timed *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->function, name);
}

static PyMemberDef timed_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Timed, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Timed, attributes), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Timed, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef timed_methods[] = {
    {"__reduce__", timed_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef timed_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot timed_slots[] = {
    {Py_tp_new, timed_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, timed_get},
    {Py_tp_getattro, timed_attribute},
    {Py_tp_repr, timed_repr},
    {Py_tp_dealloc, timed_dealloc},
    {Py_tp_traverse, timed_traverse},
    {Py_tp_clear, timed_clear},
    {Py_tp_members, timed_members},
    {Py_tp_methods, timed_methods},
    {Py_tp_getset, timed_getset},
    {0, NULL},
};

static PyType_Spec timed_spec = {
    .name = "_timed.Timed",
    .basicsize = sizeof(Timed),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = timed_slots,
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_timed", "Reports the long calls of a callable.", -1, NULL,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__timed(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *timed = PyType_FromSpec(&timed_spec);
    if (!module || !timed || PyModule_AddObject(module, "Timed", timed) < 0)
        return NULL;
    return module;
}
