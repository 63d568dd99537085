/* A stand-in for libcupti: the functions that the collector uses, and fake_* functions by which a test
 * program plays GPU activity through the collector's real callbacks. Like the real library it keeps
 * one activity buffer a thread, gives buffers back full from the thread that fills them, and partly
 * full in cuptiActivityFlushAll. FAKE_CUPTI_* variables choose the release and the failures. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../probes/native/cupti_abi.h"

#define EXPORT __attribute__((visibility("default")))

enum { KINDS = 64, CBIDS = 600, MOST_THREADS = 4096, FAILED = 999 };

typedef struct ThreadBuffer {
    pthread_mutex_t lock;
    uint8_t *data;
    size_t bytes, used;
} ThreadBuffer;

static CuptiBufferRequest request;
static CuptiBufferComplete complete;
/* What the real library uses until it is given a clock. */
static uint64_t realtime(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t (*timestamp)(void) = realtime;
static atomic_bool subscriber; /* one at a time, as before CUDA 13.2 */
static atomic_bool enabled[KINDS];
static atomic_bool functions_off[2][CBIDS];
static _Atomic(ThreadBuffer *) threads[MOST_THREADS];
static atomic_int thread_count, kinds_enabled;
static atomic_uint correlation, kernels, latency;
static atomic_uint_fast64_t dropped;
static _Thread_local ThreadBuffer *mine;
enum { MOST_EXTERNAL = 32 };
static _Thread_local uint64_t externals[MOST_EXTERNAL];
static _Thread_local unsigned external_depth;

static long number(const char *variable, long otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atol(text) : otherwise;
}

/* ---------------------------------------------------------------- what the collector calls */

EXPORT CuptiResult cuptiGetVersion(uint32_t *version)
{
    *version = (uint32_t)number("FAKE_CUPTI_VERSION", 130001);
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiSubscribe_v2(CuptiSubscriber *handle, CuptiCallback callback, void *user,
                                     CuptiSubscriberParams *params)
{
    const char *other = getenv("FAKE_CUPTI_COMPETITOR");
    (void)callback, (void)user;
    *handle = &subscriber;
    if ((!other || !*other) && !atomic_exchange(&subscriber, true))
        return CUPTI_OK;
    snprintf(params->old_name, params->old_name_bytes, "%s", other && *other ? other : "rca-llm");
    return CUPTI_MULTIPLE_SUBSCRIBERS;
}

EXPORT CuptiResult cuptiUnsubscribe(CuptiSubscriber handle)
{
    if (handle != &subscriber)
        return FAILED;
    atomic_store(&subscriber, false);
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityRegisterCallbacks(CuptiBufferRequest r, CuptiBufferComplete c)
{
    request = r;
    complete = c;
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityRegisterTimestampCallback(uint64_t (*callback)(void))
{
    if (timestamp == realtime && atomic_load(&kinds_enabled))
        fprintf(stderr, "fake cupti: clock registered after a kind was enabled\n");
    timestamp = callback;
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiSetThreadIdType(uint32_t type)
{
    return type == CUPTI_THREAD_ID_SYSTEM ? CUPTI_OK : FAILED;
}

EXPORT CuptiResult cuptiActivityEnable(uint32_t kind)
{
    if (kind >= KINDS || kind == (uint32_t)number("FAKE_CUPTI_REFUSES", -1))
        return FAILED;
    kinds_enabled += !atomic_exchange(&enabled[kind], true);
    /* Enabling the kind overrides what was said about single functions before. */
    if (kind == CUPTI_KIND_RUNTIME || kind == CUPTI_KIND_DRIVER)
        for (int i = 0; i < CBIDS; i++)
            atomic_store(&functions_off[kind == CUPTI_KIND_RUNTIME][i], false);
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityDisable(uint32_t kind)
{
    kinds_enabled -= atomic_exchange(&enabled[kind], false);
    return CUPTI_OK;
}

static CuptiResult switch_function(int runtime, uint32_t cbid, uint8_t on)
{
    if (cbid >= CBIDS)
        return FAILED;
    atomic_store(&functions_off[runtime][cbid], !on);
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t on)
{
    return switch_function(1, cbid, on);
}

EXPORT CuptiResult cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t on)
{
    return switch_function(0, cbid, on);
}

static const struct {
    uint32_t cbid;
    const char *name;
} RUNTIME[] = {{10, "cudaGetLastError_v3020"},  {17, "cudaGetDevice_v3020"},
               {41, "cudaMemcpyAsync_v3020"},   {51, "cudaMemsetAsync_v3020"},
               {131, "cudaStreamSynchronize_v3020"}, {211, "cudaLaunchKernel_v7000"},
               {311, "cudaGraphLaunch_v10000"}},
  DRIVER[] = {{1, "cuInit"}, {2, "cuDriverGetVersion"}, {307, "cuLaunchKernel"}};

EXPORT CuptiResult cuptiGetCallbackName(uint32_t domain, uint32_t cbid, const char **name)
{
    for (size_t i = 0; domain == CUPTI_DOMAIN_RUNTIME && i < sizeof RUNTIME / sizeof *RUNTIME; i++)
        if (RUNTIME[i].cbid == cbid) {
            *name = RUNTIME[i].name;
            return CUPTI_OK;
        }
    for (size_t i = 0; domain == CUPTI_DOMAIN_DRIVER && i < sizeof DRIVER / sizeof *DRIVER; i++)
        if (DRIVER[i].cbid == cbid) {
            *name = DRIVER[i].name;
            return CUPTI_OK;
        }
    return FAILED;
}

EXPORT CuptiResult cuptiActivitySetAttribute(uint32_t attribute, size_t *bytes, void *value)
{
    (void)attribute, (void)bytes, (void)value;
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiGetTimestamp(uint64_t *now)
{
    *now = timestamp();
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    *count = atomic_exchange(&dropped, 0);
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    if (kind != CUPTI_EXTERNAL_CUSTOM2 || external_depth == MOST_EXTERNAL)
        return FAILED;
    externals[external_depth++] = id;
    return CUPTI_OK;
}

EXPORT CuptiResult cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last)
{
    (void)kind, (void)last;
    external_depth -= external_depth > 0;
    return CUPTI_OK;
}

static size_t record_bytes(uint32_t kind)
{
    uint32_t version;
    cuptiGetVersion(&version);
    switch (kind) {
    case CUPTI_KIND_CONCURRENT_KERNEL:
        return version < 130001 ? 208 : version < 130101 ? 216 : version < 130301 ? 224
             : version < 130401 ? 232 : 248;
    case CUPTI_KIND_MEMCPY: return version < 26 ? 88 : version < 130401 ? 96 : 112;
    case CUPTI_KIND_MEMCPY2: return 96;
    case CUPTI_KIND_MEMSET: return version < 130401 ? 88 : 104;
    case CUPTI_KIND_SYNCHRONIZATION: return version < 26 ? 40 : 56;
    case CUPTI_KIND_OVERHEAD: return version < 22 ? 40 : 56;
    case CUPTI_KIND_GRAPH_TRACE: return 56;
    case CUPTI_KIND_EXTERNAL_CORRELATION: return 24;
    case CUPTI_KIND_DEVICE: return 184;
    case CUPTI_KIND_JIT: return 72;
    default: return 40;
    }
}

EXPORT CuptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CuptiRecord **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + record_bytes((*record)->kind) : buffer;
    if (next >= buffer + valid)
        return FAILED;
    *record = (CuptiRecord *)next;
    return CUPTI_OK;
}

static void give_back(ThreadBuffer *buffer)
{
    uint8_t *data = buffer->data;
    size_t used = buffer->used, bytes = buffer->bytes;
    buffer->data = NULL;
    buffer->used = 0;
    if (data)
        complete(NULL, 0, data, bytes, used);
}

EXPORT CuptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    int count = atomic_load(&thread_count);
    for (int i = 0; i < count && i < MOST_THREADS; i++) {
        ThreadBuffer *buffer = atomic_load(&threads[i]);
        if (!buffer)
            continue;
        pthread_mutex_lock(&buffer->lock);
        give_back(buffer);
        pthread_mutex_unlock(&buffer->lock);
    }
    return CUPTI_OK;
}

/* ---------------------------------------------------------------- what the test program calls */

static ThreadBuffer *my_buffer(void)
{
    if (mine)
        return mine;
    mine = calloc(1, sizeof *mine);
    pthread_mutex_init(&mine->lock, NULL);
    atomic_store(&threads[atomic_fetch_add(&thread_count, 1) % MOST_THREADS], mine);
    return mine;
}

/* Appends a record, whose tail beyond `bytes` the release at hand has grown by. */
static void put(const void *record, size_t bytes)
{
    uint32_t kind = *(const uint32_t *)record;
    ThreadBuffer *buffer = my_buffer();
    size_t whole = record_bytes(kind), most = 0;
    if (!atomic_load(&enabled[kind]))
        return;
    pthread_mutex_lock(&buffer->lock);
    if (buffer->data && buffer->used + whole > buffer->bytes)
        give_back(buffer);
    if (!buffer->data)
        request(&buffer->data, &buffer->bytes, &most);
    if (buffer->data) {
        memset(buffer->data + buffer->used, 0xEE, whole);
        memcpy(buffer->data + buffer->used, record, bytes < whole ? bytes : whole);
        buffer->used += whole;
    }
    pthread_mutex_unlock(&buffer->lock);
}

static void put_external(uint32_t id)
{
    CuptiExternal record = {CUPTI_KIND_EXTERNAL_CORRELATION, CUPTI_EXTERNAL_CUSTOM2, 0, id};
    if (!external_depth)
        return;
    record.id = externals[external_depth - 1];
    put(&record, sizeof record);
}

/* An API call; its correlation id. Ids external to CUPTI come for calls alone that are recorded. */
static uint32_t call(bool runtime, uint32_t cbid)
{
    uint32_t first = (uint32_t)number("FAKE_CUPTI_CORRELATION", 1);
    uint32_t id = first + atomic_fetch_add(&correlation, 1);
    CuptiApi record = {.kind = runtime ? CUPTI_KIND_RUNTIME : CUPTI_KIND_DRIVER, .cbid = cbid,
                       .process = (uint32_t)getpid(), .thread = (uint32_t)syscall(SYS_gettid),
                       .correlation = id};
    record.start = timestamp();
    record.end = timestamp() + 1;
    if (atomic_load(&enabled[record.kind]) && !atomic_load(&functions_off[runtime][cbid])) {
        put_external(id);
        put(&record, sizeof record);
    }
    return id;
}

static uint32_t api(uint32_t cbid)
{
    return call(true, cbid);
}

/* The driver's own function, which the collector finds where this library is called libcuda.so.1. */
EXPORT int cuDriverGetVersion(int *version)
{
    call(false, 2);
    *version = 13000;
    return 0;
}

EXPORT CuptiResult cuptiActivityEnableLatencyTimestamps(uint8_t enable)
{
    atomic_store(&latency, enable);
    return 0;
}

/* A kernel of a call; FAKE_CUPTI_LAG says how many ns later it starts. */
static void kernel(const char *name, uint64_t node, uint32_t launch)
{
    long zero = number("FAKE_CUPTI_ZERO", 0);
    CuptiKernel record = {.kind = CUPTI_KIND_CONCURRENT_KERNEL, .registers = 40, .device = 1,
                          .context = 1, .stream = 7, .grid = {4, 5, 6}, .block = {128, 2, 1},
                          .shared_static = 16, .shared_dynamic = 1024, .name = name,
                          .graph_node = node, .graph = node ? 3 : 0, .cluster = {2, 1, 1}};
    record.correlation = launch;
    if (atomic_load(&latency))
        record.queued = record.submitted = timestamp();
    record.start = timestamp() + (uint64_t)number("FAKE_CUPTI_LAG", 0);
    record.end = record.start + 1000;
    if (zero && atomic_fetch_add(&kernels, 1) % (unsigned)zero == 0)
        record.start = record.end = 0;
    put(&record, sizeof record);
}

/* One kernel launch among calls that nobody wants to see. */
EXPORT void fake_kernel(const char *name, uint64_t node)
{
    static const uint32_t NOISE[] = {17, 10, 17};
    for (size_t i = 0; i < sizeof NOISE / sizeof *NOISE; i++)
        api(NOISE[i]);
    kernel(name, node, api(node ? 311 : 211));
}

/* One launch of a graph of kernels, which share its correlation id. */
EXPORT void fake_replay(const char *name, uint64_t nodes)
{
    uint32_t launch = api(311);
    for (uint64_t node = 1; node <= nodes; node++)
        kernel(name, node, launch);
}

EXPORT void fake_copy(uint64_t bytes, uint8_t copy, uint8_t src, uint8_t dst)
{
    CuptiMemcpy record = {.kind = CUPTI_KIND_MEMCPY, .copy = copy, .src = src, .dst = dst,
                          .bytes = bytes, .device = 1, .stream = 7, .correlation = api(41)};
    record.start = timestamp();
    record.end = record.start + 500;
    put(&record, sizeof record);
}

EXPORT void fake_peer_copy(uint64_t bytes)
{
    CuptiPeerCopy record = {.kind = CUPTI_KIND_MEMCPY2, .copy = 10, .src = 3, .dst = 3,
                            .bytes = bytes, .src_device = 0, .dst_device = 1,
                            .correlation = api(41)};
    record.start = timestamp();
    record.end = record.start + 500;
    put(&record, sizeof record);
}

EXPORT void fake_memset(uint64_t bytes)
{
    CuptiMemset record = {.kind = CUPTI_KIND_MEMSET, .bytes = bytes, .device = 1, .stream = 7,
                          .memory = 3, .correlation = api(51)};
    record.start = timestamp();
    record.end = record.start + 200;
    put(&record, sizeof record);
}

EXPORT void fake_synchronise(void)
{
    CuptiSync record = {.kind = CUPTI_KIND_SYNCHRONIZATION, .type = 3, .stream = 7,
                        .correlation = api(131)};
    record.start = timestamp();
    record.end = record.start + 100;
    put(&record, sizeof record);
}

EXPORT void fake_graph(uint32_t id)
{
    CuptiGraph record = {.kind = CUPTI_KIND_GRAPH_TRACE, .correlation = api(311), .device = 1,
                         .graph = id, .stream = 7};
    record.start = timestamp();
    record.end = record.start + 5000;
    put(&record, sizeof record);
}

EXPORT void fake_overhead(uint32_t kind)
{
    CuptiOverhead record = {.kind = CUPTI_KIND_OVERHEAD, .overhead = kind, .object = 2,
                            .thread = (uint32_t)syscall(SYS_gettid)};
    record.start = timestamp();
    record.end = record.start + 300;
    put(&record, sizeof record);
}

EXPORT void fake_device(void)
{
    CuptiDevice record = {.kind = CUPTI_KIND_DEVICE, .memory_bandwidth = 4800000000u,
                          .memory_bytes = 150000000000u, .core_clock = 1980000, .warp = 32,
                          .sms = 132, .warps_per_sm = 64, .blocks_per_sm = 32,
                          .shared_per_sm = 233472, .registers_per_sm = 65536, .major = 9,
                          .id = 1, .name = "Stand-in GPU"};
    for (char i = 0; i < 16; i++)
        record.uuid[(int)i] = i;
    put(&record, sizeof record);
}

EXPORT void fake_dropped(uint64_t count)
{
    atomic_fetch_add(&dropped, count);
}

EXPORT int fake_enabled(uint32_t kind)
{
    return atomic_load(&enabled[kind]);
}
