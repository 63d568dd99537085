/* Events of requests, and engine steps with their batches; as probes/scope.py and engines/emit.py.
 * Part of _recorder.c. */
#ifndef RCA_RECORDER_STEPS_H
#define RCA_RECORDER_STEPS_H

#include "counter_clock.h"
#include "recorder_room.h"

/* A cell that is filled further later, as a Python object; NULL with something raised. */
static PyObject *held(PyObject *view, int64_t *cell);
static int is_held(PyObject *object);
/* The cell; NULL where the object holds none, or a forked child has it from its parent. */
static int64_t *cell_of(PyObject *object);

/* The cell behind a step: its number, and tokens that left with it, -1 where none are known. */
static void put_number_of_step(int64_t *more, int64_t number)
{
    more[0] = number;
    more[1] = -1;
    more[2] = 0;
    __atomic_store_n(&more[3], (int64_t)cell_tag(RCA_MORE, 0) << 32, __ATOMIC_RELEASE);
}

static void put_step(int64_t *cell, int64_t start, int64_t mode, int64_t requests, uint32_t back)
{
    cell[0] = start;
    cell[1] = 0;
    cell[2] = mode | requests << 32;
    __atomic_store_n(&cell[3], (int64_t)cell_tag(RCA_STEP, RCA_FLAG_MORE) << 32 | back,
                     __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------- events */

/* event(code, request, count, time=None): something happened to a request, now where no time is
 * given. False: nothing was written, the slow path must. */
static PyObject *event(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    int64_t now = counter_clock(), id = 0;
    Room *here = own_room();
    int room = count == 3 || count == 4 ? has_room(here, 1) : 0;
    if (room == RAISED)
        return NULL;
    if (room < 0)
        Py_RETURN_TRUE;
    PyObject *time = count == 4 ? arguments[3] : Py_None;
    if (!room || !PyLong_CheckExact(arguments[0]) || !PyUnicode_CheckExact(arguments[1]) ||
        !PyLong_CheckExact(arguments[2]) || !(time == Py_None || PyLong_CheckExact(time)) ||
        !recall(here->known_ids, here->ids, arguments[1], &id))
        Py_RETURN_FALSE;
    int overflow[3] = {0, 0, 0};
    int64_t code = PyLong_AsLongLongAndOverflow(arguments[0], &overflow[0]);
    int64_t number = PyLong_AsLongLongAndOverflow(arguments[2], &overflow[1]);
    if (time != Py_None)
        now = PyLong_AsLongLongAndOverflow(time, &overflow[2]);
    if (overflow[0] || overflow[1] || overflow[2] || number < 0)
        Py_RETURN_FALSE;
    int64_t *cell = next_cells(here, 1);
    cell[0] = now;
    cell[1] = number;
    cell[2] = code | id << 32;
    __atomic_store_n(&cell[3], (int64_t)cell_tag(RCA_REQUEST, 0) << 32, __ATOMIC_RELEASE);
    Py_RETURN_TRUE;
}

/* ---------------------------------------------------------------- steps by `with` */

/* Fills the cell of a request, whose row is (phase, tokens); 0 where it is of another form. */
static int put_request(Room *here, int64_t *cell, PyObject *request, PyObject *row,
                       PyObject *phases)
{
    int64_t id = 0, tokens;
    int overflow;
    if (!PyUnicode_CheckExact(request) || !PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 2 ||
        !PyUnicode_CheckExact(PyTuple_GET_ITEM(row, 0)) ||
        !PyLong_CheckExact(PyTuple_GET_ITEM(row, 1)) ||
        !recall(here->known_ids, here->ids, request, &id))
        return 0;
    PyObject *phase = PyDict_GetItemWithError(phases, PyTuple_GET_ITEM(row, 0));
    tokens = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(row, 1), &overflow);
    cell[0] = tokens < 0 || overflow ? -1 : tokens;
    cell[1] = 0;
    cell[2] = (phase ? PyLong_AsLongLong(phase) : 0) | id << 32;
    __atomic_store_n(&cell[3], (int64_t)cell_tag(RCA_STEP_REQUEST, 0) << 32, __ATOMIC_RELEASE);
    return 1;
}

/* Fills the cells of a batch, or none of them; whether it did. No Python code runs in between. */
static int put_requests(Room *here, int64_t *cell, PyObject *requests, PyObject *phases)
{
    PyObject *request, *row;
    Py_ssize_t place = 0;
    int64_t *first = cell;
    while (PyDict_Next(requests, &place, &request, &row)) {
        if (!put_request(here, cell, request, row, phases)) {
            memset(first, 0, (size_t)((char *)cell - (char *)first));
            return 0;
        }
        cell += WORDS_A_CELL;
    }
    return 1;
}

/* enter_step(number, requests, mode, phases): a step begins now, with {request: (phase, tokens)} or
 * None. Gives what `leave_step` takes, None where nothing is recorded; False: the slow path must. */
static PyObject *enter_step(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    int64_t now = counter_clock();
    int overflow;
    Room *here = own_room();
    if (count != 4 || !PyLong_CheckExact(arguments[0]) || !PyLong_CheckExact(arguments[2]) ||
        !(arguments[1] == Py_None || PyDict_CheckExact(arguments[1])) ||
        !PyDict_CheckExact(arguments[3]))
        Py_RETURN_FALSE;
    Py_ssize_t batch = arguments[1] == Py_None ? 0 : PyDict_GET_SIZE(arguments[1]);
    int room = has_room(here, 2 + batch);
    if (room == RAISED)
        return NULL;
    if (room < 0)
        Py_RETURN_NONE;
    int64_t *cell = room ? here->words + here->at : NULL; /* reserved below: it may not come to it */
    if (!room || (batch && (PyDict_GET_SIZE(arguments[1]) != batch ||
                            !put_requests(here, cell + 2 * WORDS_A_CELL, arguments[1], arguments[3]))))
        Py_RETURN_FALSE;
    next_cells(here, 2 + batch);
    int64_t number = PyLong_AsLongLongAndOverflow(arguments[0], &overflow);
    put_number_of_step(cell + WORDS_A_CELL, number < 0 || overflow ? -1 : number);
    put_step(cell, now, PyLong_AsLongLong(arguments[2]), batch, 0);
    return held(here->view, cell);
}

/* leave_step(step, mode): it ends now. False: it is none that `enter_step` gave. */
static PyObject *leave_step(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !is_held(arguments[0]) || !PyLong_CheckExact(arguments[1]))
        Py_RETURN_FALSE;
    int64_t *cell = cell_of(arguments[0]);
    if (cell) {
        cell[2] = PyLong_AsLongLong(arguments[1]) | (cell[2] & ~INT64_C(0xFFFFFFFF));
        __atomic_store_n(&cell[1], counter_clock(), __ATOMIC_RELEASE);
    }
    Py_RETURN_TRUE;
}

