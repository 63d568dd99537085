/* A program that "uses CUDA": it loads the injection library as driver and NVTX would, and plays
 * the activity that its arguments name, in order:
 *
 *   init  kernels:N  threads:T:N  copies  memset  sync  graph:N  nodes:N  device  overhead  zero
 *   step:ID (the calls that follow belong to it)  nostep  dropped:N  sleep:MS  kill  fork:N
 *   replay:N (one launch of N kernels)  beside:ID (another thread is in that step until)  joined
 *   stepping:T:N (so many threads are in so many steps each)  version (asks the driver for it)
 *   nvtx  nvtxthreads:T:N  nvtxopen  displace  release  reclaim  flush  status  enabled:KIND
 */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../probes/native/cupti_abi.h"
#include "../../probes/native/nvtx_abi.h"

typedef void (*Any)(void);

static void *cupti, *collector;

static Any symbol(void *library, const char *name)
{
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "app: no %s: %s\n", name, dlerror());
        exit(3);
    }
    return (Any)(uintptr_t)found;
}

static void *open_named(const char *variable)
{
    void *found = dlopen(getenv(variable), RTLD_NOW | RTLD_LOCAL);
    if (!found)
        fprintf(stderr, "app: %s\n", dlerror());
    return found;
}

#define FAKE(name, type) ((type)symbol(cupti, #name))
typedef void (*KernelCall)(const char *, uint64_t);
typedef void (*CopyCall)(uint64_t, uint8_t, uint8_t, uint8_t);
typedef void (*U64Call)(uint64_t);
typedef void (*U32Call)(uint32_t);

static void start(void)
{
    cupti = open_named("RCA_LLM_CUPTI");
    collector = open_named("CUDA_INJECTION64_PATH");
    if (((int (*)(void))symbol(collector, "InitializeInjection"))() != 1)
        fprintf(stderr, "app: the injection failed\n");
}

static void kernels(long count, uint64_t node)
{
    static const char *const NAMES[] = {"_Z8kernel_0Pf", "_Z8kernel_1Pf", "_Z8kernel_2Pf",
                                        "_Z8kernel_3Pf", "_Z8kernel_4Pf", "_Z8kernel_5Pf",
                                        "_Z8kernel_6Pf"};
    KernelCall call = FAKE(fake_kernel, KernelCall);
    for (long i = 0; i < count; i++)
        call(NAMES[i % 7], node ? node + (uint64_t)i : 0);
}

static void *kernel_thread(void *count)
{
    kernels((long)(intptr_t)count, 0);
    return NULL;
}

static void in_threads(long threads, long count, void *(*work)(void *))
{
    pthread_t all[256];
    for (long i = 0; i < threads && i < 256; i++)
        pthread_create(&all[i], NULL, work, (void *)(intptr_t)count);
    for (long i = 0; i < threads && i < 256; i++)
        pthread_join(all[i], NULL);
}

static void push_step(uint64_t step)
{
    ((U64Call)symbol(collector, "rca_llm_gpu_push_step"))(step);
}

static void pop_step(void)
{
    symbol(collector, "rca_llm_gpu_pop_step")();
}

/* A thread that is in a step until it is told to leave. */
static sem_t pushed, leave;
static pthread_t other;

static void *in_step(void *step)
{
    push_step((uint64_t)(intptr_t)step);
    sem_post(&pushed);
    sem_wait(&leave);
    pop_step();
    return NULL;
}

static void beside(long step)
{
    sem_init(&pushed, 0, 0);
    sem_init(&leave, 0, 0);
    pthread_create(&other, NULL, in_step, (void *)(intptr_t)step);
    sem_wait(&pushed);
}

static void joined(void)
{
    sem_post(&leave);
    pthread_join(other, NULL);
}

/* Each kernel has the number of its step as its node. */
static void *stepping_thread(void *count)
{
    KernelCall call = FAKE(fake_kernel, KernelCall);
    for (uint64_t step = 1; step <= (uint64_t)(intptr_t)count; step++) {
        push_step(step);
        call("_Z4stepPf", step);
        call("_Z4stepPf", step);
        pop_step();
    }
    return NULL;
}

static void ask_version(void)
{
    int version;
    ((int (*)(int *))symbol(cupti, "cuDriverGetVersion"))(&version);
}

static void nap(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void in_child(long count)
{
    pid_t child = fork();
    if (child == 0) {
        kernels(count, 0);
        ((void (*)(void))symbol(collector, "rca_llm_gpu_flush"))();
        exit(0);
    }
    waitpid(child, NULL, 0);
}

/* A second client of CUPTI as torch.profiler is one: a subscriber first, then its own buffers and a
 * clock of ticks, which it registers once in the process. */
static uint64_t other_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) * 3 + ((uint64_t)1 << 50);
}

static void other_request(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *buffer = calloc(1, *bytes = 65536);
    *most = 0;
}

static void other_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    (void)context, (void)stream, (void)bytes, (void)valid, (void)buffer;
}

