#include "markers.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_CBIDS = 2048, MOST_NESTED = 16, RESETS = 8 };
enum { STATE_SHIFT = 61, WITHIN_SHIFT = 60, SEQUENCE_SHIFT = STEP_BITS };

#define IS_MARKER ((uint64_t)1 << 63)
#define STEP_MASK (((uint64_t)1 << STEP_BITS) - 1)

/* It needs no context and no initialised driver, writes one number, and programs hardly call it. */
#ifndef MARKER_CALL
#define MARKER_CALL "cuDriverGetVersion"
#endif
static const char CALL[] = MARKER_CALL;

typedef struct Own {
    uint64_t steps[MOST_NESTED];
    uint32_t depth;
    uint16_t sequence;
} Own;

static const Cupti *cupti;
static int (*call)(uint64_t *);
static uint32_t cbid;
static atomic_bool found, on, used;
static atomic_uint inside; /* threads that are in a step */
static _Thread_local Own own;

/* The driver is in the process, or no collector would be; it is never loaded from here. */
static bool find_call(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = driver ? dlsym(driver, CALL) : NULL;
    if (driver)
        dlclose(driver);
    memcpy(&call, &symbol, sizeof call);
    return symbol != NULL;
}

static bool find_cbid(const Cupti *with)
{
    for (cbid = 1; cbid < MOST_CBIDS; cbid++) {
        const char *name = NULL;
        if (with->GetCallbackName(CUPTI_DOMAIN_DRIVER, cbid, &name) == CUPTI_OK && name &&
            strcmp(name, CALL) == 0)
            return true;
    }
    cbid = 0;
    return false;
}

bool markers_find(const Cupti *with)
{
    if (atomic_load(&found))
        return true;
    if (!with->ActivityEnableDriverApi || !with->ActivityPushExternalCorrelationId ||
        !with->ActivityPopExternalCorrelationId || !find_call() || !find_cbid(with))
        return false;
    cupti = with;
    atomic_store(&found, true);
    return true;
}

bool markers_wanted(void)
{
    return atomic_load(&used) && !atomic_load(&on);
}

uint32_t markers_cbid(void)
{
    return cbid;
}

static void make(Marker marker)
{
    uint64_t answer = 0;
    uint64_t id = IS_MARKER | (uint64_t)marker.state << STATE_SHIFT |
                  (uint64_t)marker.within << WITHIN_SHIFT |
                  (uint64_t)marker.sequence << SEQUENCE_SHIFT | marker.step;
    if (cupti->ActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CUSTOM2, id) != CUPTI_OK)
        return;
    call(&answer);
    cupti->ActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CUSTOM2, NULL);
}

bool markers_read(uint64_t id, Marker *into)
{
    into->state = id >> STATE_SHIFT & 3;
    into->within = id >> WITHIN_SHIFT & 1;
    into->sequence = (uint16_t)(id >> SEQUENCE_SHIFT);
    into->step = id & STEP_MASK;
    return id & IS_MARKER;
}

/* What this thread's marker would say now. */
static Marker now(bool within)
{
    Marker marker = {.sequence = own.sequence, .state = MARKER_OUTSIDE, .within = within};
    if (!own.depth)
        return marker;
    marker.state = MARKER_UNKNOWN;
    if (own.depth <= MOST_NESTED && own.steps[own.depth - 1] <= STEP_MASK) {
        marker.state = MARKER_STEP;
        marker.step = own.steps[own.depth - 1];
    }
    return marker;
}

static void changed(bool within)
{
    if (!atomic_load(&on))
        return;
    own.sequence++;
    make(now(within));
}

void markers_push(uint64_t step)
{
    if (!atomic_load(&found))
        return;
    if (!atomic_load(&used))
        atomic_store(&used, true);
    if (own.depth < MOST_NESTED)
        own.steps[own.depth] = step;
    if (!own.depth)
        atomic_fetch_add(&inside, 1);
    changed(own.depth++ != 0);
}

void markers_pop(void)
{
    if (!atomic_load(&found) || !own.depth)
        return;
    if (!--own.depth)
        atomic_fetch_sub(&inside, 1);
    changed(true);
}

/* Steps that changed while no markers were made are known again when as many threads as were in one
 * have made their next marker. A thread that enters or leaves one just now is counted again. */
void markers_begin(void)
{
    unsigned count;
    int tries = RESETS;
    atomic_store(&on, true);
    if (!atomic_load(&used))
        return;
    do {
        count = atomic_load(&inside);
        make((Marker){.state = MARKER_RESET, .step = count});
    } while (count != atomic_load(&inside) && --tries);
}

void markers_end(void)
{
    atomic_store(&on, false);
}
