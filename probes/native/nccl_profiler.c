#include "nccl_profiler.h"

#include <stdatomic.h>

#include "nccl_tasks.h"

/* A handle is no address but what is to be known of the event: its sort, and the task, or what the
 * API call said. So nothing is freed too early, whenever NCCL ends an event. */
enum Sort { SORT_NONE, SORT_PLAN, SORT_TASK, SORT_API, SORT_CHANNEL };
enum { SORT_BITS = 3, CHANNEL_BITS = 8, CAPTURE_BITS = 2, TYPES_ROOM = 64 };

static const char NAME[] = "rca-llm";

static void *handle(enum Sort sort, uint64_t content)
{
    return (void *)(uintptr_t)(content << SORT_BITS | (uint64_t)sort);
}

static enum Sort sort_of(const void *of)
{
    return (enum Sort)((uintptr_t)of & ((1u << SORT_BITS) - 1));
}

static uint64_t content_of(const void *of)
{
    return (uint64_t)(uintptr_t)of >> SORT_BITS;
}

static int mask_of(bool wanted)
{
    if (!wanted)
        return 0;
    int plain = NCCL_COLL | NCCL_P2P | NCCL_KERNEL_LAUNCH | NCCL_COPY_COLL;
    return plain | (nccl_tasks_channels() ? NCCL_KERNEL_CHANNEL : 0);
}

static void *begin_task(const NcclTask *task)
{
    uint32_t id = nccl_tasks_begin(task);
    return id ? handle(SORT_TASK, id) : NULL;
}

static void *begin_plan(void)
{
    nccl_tasks_plan_begin();
    return handle(SORT_PLAN, 0);
}

static int stop(void *of)
{
    if (sort_of(of) == SORT_TASK)
        nccl_tasks_end((uint32_t)content_of(of));
    else if (sort_of(of) == SORT_PLAN)
        nccl_tasks_plan_end();
    return NCCL_SUCCESS;
}

static int finalize(void *context)
{
    (void)context; /* a late event may still come with it */
    return NCCL_SUCCESS;
}

/* ---------------------------------------------------------------- versions 4 to 6 */

static void enter(void **context, int *mask, NcclComm *comm)
{
    *context = comm;
    *mask = mask_of(comm != NULL);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks,
                   int rank, NcclLog log)
{
    (void)nodes;
    bool wanted = nccl_tasks_start(4, (void *)(uintptr_t)log);
    enter(context, mask, wanted ? nccl_tasks_comm(comm, name, ranks, rank) : NULL);
    return NCCL_SUCCESS;
}

static int init_v5(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks,
                   int rank, NcclLog log)
{
    (void)nodes;
    bool wanted = nccl_tasks_start(5, (void *)(uintptr_t)log);
    enter(context, mask, wanted ? nccl_tasks_comm(comm, name, ranks, rank) : NULL);
    return NCCL_SUCCESS;
}

/* Names of data types as NCCL's constants, so that a handle can carry one as a small number. */
static _Atomic(const char *) types[TYPES_ROOM];

/* The number of a name, 0 for NULL and where there is no room. */
static uint64_t type_number(const char *name)
{
    for (unsigned i = 0; name && i < TYPES_ROOM; i++) {
        const char *there = NULL;
        if (atomic_compare_exchange_strong(&types[i], &there, name) || there == name)
            return i + 1;
    }
    return 0;
}

/* The type that the call was made with: NCCL moves some of them as bytes. */
static const char *asked_type(const NcclEvent *event)
{
    uint64_t number = sort_of(event->parent) == SORT_API
                          ? content_of(event->parent) >> CAPTURE_BITS
                          : 0;
    return number ? atomic_load(&types[number - 1]) : NULL;
}

/* A task of a communicator, with what the call that asked for it said. */
static NcclTask task_of(const NcclComm *comm, const NcclEvent *event, enum NcclTaskKind kind)
{
    bool told = sort_of(event->parent) == SORT_API;
    uint64_t capture = content_of(event->parent) & ((1u << CAPTURE_BITS) - 1);
    return (NcclTask){
        .asked_type = asked_type(event),
        .comm_name = comm->name[0] ? comm->name : NULL,
        .comm = comm->id,
        .ranks = comm->ranks,
        .rank = comm->rank,
        .kind = kind,
        .seq = -1,
        .root = -1,
        .peer = -1,
        .channels = -1,
        .capture = told ? (enum NcclCapture)capture : NCCL_CAPTURE_UNKNOWN,
    };
}

