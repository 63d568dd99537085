#include "activity.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "clock.h"
#include "markers.h"

enum { MOST_CBIDS = 2048, FOREIGN_CLOCK_NS = 1000000000 };

/* Functions worth a record: what launches, copies, waits, allocates, loads and captures. The rest,
 * cudaGetDevice and its like, is nine tenths of all calls and explains nothing. */
static const char *const WANTED[] = {
    "cudaLaunch", "cudaGraphLaunch", "cudaGraphInstantiate", "cudaGraphUpload",
    "cudaGraphExecUpdate", "cudaMemcpy", "cudaMemset", "cudaMemPrefetch", "cudaMalloc", "cudaFree", "cudaHostAlloc",
    "cudaHostRegister", "cudaHostUnregister", "cudaMemPoolTrim", "cudaDeviceSynchronize",
    "cudaStreamSynchronize", "cudaEventSynchronize", "cudaThreadSynchronize", "cudaStreamWaitEvent",
    "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaLibraryLoad", "cudaLibraryUnload",
    "cudaDeviceReset", "cudaLaunchHostFunc",
    "cuLaunch", "cuGraphLaunch", "cuGraphInstantiate", "cuGraphUpload", "cuGraphExecUpdate",
    "cuMemcpy", "cuMemset", "cuMemPrefetch", "cuMemBatch", "cuMemAlloc", "cuMemFree", "cuMemHost",
    "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddress",
    "cuMemPoolTrim", "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize",
    "cuStreamWaitEvent", "cuStreamWaitValue", "cuStreamBatchMemOp", "cuStreamBeginCapture",
    "cuStreamEndCapture", "cuModuleLoad", "cuModuleUnload", "cuLibraryLoad", "cuLibraryUnload",
    "cuLink", "cuCtxCreate", "cuDevicePrimaryCtxRetain", NULL,
};

/* What begins like a wanted name and only asks something, or reserves addresses. */
static const char *const UNWANTED[] = {"cuMemAllocationGet", "cuMemHostGet", "cuMemAddressReserve",
                                       "cuMemAddressFree", "cudaLaunchAttribute", NULL};

/* Those without which nobody knows whether the host was late, or waited: what launches, and what
 * waits for the device. */
static const char *const LAUNCHES[] = {
    "cudaLaunch", "cudaGraphLaunch", "cudaDeviceSynchronize", "cudaStreamSynchronize",
    "cudaEventSynchronize", "cuLaunch", "cuGraphLaunch", "cuCtxSynchronize",
    "cuStreamSynchronize", "cuEventSynchronize", NULL,
};

