/* Markers of engine steps. Where the step of a thread changes, one cheap call of the driver is made
 * and recorded, in the mode `kernels` the only one that is. All calls of a process share one counter,
 * that of correlation ids, so what is launched between two markers has an id between theirs. */
#ifndef RCA_MARKERS_H
#define RCA_MARKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "cupti.h"

/* What a marker says of its thread from there on. A reset says of all threads that nothing is known
 * but how many of them are in a step: markers were not made for a while. */
enum MarkerState { MARKER_OUTSIDE, MARKER_STEP, MARKER_UNKNOWN, MARKER_RESET };

enum { STEP_BITS = 44 }; /* of the number of a step; a larger one is not known */

typedef struct Marker {
    uint64_t step;     /* the threads in a step where it is a reset; 0 where there is none */
    uint16_t sequence; /* counts the markers of a thread, from 1: where one is missing, it was lost */
    uint8_t state;
    uint8_t within; /* whether the thread was in a step before */
} Marker;

/* Finds the call and what CUPTI needs to record it alone; false where anything is missing. */
bool markers_find(const Cupti *cupti);

/* The id of the call among the driver's functions; 0 before it was found. */
uint32_t markers_cbid(void);

/* Whether a thread has begun a step, and no markers are made. */
bool markers_wanted(void);

/* Markers are made between these, in any thread; the call must be recorded by then. */
void markers_begin(void);
void markers_end(void);

/* A step of this thread begins within the one at hand; the innermost ends. */
void markers_push(uint64_t step);
void markers_pop(void);

/* Takes apart the external id of a call; false where it is no marker's. */
bool markers_read(uint64_t id, Marker *into);

#endif
