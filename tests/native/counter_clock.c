/* Compares the clock by the processor's counter with the clock around every reading; then once more as
 * if the machine had slept, when the counter went on and the clock did not. Prints for each whether a
 * time was earlier than one before, and the 99th percentile of how far times lie outside, ns. */
#include <stdio.h>
#include <stdlib.h>

#include "counter_clock.h"

enum { READINGS = 100000 };

static int ascending(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

static void compare(void)
{
    static int64_t outside[READINGS];
    int64_t last = 0;
    int back = 0;
    for (int i = 0; i < READINGS; i++) {
        int64_t before = clock_monotonic(), told = counter_clock(), after = clock_monotonic();
        outside[i] = told < before ? before - told : told > after ? told - after : 0;
        back += told < last;
        last = told;
    }
    qsort(outside, READINGS, sizeof *outside, ascending);
    printf("%d %lld\n", back, (long long)outside[READINGS / 100 * 99]);
}

int main(void)
{
    counter_prepare();
    compare();
#if defined(__x86_64__)
    line.base.ticks -= line.base.ticks / 2;
    line.at.ticks -= line.at.ticks / 2;
#endif
    compare();
    return 0;
}