static bool begins_with_one_of(const char *name, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

static bool wanted(const char *name, enum GpuMode mode)
{
    return begins_with_one_of(name, mode == GPU_LAUNCHES ? LAUNCHES : WANTED) &&
           !begins_with_one_of(name, UNWANTED);
}

static uint64_t timestamp(void)
{
    return (uint64_t)clock_monotonic();
}

/* CUPTI wants a callback to subscribe; none is ever enabled. */
static void no_callback(void *user, uint32_t domain, uint32_t id, const void *data)
{
    (void)user, (void)domain, (void)id, (void)data;
}

/* Runs a call; remembers the first that failed. */
static bool succeeded(ActivityState *state, const char *call, CuptiResult result)
{
    if (result != CUPTI_OK && !state->failed) {
        state->error = result;
        state->failed = call;
    }
    return result == CUPTI_OK;
}

static CuptiResult try_subscribe(Cupti *cupti, CuptiSubscriber *handle, ActivityState *state)
{
    CuptiSubscriberParams params = {
        .size = sizeof params,
        .name = "rca-llm",
        .old_name = state->competitor,
        .old_name_bytes = sizeof state->competitor,
    };
    if (!cupti->Subscribe_v2)
        return cupti->Subscribe ? cupti->Subscribe(handle, no_callback, NULL) : CUPTI_OK;
    CuptiResult result = cupti->Subscribe_v2(handle, no_callback, NULL, &params);
    state->competitor[sizeof state->competitor - 1] = 0;
    return result;
}

/* Learns whether another tool holds CUPTI, and gives the place up at once: activity records need no
 * subscriber, and torch.profiler, which wants to be one, would otherwise find nothing. */
static bool is_free(Cupti *cupti, ActivityState *state)
{
    CuptiSubscriber handle = NULL;
    if (!succeeded(state, "cuptiSubscribe", try_subscribe(cupti, &handle, state)))
        return false;
    if (handle && cupti->Unsubscribe)
        cupti->Unsubscribe(handle);
    return true;
}

static bool register_clock(Cupti *cupti, ActivityState *state)
{
    if (cupti->SetThreadIdType)
        cupti->SetThreadIdType(CUPTI_THREAD_ID_SYSTEM);
    return succeeded(state, "cuptiActivityRegisterTimestampCallback",
                     cupti->ActivityRegisterTimestampCallback(timestamp));
}

static bool register_buffers(Cupti *cupti, ActivityState *state)
{
    size_t bytes = sizeof(uint8_t);
    uint8_t zeroed = 1;
    cupti->ActivitySetAttribute(CUPTI_ATTR_ZEROED_BUFFER, &bytes, &zeroed);
    return succeeded(state, "cuptiActivityRegisterCallbacks",
                     cupti->ActivityRegisterCallbacks(buffers_request, buffers_complete));
}

/* Switches off what is not wanted of one API, but for the call that marks steps; the number of wanted
 * functions. */
static int select_functions(Cupti *cupti, enum GpuMode mode, uint32_t domain,
                            CuptiResult (*enable)(uint32_t, uint8_t))
{
    int left = 0;
    for (uint32_t cbid = 1; cbid < MOST_CBIDS; cbid++) {
        const char *name = NULL;
        if (cupti->GetCallbackName(domain, cbid, &name) != CUPTI_OK || !name)
            continue;
        if (mode != GPU_KERNELS && wanted(name, mode))
            left++;
        else if (domain != CUPTI_DOMAIN_DRIVER || cbid != markers_cbid())
            enable(cbid, 0);
    }
    return left;
}

/* Enabling one function without its kind delivers nothing, so the kind comes first. Without the
 * per-function switch (before CUDA 12.6) the calls would cost more than they tell: kernels only. */
static void enable_api(Cupti *cupti, const Options *options, ActivityState *state)
{
    if (!cupti->ActivityEnableRuntimeApi || !cupti->ActivityEnableDriverApi)
        return;
    if (options->runtime_api &&
        succeeded(state, "cuptiActivityEnable(RUNTIME)", cupti->ActivityEnable(CUPTI_KIND_RUNTIME)))
        state->selected_functions += select_functions(
            cupti, options->gpu, CUPTI_DOMAIN_RUNTIME, cupti->ActivityEnableRuntimeApi);
    if (options->driver_api &&
        succeeded(state, "cuptiActivityEnable(DRIVER)", cupti->ActivityEnable(CUPTI_KIND_DRIVER)))
        state->selected_functions += select_functions(
            cupti, options->gpu, CUPTI_DOMAIN_DRIVER, cupti->ActivityEnableDriverApi);
}

static void enable_markers(Cupti *cupti, const Options *options)
{
    if (!options->steps || !markers_find(cupti) ||
        cupti->ActivityEnable(CUPTI_KIND_EXTERNAL_CORRELATION) != CUPTI_OK ||
        cupti->ActivityEnable(CUPTI_KIND_DRIVER) != CUPTI_OK)
        return;
    select_functions(cupti, GPU_KERNELS, CUPTI_DOMAIN_DRIVER, cupti->ActivityEnableDriverApi);
    markers_begin();
}

static bool enable_kinds(Cupti *cupti, const Options *options, ActivityState *state)
{
    if (options->queued && cupti->ActivityEnableLatencyTimestamps)
        cupti->ActivityEnableLatencyTimestamps(1);
    if (!succeeded(state, "cuptiActivityEnable(CONCURRENT_KERNEL)",
                   cupti->ActivityEnable(CUPTI_KIND_CONCURRENT_KERNEL)))
        return false;
    cupti->ActivityEnable(CUPTI_KIND_MEMCPY);
    cupti->ActivityEnable(CUPTI_KIND_MEMCPY2);
    cupti->ActivityEnable(CUPTI_KIND_MEMSET);
    cupti->ActivityEnable(CUPTI_KIND_DEVICE);
    if (options->external)
        cupti->ActivityEnable(CUPTI_KIND_EXTERNAL_CORRELATION);
    if (options->gpu == GPU_FULL) {
        cupti->ActivityEnable(CUPTI_KIND_SYNCHRONIZATION);
        cupti->ActivityEnable(CUPTI_KIND_OVERHEAD);
        cupti->ActivityEnable(CUPTI_KIND_JIT);
    }
    if (options->gpu >= GPU_LAUNCHES)
        enable_api(cupti, options, state);
    return true;
}

/* Before any graph exists, and for good: switching it later crashed a process. */
static void enable_graph_level(Cupti *cupti, const Options *options, ActivityState *state)
{
    if (options->graph_level)
        succeeded(state, "cuptiActivityEnable(GRAPH_TRACE)",
                  cupti->ActivityEnable(CUPTI_KIND_GRAPH_TRACE));
}

void activity_follow_steps(Cupti *cupti, const Options *options)
{
    if (markers_wanted())
        enable_markers(cupti, options);
}

/* Steps before kernels, so that none of these has an id before that of its marker. */
void activity_enable(Cupti *cupti, const Options *options, ActivityState *state)
{
    state->selected_functions = 0;
    if (options->steps_at_once)
        enable_markers(cupti, options);
    else
        activity_follow_steps(cupti, options);
    state->collecting = state->recording = enable_kinds(cupti, options, state);
}

void activity_start(Cupti *cupti, const Options *options, ActivityState *state, bool enable)
{
    int64_t begun = clock_monotonic();
    *state = (ActivityState){.found = cupti_load(cupti)};
    if (!state->found)
        return;
    cupti->GetVersion(&state->version);
    buffers_configure(options->buffer_bytes);
    if (options->steps)
        markers_find(cupti);
    state->collecting = is_free(cupti, state) && register_clock(cupti, state) &&
                        register_buffers(cupti, state);
    if (state->collecting)
        enable_graph_level(cupti, options, state);
    if (state->collecting && enable)
        activity_enable(cupti, options, state);
    else if (state->collecting)
        cupti->ActivityEnable(CUPTI_KIND_DEVICE); /* told once, when a context is made */
    state->setup_us = (int)((clock_monotonic() - begun) / 1000);
}

void activity_stop(Cupti *cupti, ActivityState *state)
{
    static const uint8_t KINDS[] = {
        CUPTI_KIND_MEMCPY,   CUPTI_KIND_MEMCPY2,         CUPTI_KIND_MEMSET,
        CUPTI_KIND_DEVICE,   CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_SYNCHRONIZATION,
        CUPTI_KIND_OVERHEAD, CUPTI_KIND_JIT,             CUPTI_KIND_EXTERNAL_CORRELATION,
        CUPTI_KIND_RUNTIME,  CUPTI_KIND_DRIVER,
    };
    markers_end();
    for (size_t i = 0; i < sizeof KINDS; i++)
        cupti->ActivityDisable(KINDS[i]);
    if (cupti->ActivityEnableLatencyTimestamps)
        cupti->ActivityEnableLatencyTimestamps(0);
    state->recording = false;
}

/* The clock stays whosever it is: a client that set its own once, as torch.profiler does, would
 * read ours as its own in its next session. */
void activity_resume(Cupti *cupti, const Options *options, ActivityState *state, bool enable)
{
    state->failed = NULL;
    state->collecting = register_buffers(cupti, state);
    if (state->collecting && enable)
        activity_enable(cupti, options, state);
}

bool activity_clock(const Cupti *cupti, ClockReading *reading)
{
    uint64_t theirs = 0;
    int64_t before = clock_monotonic();
    if (cupti->GetTimestamp(&theirs) != CUPTI_OK)
        return true;
    reading->ours = before + (clock_monotonic() - before) / 2;
    reading->theirs = (int64_t)theirs;
    return llabs(reading->theirs - reading->ours) < FOREIGN_CLOCK_NS;
}
