/* Waits for Python's global interpreter lock.
 *
 * CPython waits for it with pthread_cond_timedwait on a condition inside `_PyRuntime`, and nothing
 * else there is waited for with a timeout. The wait is therefore known by the address of the
 * condition, to the nanosecond, and costs nothing where the lock is free. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <time.h>

#include "preload.h"

/* A thread that waits long asks again every 5 ms: such waits are one. */
#define APART_NS 200000

typedef int (*TimedWait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int (*Dladdr1)(const void *, Dl_info *, const ElfW(Sym) **, int);
typedef void *(*Dlvsym)(void *, const char *, const char *);

static TimedWait real_wait;
static uintptr_t runtime, runtime_end;

/* The wait under way or just over, of this thread. */
THREAD_LOCAL int64_t began, ended;
THREAD_LOCAL Cell *written;
THREAD_LOCAL int32_t writer;

/* glibc has two versions of the function, and dlsym may give the one for programs of 2002. What only
 * glibc has is looked up by name: a library that imports it could not be loaded elsewhere. */
static void resolve(void)
{
    Dlvsym versioned = (Dlvsym)(uintptr_t)dlsym(RTLD_DEFAULT, "dlvsym");
    void *found = versioned ? versioned(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2") : NULL;
    if (!found)
        found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_wait = (TimedWait)(uintptr_t)found;
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

__attribute__((visibility("default"))) int
pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                       const struct timespec *until)
{
    if (!real_wait)
        resolve();
    if (LIKELY((uintptr_t)condition - runtime >= runtime_end - runtime) || !state)
        return real_wait(condition, mutex, until);
    int64_t start = clock_monotonic();
    int result = real_wait(condition, mutex, until);
    record(start, clock_monotonic());
    return result;
}
