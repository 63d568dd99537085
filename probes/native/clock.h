/* The one clock of all recorders: CLOCK_MONOTONIC in ns, as Python's monotonic_ns. */
#ifndef RCA_CLOCK_H
#define RCA_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t clock_monotonic(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* A pair of readings of the two clocks; width is the time that lies around the UTC one. */
typedef struct ClockAnchor {
    int64_t monotonic, utc, width;
} ClockAnchor;

static inline ClockAnchor clock_anchor(void)
{
    int64_t before = clock_monotonic();
    int64_t utc = clock_ns(CLOCK_REALTIME);
    int64_t after = clock_monotonic();
    return (ClockAnchor){before + (after - before) / 2, utc, after - before};
}

#endif
