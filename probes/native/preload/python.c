/* Waits for Python's global interpreter lock.
 *
 * CPython waits for it with pthread_cond_timedwait on a condition inside `_PyRuntime`; a thread that
 * hands it over on request waits with pthread_cond_wait on another until the next one has taken it,
 * which is long where that one gets no CPU. Nothing else waits on conditions there. The wait is
 * therefore known by the address of the condition, to the nanosecond, and costs nothing where the
 * lock is free. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <time.h>

#include "preload.h"

/* A thread that waits long asks again every 5 ms: such waits are one. Between others it works. */
#define APART_NS 20000

typedef int (*TimedWait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int (*Wait)(pthread_cond_t *, pthread_mutex_t *);
typedef int (*Dladdr1)(const void *, Dl_info *, const ElfW(Sym) **, int);
typedef void *(*Dlvsym)(void *, const char *, const char *);

static TimedWait real_timed_wait;
static Wait real_wait;
static uintptr_t runtime, runtime_end;

/* The wait under way or just over, of this thread. */
THREAD_LOCAL int64_t began, ended;
THREAD_LOCAL Cell *written;
THREAD_LOCAL int32_t writer;

/* glibc has two versions of the functions, and dlsym may give those for programs of 2002. What only
 * glibc has is looked up by name: a library that imports it could not be loaded elsewhere. */
static uintptr_t behind(const char *name)
{
    Dlvsym versioned = (Dlvsym)(uintptr_t)dlsym(RTLD_DEFAULT, "dlvsym");
    void *found = versioned ? versioned(RTLD_NEXT, name, "GLIBC_2.3.2") : NULL;
    return (uintptr_t)(found ? found : dlsym(RTLD_NEXT, name));
}

static void resolve(void)
{
    real_timed_wait = (TimedWait)behind("pthread_cond_timedwait");
    real_wait = (Wait)behind("pthread_cond_wait");
}

void python_find(void)
{
    Dl_info about;
    const ElfW(Sym) *symbol = NULL;
    resolve();
    void *at = dlsym(RTLD_DEFAULT, "_PyRuntime");
    Dladdr1 describe = (Dladdr1)(uintptr_t)dlsym(RTLD_DEFAULT, "dladdr1");
    if (!at || !describe || !describe(at, &about, &symbol, RTLD_DL_SYMENT) || !symbol)
        return;
    runtime = (uintptr_t)at;
    runtime_end = runtime + symbol->st_size;
}

/* Short waits are the most, and only noted: entering the journal costs a system call. */
static void record(int64_t start, int64_t end)
{
    bool same = start - ended < APART_NS && writer == state->pid;
    if (!same) {
        began = start;
        written = NULL;
    }
    ended = end;
    writer = state->pid;
    if (!written && (uint64_t)(end - began) < least_ns)
        return;
    if (!journal_enter())
        return;
    writer = state->pid; /* a forked child has one from here on */
    if (written)
        __atomic_store_n(&written->b, end, __ATOMIC_RELAXED);
    else
        written = journal_call(&(Call){.start = began,
                                       .end = end,
                                       .bytes = -1,
                                       .op = OP_GIL,
                                       .kind = KIND_GIL});
    journal_leave();
}

static inline bool is_of_lock(const pthread_cond_t *condition)
{
    return !LIKELY((uintptr_t)condition - runtime >= runtime_end - runtime) && state;
}

__attribute__((visibility("default"))) int
pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                       const struct timespec *until)
{
    if (!real_timed_wait)
        resolve();
    if (!is_of_lock(condition))
        return real_timed_wait(condition, mutex, until);
    int64_t start = clock_monotonic();
    int result = real_timed_wait(condition, mutex, until);
    record(start, clock_monotonic());
    return result;
}

__attribute__((visibility("default"))) int pthread_cond_wait(pthread_cond_t *condition,
                                                             pthread_mutex_t *mutex)
{
    if (!real_wait)
        resolve();
    if (!is_of_lock(condition))
        return real_wait(condition, mutex);
    int64_t start = clock_monotonic();
    int result = real_wait(condition, mutex);
    record(start, clock_monotonic());
    return result;
}
