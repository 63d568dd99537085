#include "nccl_tasks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "nvtx_thread.h"
#include "options.h"
#include "rows.h"

enum { MOST_IN_PLAN = 32 };

/* What this thread is handing over; texts are NCCL's own and outlive the plan. */
typedef struct Plan {
    uint32_t id, count;
    int64_t launch; /* when the launch began; 0 not told */
    struct {
        NcclTask task;
        uint32_t id;
        int64_t start, end;
    } at[MOST_IN_PLAN];
} Plan;

static Options options;
static bool wanted, channels;
static atomic_uint plans, tasks;
static _Atomic(NcclComm *) comms; /* only ever grows, at its head */
static _Thread_local Plan plan;

/* The number behind `ncclGetVersion`, 0 where it cannot be asked. */
static int64_t release_of(void *address)
{
    typedef int (*GetVersion)(int *);
    Dl_info found;
    int version = 0;
    void *library = address && dladdr(address, &found) && found.dli_fname
                        ? dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                        : NULL;
    void *scope = library ? library : RTLD_DEFAULT; /* NCCL may be part of the program */
    GetVersion get = address ? (GetVersion)(uintptr_t)dlsym(scope, "ncclGetVersion") : NULL;
    if (get && get(&version) != 0)
        version = 0;
    if (library)
        dlclose(library);
    return version;
}

static void tell(const char *key, int64_t number)
{
    NvtxThread *thread = nvtx_thread();
    if (!thread)
        return;
    Cell cell = {.a = clock_monotonic(), .b = number};
    cell.c = names_id(&thread->names, &thread->segment, key);
    segment_cell(&thread->segment, cell, RCA_INFO, 0);
}

static void read_once(void)
{
    const char *mode = getenv("RCA_LLM_NCCL");
    options_read(&options);
    wanted = options.run[0] && options.gpu != GPU_OFF && !(mode && strcmp(mode, "off") == 0);
    channels = mode && strcmp(mode, "channels") == 0;
    if (!wanted)
        return;
    control_open(options.run);
    nvtx_threads_start(options.run);
}

bool nccl_tasks_start(int version, void *address)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_bool told;
    pthread_once(&once, read_once);
    if (!wanted || atomic_exchange(&told, true))
        return wanted;
    tell("nccl.interface", version);
    int64_t release = release_of(address);
    if (release)
        tell("nccl.version", release);
    return true;
}

bool nccl_tasks_channels(void)
{
    return channels;
}

NcclComm *nccl_tasks_comm(uint64_t id, const char *name, int ranks, int rank)
{
    NcclComm *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->id = id;
    self->ranks = ranks;
    self->rank = rank;
    snprintf(self->name, sizeof self->name, "%s", name ? name : "");
    NcclComm *head = atomic_load(&comms);
    do {
        self->next = head;
    } while (!atomic_compare_exchange_weak(&comms, &head, self));
    return self;
}

void nccl_tasks_launch(void)
{
    plan.launch = clock_monotonic();
}

static RowNccl row_of(NvtxThread *thread, uint32_t at)
{
    const NcclTask *task = &plan.at[at].task;
    uint32_t ids[6];
    const char *texts[] = {task->comm_name,  task->func, task->datatype,
                           task->asked_type, task->algo, task->proto};
    for (int i = 0; i < 6; i++)
        ids[i] = names_id(&thread->names, &thread->segment, texts[i]);
    return (RowNccl){
        .start = (uint64_t)plan.at[at].start,
        .end = (uint64_t)plan.at[at].end,
        .launch = (uint64_t)plan.launch,
        .comm = task->comm,
        .count = task->count,
        .seq = task->seq,
        .plan = plan.id,
        .task = plan.at[at].id,
        .comm_name = ids[0],
        .func = ids[1],
        .datatype = ids[2],
        .asked_type = ids[3],
        .algo = ids[4],
        .proto = ids[5],
        .ranks = task->ranks,
        .rank = task->rank,
        .root = task->root,
        .peer = task->peer,
        .channels = task->channels,
        .kind = (uint8_t)task->kind,
        .capture = (uint8_t)task->capture,
        .thread = (uint32_t)syscall(SYS_gettid),
    };
}

static void write_plan(void)
{
    RowNccl rows[MOST_IN_PLAN];
    NvtxThread *thread = plan.count ? nvtx_thread() : NULL;
    if (thread) {
        for (uint32_t i = 0; i < plan.count; i++)
            rows[i] = row_of(thread, i);
        Cell cell = {.a = clock_monotonic(), .c = ROW_NCCL, .d = sizeof *rows};
        segment_payload(&thread->segment, cell, RCA_BUFFER, rows, plan.count * sizeof *rows);
    }
    plan.count = 0;
}

void nccl_tasks_plan_begin(void)
{
    write_plan();
    plan.id = atomic_fetch_add(&plans, 1) + 1;
}

void nccl_tasks_plan_end(void)
{
    write_plan();
    plan.id = 0;
    plan.launch = 0;
}

uint32_t nccl_tasks_begin(const NcclTask *task)
{
    if (!control_gate())
        return 0;
    bool alone = !plan.id; /* a release that opens no plan */
    if (alone || plan.count == MOST_IN_PLAN)
        write_plan();
    uint32_t id = atomic_fetch_add(&tasks, 1) + 1;
    plan.at[plan.count].task = *task;
    plan.at[plan.count].id = id;
    plan.at[plan.count].start = clock_monotonic();
    plan.at[plan.count++].end = 0;
    if (alone)
        write_plan();
    return id;
}

void nccl_tasks_end(uint32_t id)
{
    for (uint32_t i = plan.count; i > 0; i--)
        if (plan.at[i - 1].id == id)
            plan.at[i - 1].end = clock_monotonic();
}

void nccl_tasks_channel(uint32_t task, uint8_t channel, uint64_t begin, uint64_t end)
{
    NvtxThread *thread = task && control_gate() ? nvtx_thread() : NULL;
    if (!thread)
        return;
    RowNcclChannel row = {.begin = begin, .end = end, .task = task, .channel = channel};
    Cell cell = {.a = clock_monotonic(), .c = ROW_NCCL_CHANNEL, .d = sizeof row};
    segment_payload(&thread->segment, cell, RCA_BUFFER, &row, sizeof row);
}