static void displace(void)
{
    static int sessions;
    CuptiSubscriberParams params = {sizeof params, "app", (char[64]){0}, 64};
    CuptiSubscriber handle;
    if (!sessions++) {
        int result = ((int (*)(CuptiSubscriber *, void *, void *, CuptiSubscriberParams *))symbol(
            cupti, "cuptiSubscribe_v2"))(&handle, NULL, NULL, &params);
        printf("subscribed %d\n", result);
        ((int (*)(uint64_t(*)(void)))symbol(cupti, "cuptiActivityRegisterTimestampCallback"))(
            other_clock);
    }
    printf("left on %d\n", ((int (*)(uint32_t))symbol(cupti, "fake_enabled"))(10));
    ((int (*)(uint32_t))symbol(cupti, "cuptiActivityDisable"))(10);
    ((int (*)(void (*)(uint8_t **, size_t *, size_t *),
              void (*)(void *, uint32_t, uint8_t *, size_t, size_t)))
         symbol(cupti, "cuptiActivityRegisterCallbacks"))(other_request, other_complete);
}

/* ---------------------------------------------------------------- NVTX, as its header does it */

static NvtxFunction core_functions[16], core2_functions[16];
static NvtxFunction *core_table[17], *core2_table[17];
static intptr_t payload_functions[63];

static int module_table(uint32_t module, NvtxFunctionTable *table, unsigned *size)
{
    *table = module == NVTX_MODULE_CORE ? core_table : core2_table;
    *size = 16;
    return module == NVTX_MODULE_CORE || module == NVTX_MODULE_CORE2;
}

static const void *export_table(uint32_t id)
{
    static const NvtxCallbacks CALLBACKS = {sizeof CALLBACKS, module_table};
    return id == NVTX_TABLE_CALLBACKS ? &CALLBACKS : NULL;
}

static int nvtx_start(void)
{
    void *library = open_named("NVTX_INJECTION64_PATH");
    for (int i = 0; i < 16; i++) {
        core_table[i] = &core_functions[i];
        core2_table[i] = &core2_functions[i];
    }
    int found = ((int (*)(NvtxGetExportTable))symbol(library, "InitializeInjectionNvtx2"))(export_table);
    NvtxExtSegment segment = {0, 63, payload_functions};
    NvtxExtModule module = {3, sizeof module, NVTX_EXTENSION_PAYLOAD, 0x0104, 1, &segment};
    if (found)
        ((int (*)(NvtxExtModule *))symbol(library, "InitializeInjectionNvtxExtension"))(&module);
    return found;
}

#define CORE(id, type) ((type)core_functions[id])
#define CORE2(id, type) ((type)core2_functions[id])
typedef int (*PushCall)(const char *);
typedef int (*PopCall)(void);
typedef int (*DomainPushCall)(const void *, const NvtxEvent *);
typedef int (*DomainPopCall)(const void *);
typedef const void *(*TextCall)(const void *, const char *);
typedef uint64_t (*StartCall)(const char *);

/* What NCCL does for one all-reduce. */
static void nccl_range(const void *domain)
{
    static const NvtxSchemaEntry ENTRIES[] = {
        {.type = 18, .name = "NCCL communicator ID"},
        {.type = 22, .name = "Message size [bytes]", .offset = 8},
        {.type = 5, .name = "Reduction operation", .offset = 16},
    };
    NvtxSchemaAttributes schema = {.fields = NVTX_SCHEMA_HAS_ID, .name = "AllReduce",
                                   .entries = ENTRIES, .entries_count = 3, .static_bytes = 24,
                                   .id = 1};
    struct {
        uint64_t comm, bytes;
        int operation;
    } data = {0xC0FFEE, 1048576, -1};
    ((uint64_t(*)(const void *, const NvtxSchemaAttributes *))
         payload_functions[NVTX_EXT_SCHEMA_REGISTER])(domain, &schema);
    NvtxPayload payload = {1, sizeof data, &data};
    const void *name = CORE2(NVTX_DOMAIN_REGISTER_A, TextCall)(domain, "ncclAllReduce");
    NvtxEvent event = {.version = 3, .size = sizeof event, .payload_type = NVTX_PAYLOAD_EXTENDED,
                       .payload_count = 1, .payload.pointer = &payload,
                       .message_type = NVTX_MESSAGE_REGISTERED, .message.registered = name};
    CORE2(NVTX_DOMAIN_PUSH_EX, DomainPushCall)(domain, &event);
    CORE2(NVTX_DOMAIN_POP, DomainPopCall)(domain);
}

