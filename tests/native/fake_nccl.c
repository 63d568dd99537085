/* A stand-in for NCCL: it loads the profiler plugin as NCCL does and plays the calls of one version
 * of the interface, in the order of NCCL 2.23 to 2.30:
 *
 *   fake_nccl VERSION ACTION…
 *   coll:N (all-reduces of 1,024 bf16, each a plan)   group:N (as many in one plan)   p2p:PEERS
 *   captured:N   copies   channels:N (channels of the last task)   threads:T:N   late   fork:N
 *   odd (every kind of event, with nothing in it)   kill
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../probes/native/nccl_abi.h"

static int version, mask;
static void *context;
static NcclProfiler1 *old;
static NcclProfiler4 *four;
static NcclProfiler5 *five;
static void *last_task;
static uint64_t sequence;
static const char *algorithm = "RING";

static void check(int result)
{
    if (result != NCCL_SUCCESS) {
        printf("error %d\n", result);
        exit(5);
    }
}

static uint64_t next_sequence(void)
{
    return __atomic_fetch_add(&sequence, 1, __ATOMIC_RELAXED);
}

/* NCCL's own version function, which the plugin asks for. */
__attribute__((visibility("default"))) int ncclGetVersion(int *into);
int ncclGetVersion(int *into)
{
    *into = 22809;
    return 0;
}

static void say(int level, unsigned long flags, const char *file, int line, const char *text, ...)
{
    (void)level, (void)flags, (void)file, (void)line;
    printf("log %s\n", text);
}

static void *start(void *event)
{
    void *handle = (void *)0x10;
    if (version <= 3)
        check(old->start(context, &handle, event));
    else if (version == 4)
        check(four->start(context, &handle, event));
    else
        check(five->start(context, &handle, event));
    return handle;
}

static void stop(void *handle)
{
    if (handle) /* as NCCL does */
        check(version <= 3 ? old->stop(handle) : version == 4 ? four->stop(handle) : five->stop(handle));
}

static void *event(uint64_t type, NcclEvent *of, void *parent)
{
    memset(of, 0x5A, sizeof *of); /* NCCL zeroes it; what is not read must not matter */
    of->type.wide = version == 4 ? (0x5A5A5A5A5A5A5A00u | type) : type;
    of->parent = parent;
    of->rank = 1;
    return of;
}

static void *coll_api(bool captured)
{
    NcclEvent of;
    if (version < 5 || !(mask & (NCCL_COLL | NCCL_COLL_API)))
        return NULL;
    event(NCCL_COLL_API, &of, NULL);
    of.coll_api.datatype = "ncclBfloat16";
    of.coll_api.captured = captured;
    return start(&of);
}

static void launch(void)
{
    NcclEvent of;
    if (version >= 5 && mask & NCCL_KERNEL_LAUNCH) {
        event(NCCL_KERNEL_LAUNCH, &of, NULL);
        of.kernel.timer = 0;
        stop(start(&of));
    }
}

static void *group(void)
{
    NcclEvent of;
    NcclEvent3 before = {.type = NCCL_GROUP};
    return start(version <= 3 ? (void *)&before : event(NCCL_GROUP, &of, NULL));
}

static void *old_coll(void)
{
    NcclEvent3 of = {.type = NCCL_COLL, .rank = 1};
    NcclEvent1 first = {.type = NCCL_COLL, .rank = 1};
    if (version == 1) {
        first.coll.name = "tp";
        first.coll.comm = 77;
        first.coll.seq = next_sequence();
        first.coll.func = 4;
        first.coll.count = 1024;
        first.coll.datatype = 9;
        first.coll.algo = 1;
        first.coll.proto = 99;
        return start(&first);
    }
    of.coll.name = "tp";
    of.coll.comm = 77;
    of.coll.seq = next_sequence();
    of.coll.func = "AllReduce";
    of.coll.count = 1024;
    of.coll.datatype = "ncclBfloat16";
    *(version == 2 ? &of.coll.v2.algo : &of.coll.v3.algo) = algorithm;
    *(version == 2 ? &of.coll.v2.proto : &of.coll.v3.proto) = "LL";
    return start(&of);
}

static void *coll(void *parent)
{
    NcclEvent of;
    if (version <= 3)
        return old_coll();
    event(NCCL_COLL, &of, parent);
    of.coll.seq = next_sequence();
    of.coll.func = "AllReduce";
    of.coll.count = 1024;
    of.coll.root = 0;
    of.coll.datatype = "ncclBfloat16";
    of.coll.channels = 8;
    of.coll.algo = algorithm;
    of.coll.proto = "LL";
    return start(&of);
}

/* One plan with some tasks: the launch first, then the tasks, as NCCL does it. */
static void plan(long tasks, bool captured)
{
    void *parent = coll_api(captured), *all[64] = {NULL};
    launch();
    void *of = group();
    for (long i = 0; i < tasks && i < 64; i++)
        all[i] = coll(parent);
    for (long i = 0; i < tasks && i < 64; i++)
        stop(all[i]);
    __atomic_store_n(&last_task, all[0], __ATOMIC_RELAXED);
    stop(of);
}