static void *begin_coll(const NcclComm *comm, const NcclEvent *event)
{
    NcclTask task = task_of(comm, event, NCCL_TASK_COLL);
    task.seq = (int64_t)event->coll.seq;
    task.func = event->coll.func;
    task.datatype = event->coll.datatype;
    task.count = event->coll.count;
    task.root = event->coll.root;
    task.channels = event->coll.channels;
    task.algo = event->coll.algo;
    task.proto = event->coll.proto;
    return begin_task(&task);
}

static void *begin_p2p(const NcclComm *comm, const NcclEvent *event)
{
    NcclTask task = task_of(comm, event, NCCL_TASK_P2P);
    task.func = event->p2p.func;
    task.datatype = event->p2p.datatype;
    task.count = event->p2p.count;
    task.peer = event->p2p.peer;
    task.channels = event->p2p.channels;
    return begin_task(&task);
}

static void *begin_copies(const NcclComm *comm, const NcclEvent *event)
{
    NcclTask task = task_of(comm, event, NCCL_TASK_COPIES);
    task.seq = (int64_t)event->copies.seq;
    task.func = event->copies.func;
    task.datatype = event->copies.datatype;
    task.count = event->copies.count;
    task.root = event->copies.root;
    return begin_task(&task);
}

static void *begin_channel(const NcclEvent *event)
{
    if (sort_of(event->parent) != SORT_TASK)
        return NULL;
    uint64_t task = content_of(event->parent);
    nccl_tasks_channel((uint32_t)task, event->kernel.channel, event->kernel.timer, 0);
    return handle(SORT_CHANNEL, task << CHANNEL_BITS | event->kernel.channel);
}

static void *api(const char *type, bool captured)
{
    uint64_t capture = captured ? NCCL_CAPTURED : NCCL_EAGER;
    return handle(SORT_API, type_number(type) << CAPTURE_BITS | capture);
}

static void *begin(const NcclComm *comm, uint64_t type, const NcclEvent *event)
{
    switch (type) {
    case NCCL_GROUP: return begin_plan();
    case NCCL_COLL: return begin_coll(comm, event);
    case NCCL_P2P: return begin_p2p(comm, event);
    case NCCL_COPY_COLL: return begin_copies(comm, event);
    case NCCL_KERNEL_CHANNEL: return begin_channel(event);
    case NCCL_COLL_API: return api(event->coll_api.datatype, event->coll_api.captured);
    case NCCL_P2P_API: return api(event->p2p_api.datatype, event->p2p_api.captured);
    case NCCL_KERNEL_LAUNCH: nccl_tasks_launch(); return NULL;
    default: return NULL;
    }
}

static int start_v4(void *context, void **of, NcclEvent *event)
{
    *of = context ? begin(context, event->type.narrow, event) : NULL;
    return NCCL_SUCCESS;
}

static int start_v5(void *context, void **of, NcclEvent *event)
{
    *of = context ? begin(context, event->type.wide, event) : NULL;
    return NCCL_SUCCESS;
}

static int record(void *of, int state, NcclStateArguments *arguments)
{
    (void)state; /* a channel has one: its end */
    if (sort_of(of) == SORT_CHANNEL && arguments) {
        uint64_t content = content_of(of);
        nccl_tasks_channel((uint32_t)(content >> CHANNEL_BITS), (uint8_t)content, 0,
                           arguments->timer);
    }
    return NCCL_SUCCESS;
}

/* ---------------------------------------------------------------- versions 1 to 3 */

