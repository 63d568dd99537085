#include "nvtx_thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

static const char *run_directory;
static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static NvtxThread *spare, *all;

static _Thread_local NvtxThread *mine;
static _Thread_local bool failed;

void open_range_end(OpenRange *range)
{
    if (!range->cell)
        return;
    __atomic_store_n(&range->cell->b, clock_monotonic(), __ATOMIC_RELEASE);
    block_release(range->block);
}

static void thread_ends(void *thread)
{
    NvtxThread *self = thread;
    for (; self->depth > 0; self->depth--)
        if (self->stack[self->depth - 1].cell)
            block_release(self->stack[self->depth - 1].block);
    mine = NULL;
    pthread_mutex_lock(&lock);
    self->next_spare = spare;
    spare = self;
    pthread_mutex_unlock(&lock);
}

/* The parent's segments are not the child's to write: it begins with none, and forgets the ranges
 * that were open, whose ends the parent will see. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_setspecific(key, NULL);
    mine = NULL;
    failed = false;
    spare = all = NULL;
}

/* Without waiting: a signal handler may have called exit while its thread held the lock. */
static void at_exit(void)
{
    if (pthread_mutex_trylock(&lock) != 0)
        return;
    for (NvtxThread *each = all; each; each = each->next_all)
        each->segment.header->closed_ns = clock_monotonic();
    pthread_mutex_unlock(&lock);
}

void nvtx_threads_start(const char *run)
{
    pthread_mutex_lock(&lock);
    if (!run_directory) {
        run_directory = run;
        pthread_key_create(&key, thread_ends);
        pthread_atfork(NULL, NULL, in_child);
        atexit(at_exit);
    }
    pthread_mutex_unlock(&lock);
}

/* A segment that an ended thread left, marked as this thread's from here on. */
static NvtxThread *take_over(void)
{
    char name[32] = "";
    pthread_mutex_lock(&lock);
    NvtxThread *self = spare;
    if (self)
        spare = self->next_spare;
    pthread_mutex_unlock(&lock);
    if (!self)
        return NULL;
    pthread_getname_np(pthread_self(), name, sizeof name);
    Cell cell = {.a = clock_monotonic(), .b = (int64_t)syscall(SYS_gettid)};
    cell.c = names_id(&self->names, &self->segment, name);
    segment_cell(&self->segment, cell, RCA_THREAD, 0);
    return self;
}

static NvtxThread *create(void)
{
    NvtxThread *self = calloc(1, sizeof *self);
    if (!self || !segment_open(&self->segment, run_directory, NULL)) {
        free(self);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    self->next_all = all;
    all = self;
    pthread_mutex_unlock(&lock);
    return self;
}

NvtxThread *nvtx_thread(void)
{
    if (mine || failed)
        return mine;
    failed = true; /* a thread that failed once is not tried again at every event */
    NvtxThread *self = take_over();
    if (!self)
        self = create();
    failed = !self;
    if (self)
        pthread_setspecific(key, self);
    return mine = self;
}

int nvtx_thread_push(NvtxThread *self, OpenRange range)
{
    if (self->depth == self->room) {
        int room = self->room ? self->room * 2 : 32;
        OpenRange *stack = realloc(self->stack, (size_t)room * sizeof *stack);
        if (!stack)
            return -1;
        self->stack = stack;
        self->room = room;
    }
    self->stack[self->depth] = range;
    return self->depth++;
}

int nvtx_thread_pop(NvtxThread *self, const void *domain, OpenRange *range)
{
    int at = self->depth - 1;
    while (at >= 0 && self->stack[at].domain != domain)
        at--;
    if (at < 0)
        return -1;
    *range = self->stack[at];
    memmove(&self->stack[at], &self->stack[at + 1],
            (size_t)(self->depth - at - 1) * sizeof *self->stack);
    self->depth--;
    return at;
}
