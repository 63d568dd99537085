#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const char *variable, const char *value)
{
    const char *text = getenv(variable);
    return text && strcmp(text, value) == 0;
}

static uint64_t number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    char *end = NULL;
    unsigned long long value = text && *text ? strtoull(text, &end, 10) : 0;
    return end && !*end && value ? value : otherwise;
}

void options_read(Options *self)
{
    const char *run = getenv("RCA_LLM_RUN");
    *self = (Options){
        .gpu = is("RCA_LLM_GPU", "off")        ? GPU_OFF
               : is("RCA_LLM_GPU", "kernels")  ? GPU_KERNELS
               : is("RCA_LLM_GPU", "launches") ? GPU_LAUNCHES
                                               : GPU_FULL,
        .graph_level = is("RCA_LLM_GRAPH", "graph"),
        .nvtx = !is("RCA_LLM_NVTX", "off"),
        .runtime_api = !is("RCA_LLM_API", "driver") && !is("RCA_LLM_API", "off"),
        .driver_api = !is("RCA_LLM_API", "runtime") && !is("RCA_LLM_API", "off"),
        .external = is("RCA_LLM_EXTERNAL", "on"),
        .queued = is("RCA_LLM_QUEUED", "on"),
        .queued_most = number("RCA_LLM_QUEUED_MOST", 10000000),
        .steps = is("RCA_LLM_STEPS", "on"),
        .steps_at_once = is("RCA_LLM_STEPS", "on"),
        .rests = !is("RCA_LLM_PAUSE", "gate"),
        .buffer_bytes = number("RCA_LLM_BUFFER_BYTES", 2u << 20),
        .segment_bytes = number("RCA_LLM_SEGMENT_BYTES", 256u << 20),
        .most_bytes = number("RCA_LLM_MAX_BYTES", 0),
    };
    /* Where calls are recorded, when they were made says more than enough. */
    if (self->gpu == GPU_KERNELS)
        self->steps = !is("RCA_LLM_STEPS", "off");
    if (run && *run == '/' && strlen(run) < sizeof self->run)
        memcpy(self->run, run, strlen(run) + 1);
}