/* The enumerations of NCCL 2.23, whose events have numbers. */
static const char *const FUNCS[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                    "AllReduce", "SendRecv", "Send",      "Recv"};
static const char *const TYPES[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                    "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                    "ncclFloat64", "ncclBfloat16"};
static const char *const ALGOS[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN",
                                    "NVLS", "NVLS_TREE", "PAT"};
static const char *const PROTOS[] = {"LL", "LL128", "SIMPLE"};

#define NAMED(names, number)                                                                       \
    ((number) < sizeof(names) / sizeof *(names) ? (names)[number] : NULL)

static int init_any(int version, void **context, int *mask)
{
    static const char here;
    bool wanted = nccl_tasks_start(version, NULL);
    *context = wanted ? (void *)(uintptr_t)&here : NULL;
    /* Its events of channels carry no time. */
    *mask = mask_of(wanted) & (NCCL_COLL | NCCL_P2P);
    return NCCL_SUCCESS;
}

static int init_v1(void **context, int *mask)
{
    return init_any(1, context, mask);
}

static int init_v2(void **context, int *mask)
{
    return init_any(2, context, mask);
}

static int init_v3(void **context, int *mask)
{
    return init_any(3, context, mask);
}

static const NcclTask UNTOLD = {.seq = -1, .ranks = -1, .root = -1, .peer = -1, .channels = -1};

static void *begin_old_coll(const NcclEvent3 *event, bool traffic)
{
    NcclTask task = UNTOLD;
    task.comm_name = event->coll.name;
    task.comm = event->coll.comm;
    task.rank = event->rank;
    task.seq = (int64_t)event->coll.seq;
    task.func = event->coll.func;
    task.datatype = event->coll.datatype;
    task.count = event->coll.count;
    task.root = event->coll.root;
    task.algo = traffic ? event->coll.v2.algo : event->coll.v3.algo;
    task.proto = traffic ? event->coll.v2.proto : event->coll.v3.proto;
    return begin_task(&task);
}

static void *begin_old_p2p(const NcclEvent3 *event)
{
    NcclTask task = UNTOLD;
    task.kind = NCCL_TASK_P2P;
    task.comm_name = event->p2p.name;
    task.comm = event->p2p.comm;
    task.rank = event->rank;
    task.func = event->p2p.func;
    task.datatype = event->p2p.datatype;
    task.count = event->p2p.count;
    task.peer = event->p2p.peer;
    return begin_task(&task);
}

static int start_old(void *context, void **of, const NcclEvent3 *event, bool traffic)
{
    *of = NULL;
    if (context && event->type == NCCL_GROUP)
        *of = begin_plan();
    else if (context && event->type == NCCL_COLL)
        *of = begin_old_coll(event, traffic);
    else if (context && event->type == NCCL_P2P)
        *of = begin_old_p2p(event);
    return NCCL_SUCCESS;
}

static int start_v2(void *context, void **of, void *event)
{
    return start_old(context, of, event, true);
}

static int start_v3(void *context, void **of, void *event)
{
    return start_old(context, of, event, false);
}

static void *begin_first_coll(const NcclEvent1 *event)
{
    NcclTask task = UNTOLD;
    task.comm_name = event->coll.name;
    task.comm = event->coll.comm;
    task.rank = event->rank;
    task.seq = (int64_t)event->coll.seq;
    task.func = NAMED(FUNCS, event->coll.func);
    task.datatype = NAMED(TYPES, event->coll.datatype);
    task.count = event->coll.count;
    task.root = event->coll.root;
    task.algo = NAMED(ALGOS, event->coll.algo);
    task.proto = NAMED(PROTOS, event->coll.proto);
    return begin_task(&task);
}

static void *begin_first_p2p(const NcclEvent1 *event)
{
    NcclTask task = UNTOLD;
    task.kind = NCCL_TASK_P2P;
    task.comm_name = event->p2p.name;
    task.comm = event->p2p.comm;
    task.rank = event->rank;
    task.func = NAMED(FUNCS, event->p2p.func);
    task.datatype = NAMED(TYPES, event->p2p.datatype);
    task.count = event->p2p.count;
    task.peer = event->p2p.peer;
    return begin_task(&task);
}

static int start_v1(void *context, void **of, void *any)
{
    const NcclEvent1 *event = any;
    *of = NULL;
    if (context && event->type == NCCL_GROUP)
        *of = begin_plan();
    else if (context && event->type == NCCL_COLL)
        *of = begin_first_coll(event);
    else if (context && event->type == NCCL_P2P)
        *of = begin_first_p2p(event);
    return NCCL_SUCCESS;
}

NcclProfiler1 ncclProfiler_v1 = {NAME, init_v1, start_v1, stop, record, finalize};
NcclProfiler1 ncclProfiler_v2 = {NAME, init_v2, start_v2, stop, record, finalize};
NcclProfiler1 ncclProfiler_v3 = {NAME, init_v3, start_v3, stop, record, finalize};
NcclProfiler4 ncclProfiler_v4 = {NAME, init_v4, start_v4, stop, record, finalize};
NcclProfiler5 ncclProfiler_v5 = {NAME, init_v5, start_v5, stop, record, finalize};
NcclProfiler5 ncclProfiler_v6 = {NAME, init_v5, start_v5, stop, record, finalize};
