/* Looks at the calling thread: how long it has run, waited for a CPU, and how often it faulted; as
 * probes/looks.py. Part of _recorder.c. */
#ifndef RCA_RECORDER_LOOK_H
#define RCA_RECORDER_LOOK_H

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "recorder_room.h"

/* When an edge of a span is the next reason to look at this thread, ns; 0 outside of steps. */
static _Thread_local int64_t look_at;
static int stepping; /* whether any thread ever was: spares spans elsewhere the way to its storage */

/* A look costs about a microsecond: so often it is less than a thousandth of the time. */
#define LOOK_EVERY_NS 2000000
/* By how much the kernel's count of time on CPU may lag: it is brought up to date at ticks. */
#define LOOK_NEAR_NS 20000000

/* The thread's schedstat, kept open, and its id; of a process before a fork nothing is kept. */
static _Thread_local struct {
    unsigned generation;
    int known, descriptor, process, thread;
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
        self_look.process = (int)getpid();
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
    return here && gate && here->at + 2 * WORDS_A_CELL <= here->end && has_room(here, 2) == 1;
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
    cell[2] = (int64_t)self_look.process << 32;
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

#endif