/* ---------------------------------------------------------------- steps of engines */

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
    PyObject *made = cell ? held(words, cell) : NULL;
    if (made) {
        put_number_of_step(cell + WORDS_A_CELL, id);
        memcpy(cell + 2 * WORDS_A_CELL, batch.buf, (size_t)batch.len);
        put_step(cell, start, 0, batch.len / RCA_CELL_BYTES, back);
    }
    PyBuffer_Release(&batch);
    return made;
}

/* step_over(step, end, tokens): so many tokens of every request left with a step, which is over. */
static PyObject *step_over(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *step;
    long long end, tokens;
    if (!PyArg_ParseTuple(arguments, "OLL", &step, &end, &tokens))
        return NULL;
    int64_t *cell = cell_of(step);
    if (!cell)
        Py_RETURN_NONE;
    int64_t *more = cell + WORDS_A_CELL, *request = more + WORDS_A_CELL;
    if ((uint32_t)cell[3])
        more[1] = tokens;
    for (int64_t i = cell[2] >> 32; i > 0; i--, request += WORDS_A_CELL)
        request[1] = tokens;
    __atomic_store_n(&cell[1], end, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* single(objects, name): whether each object's attribute of that name has a length of 1. */
static PyObject *single(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyList_Check(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "single takes a list and a name");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments[0]); i++) {
        PyObject *object = Py_NewRef(PyList_GET_ITEM(arguments[0], i));
        PyObject *found = PyObject_GetAttr(object, arguments[1]);
        Py_ssize_t length = found ? PyObject_Size(found) : -1;
        Py_XDECREF(found);
        Py_DECREF(object);
        if (length < 0)
            return NULL;
        if (length != 1)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

#endif
