/* What the environment asks of the collector; docs/gpu.md lists the variables. */
#ifndef RCA_OPTIONS_H
#define RCA_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GPU_LAUNCHES is not offered by the launcher: it costs 6 to 18 % more than kernels alone. */
enum GpuMode { GPU_OFF, GPU_KERNELS, GPU_LAUNCHES, GPU_FULL };

typedef struct Options {
    char run[3072]; /* the run directory; empty where the process is not traced */
    enum GpuMode gpu;
    bool graph_level, nvtx, external;
    bool queued; /* ask CUPTI when each kernel was queued: for short runs, it keeps memory for each */
    uint64_t queued_most; /* kernels after which recording ends then */
    bool steps; /* mark where steps begin and end, by a call of the driver that is recorded */
    bool steps_at_once; /* ready for that before the first one */
    bool rests; /* a closed gate switches CUPTI's kinds off, where that is safe */
    bool runtime_api, driver_api; /* calls worth recording of each, in the last two modes */
    size_t buffer_bytes;
    uint64_t segment_bytes; /* a segment that grew past it is followed by a new one */
    uint64_t most_bytes;    /* of all segments of the collector; 0 no limit */
} Options;

void options_read(Options *self);

#endif