static void *p2p(const char *func, int peer, void *parent)
{
    NcclEvent of;
    NcclEvent3 before = {.type = NCCL_P2P, .rank = 1};
    if (version <= 3) {
        before.p2p.comm = 77;
        before.p2p.func = func;
        before.p2p.datatype = "ncclFloat32";
        before.p2p.count = 256;
        before.p2p.peer = peer;
        return version == 1 ? NULL : start(&before);
    }
    event(NCCL_P2P, &of, parent);
    of.p2p.func = func;
    of.p2p.datatype = "ncclFloat32";
    of.p2p.count = 256;
    of.p2p.peer = peer;
    of.p2p.channels = 2;
    return start(&of);
}

static void exchange(long peers)
{
    void *parent = coll_api(false);
    launch();
    void *of = group();
    for (int peer = 0; peer < peers; peer++) {
        stop(p2p("Send", peer, parent));
        stop(p2p("Recv", peer, parent));
    }
    stop(of);
}

static void copies(void)
{
    NcclEvent of;
    event(NCCL_COPY_COLL, &of, NULL);
    of.copies.seq = 3;
    of.copies.func = "AllGather";
    of.copies.count = 4096;
    of.copies.root = 0;
    of.copies.datatype = "ncclInt8";
    stop(start(&of));
}

static void channels(long count)
{
    NcclEvent of;
    for (long i = 0; i < count && (mask & NCCL_KERNEL_CHANNEL); i++) {
        event(NCCL_KERNEL_CHANNEL, &of, last_task);
        of.kernel.channel = (uint8_t)i;
        of.kernel.timer = 1000 + (uint64_t)i;
        void *handle = start(&of);
        NcclStateArguments end = {.timer = 5000 + (uint64_t)i};
        check(version == 4 ? four->record(handle, 22, &end) : five->record(handle, 22, &end));
        stop(handle);
    }
}

static void odd(void)
{
    union {
        NcclEvent new;
        NcclEvent3 before;
    } of;
    for (uint64_t type = 1; type < 1u << 20; type <<= 1) {
        memset(&of, 0, sizeof of);
        of.new.type.wide = type;
        void *handle = start(&of);
        if (handle && version >= 4) {
            check(version == 4 ? four->record(handle, 3, NULL) : five->record(handle, 3, NULL));
        }
        stop(handle);
    }
}

static void *many(void *count)
{
    for (long i = 0; i < (long)(intptr_t)count; i++)
        plan(2, false);
    return NULL;
}

static void in_threads(long threads, long count)
{
    pthread_t all[64];
    for (long i = 0; i < threads && i < 64; i++)
        pthread_create(&all[i], NULL, many, (void *)(intptr_t)count);
    for (long i = 0; i < threads && i < 64; i++)
        pthread_join(all[i], NULL);
}

static void in_child(long count)
{
    pid_t child = fork();
    if (child == 0) {
        many((void *)(intptr_t)count);
        exit(0);
    }
    waitpid(child, NULL, 0);
}

static void finish(void)
{
    if (version <= 3)
        check(old->finalize(context));
    else
        check(version == 4 ? four->finalize(context) : five->finalize(context));
}

static void play(const char *action)
{
    long first = 1, second = 1;
    char word[32] = "";
    sscanf(action, "%31[a-z0-9]:%ld:%ld", word, &first, &second);
    if (!strcmp(word, "coll"))
        for (long i = 0; i < first; i++)
            plan(1, false);
    else if (!strcmp(word, "captured"))
        for (long i = 0; i < first; i++)
            plan(1, true);
    else if (!strcmp(word, "group"))
        plan(first, false);
    else if (!strcmp(word, "p2p"))
        exchange(first);
    else if (!strcmp(word, "copies"))
        copies();
    else if (!strcmp(word, "channels"))
        channels(first);
    else if (!strcmp(word, "threads"))
        in_threads(first, second);
    else if (!strcmp(word, "fork"))
        in_child(first);
    else if (!strcmp(word, "odd"))
        odd();
    else if (!strcmp(word, "kill"))
        raise(SIGKILL);
    else if (!strcmp(word, "late")) { /* an event after the end of its communicator */
        finish();
        channels(1);
        plan(1, false);
    }
}

static void begin(void *library)
{
    char name[32];
    snprintf(name, sizeof name, "ncclProfiler_v%d", version);
    void *table = library ? dlsym(library, name) : NULL;
    if (!table) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(3);
    }
    old = table, four = table, five = table;
    if (version <= 3)
        check(old->init(&context, &mask));
    else if (version == 4)
        check(four->init(&context, &mask, "tp", 77, 1, 4, 1, say));
    else
        check(five->init(&context, 77, &mask, NULL, 1, 4, 1, say));
}

int main(int count, char **words)
{
    version = count > 1 ? atoi(words[1]) : 5;
    begin(dlopen(getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW | RTLD_LOCAL));
    printf("mask %d\n", mask);
    fflush(stdout);
    for (int i = 2; i < count; i++)
        play(words[i]);
    finish();
    return 0;
}
