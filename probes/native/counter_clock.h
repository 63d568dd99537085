/* CLOCK_MONOTONIC by the processor's counter, for callers that hold the GIL.
 *
 * A read of the clock waits for all that the processor has begun (25 ns and more, of which the
 * counter itself takes 9), and a span reads twice. So the clock is read once in a tenth of a
 * millisecond; times in between are those of a line through that reading, by the rate of the last
 * ten milliseconds. Whether the counter may be trusted (one rate, the same on all processors) is the
 * kernel's verdict: that it keeps its own time by it. Otherwise every read is one of the clock. */
#ifndef RCA_COUNTER_CLOCK_H
#define RCA_COUNTER_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"

#if defined(__x86_64__)
#include <stdio.h>
#include <string.h>

enum { LINE_NS = 100000, SHORTEST_BASE_NS = 1000000, LONGEST_BASE_NS = 10000000 };

typedef struct Reading {
    uint64_t ticks;
    int64_t ns;
} Reading;

static struct {
    Reading at;     /* where the line begins */
    uint64_t reach; /* how many ticks it may be followed; 0: there is none */
    uint64_t slope; /* ns a tick, times 2^32; 0: not known yet */
    int64_t told;   /* the latest time given out: none is earlier than one before */
    Reading base;   /* what the rate is measured from */
    uint64_t narrowest; /* ticks that a reading took at least */
    bool trusted;
} line;

static inline uint64_t counter(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

/* Asks the kernel; once, at the start. */
static void counter_prepare(void)
{
    char name[32] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return;
    line.trusted = fgets(name, sizeof name, file) && !strcmp(name, "tsc\n");
    line.narrowest = UINT64_MAX;
    fclose(file);
}

/* Learns the rate from two readings 1 to 10 ms apart. One that has changed by a 64th is none: the
 * machine slept, during which the counter may go on and the clock does not. */
static void measure_rate(Reading now)
{
    int64_t ns = now.ns - line.base.ns;
    uint64_t ticks = now.ticks - line.base.ticks, slope = line.slope;
    if (line.base.ns && ns >= SHORTEST_BASE_NS && now.ticks > line.base.ticks)
        slope = (uint64_t)((double)ns / (double)ticks * 0x1p32);
    bool changed = line.slope && (slope > line.slope + line.slope / 64 ||
                                  slope < line.slope - line.slope / 64);
    line.slope = changed ? 0 : slope;
    if (!line.base.ns || ns >= LONGEST_BASE_NS || changed)
        line.base = now;
}

/* Begins a new line, where the reading was not interrupted and the rate is known. */
static void draw_line(Reading now, uint64_t width)
{
    line.reach = 0;
    if (width < line.narrowest)
        line.narrowest = width;
    if (width > 2 * line.narrowest)
        return;
    measure_rate(now);
    /* A counter of less than 10 MHz or more than 1 THz is none. */
    if (line.slope > 0x1p22 && line.slope < 0x1p39)
        line.reach = ((uint64_t)LINE_NS << 32) / line.slope;
    line.at = now;
}

static __attribute__((noinline, cold)) int64_t read_clock(void)
{
    uint64_t before = counter();
    int64_t ns = clock_monotonic();
    uint64_t width = counter() - before;
    if (line.trusted)
        draw_line((Reading){before + width / 2, ns}, width);
    return line.told = ns > line.told ? ns : line.told;
}

/* Now, in ns of CLOCK_MONOTONIC. */
static inline int64_t counter_clock(void)
{
    uint64_t passed = counter() - line.at.ticks;
    if (passed >= line.reach)
        return read_clock();
    int64_t ns = line.at.ns + (int64_t)(passed * line.slope >> 32);
    return line.told = ns > line.told ? ns : line.told;
}
#else
static inline void counter_prepare(void) {}

static inline int64_t counter_clock(void)
{
    return clock_monotonic();
}
#endif

#endif