static void nvtx_ranges(void)
{
    if (!nvtx_start())
        return;
    int outer = CORE(NVTX_PUSH_A, PushCall)("outer");
    int inner = ((int (*)(const wchar_t *))core_functions[NVTX_PUSH_W])(L"inner \u00fc\U0001F680");
    const void *domain = CORE2(NVTX_DOMAIN_CREATE_A, const void *(*)(const char *))("NCCL");
    nccl_range(domain);
    NvtxEvent event = {.version = 3, .size = sizeof event, .payload_type = NVTX_PAYLOAD_DOUBLE,
                       .payload.f64 = 1.5, .message_type = NVTX_MESSAGE_ASCII,
                       .message.ascii = "marked"};
    ((void (*)(const NvtxEvent *))core_functions[NVTX_MARK_EX])(&event);
    uint64_t id = CORE(NVTX_START_A, StartCall)("started");
    CORE(NVTX_POP, PopCall)();
    CORE(NVTX_POP, PopCall)();
    int none = CORE(NVTX_POP, PopCall)();
    ((void (*)(uint64_t))core_functions[NVTX_END])(id);
    ((void (*)(uint64_t))core_functions[NVTX_END])(id);
    const void *own = CORE2(NVTX_DOMAIN_CREATE_A, const void *(*)(const char *))("rca-llm");
    event.message.ascii = "ours";
    CORE2(NVTX_DOMAIN_PUSH_EX, DomainPushCall)(own, &event);
    CORE2(NVTX_DOMAIN_POP, DomainPopCall)(own);
    printf("levels %d %d %d\n", outer, inner, none);
}

static void *nvtx_thread_work(void *count)
{
    for (long i = 0; i < (long)(intptr_t)count; i++) {
        char name[32];
        snprintf(name, sizeof name, "work %ld", i % 50);
        CORE(NVTX_PUSH_A, PushCall)(name);
        uint64_t id = CORE(NVTX_START_A, StartCall)("ranged");
        ((void (*)(uint64_t))core_functions[NVTX_END])(id);
        CORE(NVTX_POP, PopCall)();
    }
    return NULL;
}

/* ---------------------------------------------------------------- arguments */

static int activity(const char *what, long first, long second)
{
    if (!strcmp(what, "kernels"))
        kernels(first, 0);
    else if (!strcmp(what, "nodes"))
        kernels(first, 1000);
    else if (!strcmp(what, "threads"))
        in_threads(first, second, kernel_thread);
    else if (!strcmp(what, "stepping"))
        in_threads(first, second, stepping_thread);
    else if (!strcmp(what, "replay"))
        FAKE(fake_replay, KernelCall)("_Z6replayPf", (uint64_t)first);
    else if (!strcmp(what, "copies"))
        FAKE(fake_copy, CopyCall)(4096, 1, 1, 3), FAKE(fake_copy, CopyCall)(8192, 2, 3, 2),
            FAKE(fake_peer_copy, U64Call)(16384);
    else if (!strcmp(what, "memset"))
        FAKE(fake_memset, U64Call)(512);
    else if (!strcmp(what, "sync"))
        FAKE(fake_synchronise, Any)();
    else if (!strcmp(what, "graph"))
        FAKE(fake_graph, U32Call)((uint32_t)first);
    else if (!strcmp(what, "device"))
        FAKE(fake_device, Any)();
    else if (!strcmp(what, "overhead"))
        FAKE(fake_overhead, U32Call)(5 << 16);
    else if (!strcmp(what, "dropped"))
        FAKE(fake_dropped, U64Call)((uint64_t)first);
    else
        return 0;
    return 1;
}

static int steering(const char *what, long first)
{
    if (!strcmp(what, "step"))
        push_step((uint64_t)first);
    else if (!strcmp(what, "nostep"))
        pop_step();
    else if (!strcmp(what, "beside"))
        beside(first);
    else if (!strcmp(what, "joined"))
        joined();
    else if (!strcmp(what, "version"))
        ask_version();
    else if (!strcmp(what, "release") || !strcmp(what, "reclaim") || !strcmp(what, "flush")) {
        char name[80];
        snprintf(name, sizeof name, "rca_llm_gpu_%s", what);
        symbol(collector, name)();
    } else if (!strcmp(what, "status"))
        printf("status %d\n", ((int (*)(void))symbol(collector, "rca_llm_gpu_status"))());
    else if (!strcmp(what, "enabled"))
        printf("enabled %d\n",
               ((int (*)(uint32_t))symbol(cupti, "fake_enabled"))((uint32_t)first));
    else if (!strcmp(what, "displace"))
        displace();
    else
        return 0;
    return 1;
}

static int process(const char *what, long first, long second)
{
    if (!strcmp(what, "init"))
        start();
    else if (!strcmp(what, "sleep"))
        nap(first);
    else if (!strcmp(what, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(what, "fork"))
        in_child(first);
    else if (!strcmp(what, "nvtx"))
        nvtx_ranges();
    else if (!strcmp(what, "nvtxopen"))
        nvtx_start(), CORE(NVTX_PUSH_A, PushCall)("never ended");
    else if (!strcmp(what, "nvtxthreads"))
        nvtx_start(), in_threads(first, second, nvtx_thread_work);
    else
        return 0;
    return 1;
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        char what[64] = "";
        long first = 1, second = 0;
        sscanf(arguments[i], "%63[a-z]:%ld:%ld", what, &first, &second);
        if (!process(what, first, second) && !steering(what, first) && !activity(what, first, second)) {
            fprintf(stderr, "app: what is %s?\n", arguments[i]);
            return 3;
        }
        fflush(stdout);
    }
    return 0;
}
