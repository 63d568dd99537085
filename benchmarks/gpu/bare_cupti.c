/* The floor of any collector: CUPTI records the same kinds, and nobody reads them. Buffers go round
 * between two callbacks, so that what remains is CUPTI's own price. Compare with our modes.
 *
 *   cc -shared -fPIC -O2 -D_GNU_SOURCE -I probes/native bare_cupti.c probes/native/cupti.c -ldl
 *
 * BARE_KINDS lists kinds, comma separated; RUNTIME and DRIVER are recorded whole. BARE_ATTRIBUTES sets
 * attributes of CUPTI first, each as id:value:bytes, to learn what they cost; BARE_HW=1 asks for the
 * hardware's own events. BARE_LAUNCHES records launches and waits besides: `activity` by those functions
 * of RUNTIME and DRIVER alone, `callbacks` by a callback of ours at each, which reads the clock, and
 * `latency` by the times of queueing in the kernel records. What CUPTI answered to these goes into the
 * file BARE_ANSWERS. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cupti.h"

enum { BUFFER_BYTES = 2 << 20, SLOTS = 1024 };

static Cupti cupti;
static _Atomic(uint8_t *) spare[SLOTS];

static void request(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *buffer = NULL;
    for (int i = 0; i < SLOTS && !*buffer; i++)
        *buffer = atomic_exchange(&spare[i], NULL);
    if (!*buffer)
        *buffer = aligned_alloc(4096, BUFFER_BYTES);
    *bytes = BUFFER_BYTES;
    *most = 0;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    (void)context, (void)stream, (void)bytes, (void)valid;
    for (int i = 0; i < SLOTS; i++) {
        uint8_t *nothing = NULL;
        if (atomic_compare_exchange_strong(&spare[i], &nothing, buffer))
            return;
    }
}

static void *flush(void *unused)
{
    (void)unused;
    for (;;) {
        usleep(500000);
        cupti.ActivityFlushAll(0);
    }
    return NULL;
}

static void answer(const char *what, unsigned id, int result)
{
    const char *path = getenv("BARE_ANSWERS");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %u: %d\n", what, id, result);
    fclose(file);
}

/* Events of the hardware instead of instrumented launches; Blackwell and later, by its documentation. */
static void ask_hardware(void)
{
    const char *wanted = getenv("BARE_HW");
    void *library = wanted && *wanted ? dlopen(cupti.path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, "cuptiActivityEnableHWTrace") : NULL;
    CuptiResult (*enable)(uint8_t);
    memcpy(&enable, &found, sizeof enable);
    if (wanted && *wanted)
        answer("hardware events", 0, found ? enable(1) : -1);
}

static void *function(const char *name)
{
    void *library = dlopen(cupti.path, RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

static bool launches(const char *name)
{
    static const char *const NAMES[] = {
        "cudaLaunch", "cudaGraphLaunch", "cudaDeviceSynchronize", "cudaStreamSynchronize",
        "cudaEventSynchronize", "cuLaunch", "cuGraphLaunch", "cuCtxSynchronize",
        "cuStreamSynchronize", "cuEventSynchronize",
    }; /* as LAUNCHES of activity.c */
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strncmp(name, NAMES[i], strlen(NAMES[i])))
            return strncmp(name, "cudaLaunchAttribute", 19) != 0;
    return false;
}

static void seen(void *user, uint32_t domain, uint32_t id, const void *data)
{
    static _Thread_local struct timespec last;
    (void)user, (void)domain, (void)id, (void)data;
    clock_gettime(CLOCK_MONOTONIC, &last);
}

/* Goes through the functions of one API: off where they are not wanted, or on by callback. */
static void choose(uint32_t domain, CuptiResult (*enable)(uint32_t, uint8_t), CuptiSubscriber handle)
{
    CuptiResult (*call)(uint32_t, CuptiSubscriber, uint32_t, uint32_t);
    void *found = function("cuptiEnableCallback");
    unsigned chosen = 0;
    memcpy(&call, &found, sizeof call);
    for (uint32_t id = 1; id < 2048; id++) {
        const char *name = NULL;
        if (cupti.GetCallbackName(domain, id, &name) != CUPTI_OK || !name)
            continue;
        chosen += launches(name);
        if (enable && !launches(name))
            enable(id, 0);
        else if (!enable && call && launches(name))
            call(1, handle, domain, id);
    }
    answer("functions", domain, (int)chosen);
}

static void record_launches(void)
{
    const char *how = getenv("BARE_LAUNCHES");
    CuptiSubscriber handle = NULL;
    if (how && !strcmp(how, "activity")) {
        cupti.ActivityEnable(CUPTI_KIND_RUNTIME);
        cupti.ActivityEnable(CUPTI_KIND_DRIVER);
        choose(CUPTI_DOMAIN_RUNTIME, cupti.ActivityEnableRuntimeApi, NULL);
        choose(CUPTI_DOMAIN_DRIVER, cupti.ActivityEnableDriverApi, NULL);
    } else if (how && !strcmp(how, "callbacks")) {
        int result = cupti.Subscribe ? (int)cupti.Subscribe(&handle, seen, NULL) : -1;
        answer("subscribe", 0, result);
        for (uint32_t domain = CUPTI_DOMAIN_DRIVER; !result && domain <= CUPTI_DOMAIN_RUNTIME; domain++)
            choose(domain, NULL, handle);
    } else if (how && !strcmp(how, "latency")) {
        CuptiResult (*enable)(uint8_t);
        void *found = function("cuptiActivityEnableLatencyTimestamps");
        memcpy(&enable, &found, sizeof enable);
        answer("latency", 0, found ? enable(1) : -1);
    }
}

static void set_attributes(const char *text)
{
    unsigned id, bytes, value;
    while (text && sscanf(text, "%u:%u:%u", &id, &value, &bytes) == 3) {
        uint64_t wide = value; /* little endian, so that the first bytes are the value */
        size_t size = bytes;
        answer("attribute", id, cupti.ActivitySetAttribute(id, &size, &wide));
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
}

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    pthread_t thread;
    const char *kinds = getenv("BARE_KINDS");
    if (!kinds || !cupti_load(&cupti))
        return 1;
    answer(cupti.path, 0, 0);
    ask_hardware();
    set_attributes(getenv("BARE_ATTRIBUTES"));
    cupti.ActivityRegisterCallbacks(request, complete);
    for (char *end = NULL; *kinds; kinds = *end ? end + 1 : end) {
        cupti.ActivityEnable((uint32_t)strtoul(kinds, &end, 10));
        if (end == kinds)
            break;
    }
    record_launches();
    pthread_create(&thread, NULL, flush, NULL);
    return 1;
}
