/* Turns CUPTI's records into rows and writes them into a segment. Used by one thread at a time. */
#ifndef RCA_SINK_H
#define RCA_SINK_H

#include "activity.h"
#include "buffers.h"
#include "cupti.h"
#include "gate.h"
#include "names.h"
#include "options.h"
#include "rows.h"
#include "segment.h"

enum { STAGE_BYTES = 32 * 1024, API_IDS = 2048 };

/* Rows of one kind that wait to be written together. */
typedef struct Stage {
    uint32_t rows;
    _Alignas(8) uint8_t data[STAGE_BYTES];
} Stage;

/* Halves of markers: the external id and the call with the same correlation id, of which CUPTI hands
 * over one after the other. */
enum { MARKER_HALVES = 1024 };
typedef struct MarkerHalf {
    uint64_t id, time;
    uint32_t correlation, thread;
} MarkerHalf;

typedef struct SinkCounts {
    uint64_t no_timestamp, foreign_time, unknown_kind, dropped, foreign_buffers, overrun;
} SinkCounts;

typedef struct Sink {
    const Cupti *cupti;
    const Options *options;
    Segment segment;
    Names names;
    Gate gate;
    uint64_t now;           /* when the buffer in hand came back */
    bool foreign_clock;     /* records are on another client's clock */
    ClockReading first, latest; /* where the two clocks stood */
    uint64_t written;       /* bytes of earlier segments */
    uint64_t queued;        /* kernels of which CUPTI told when they were queued */
    SinkCounts seen, told;  /* counted, and already written as INFO */
    MarkerHalf halves[MARKER_HALVES]; /* by correlation id */
    uint32_t api_ids[2][API_IDS]; /* NAME ids of driver and runtime functions */
    struct {
        Cell *cell;
        Block *block;
    } gap; /* the GAP cell that is open */
    Stage stages[ROW_KINDS];
} Sink;

/* Opens the segment of the calling thread; false where nothing can be written. `open` is the state
 * that the gate had until now. */
bool sink_open(Sink *self, const Cupti *cupti, const Options *options, bool open);

/* Takes a reading of a foreign clock: records are put on ours by the line through two of them. */
void sink_clock(Sink *self, ClockReading reading);

/* Writes what one completed activity buffer holds; a consumer for buffers_drain. */
void sink_buffer(void *self, const FullBuffer *buffer);

/* Writes staged rows and changed counts; starts a new segment where this one is full. */
void sink_flush(Sink *self);

/* Writes an INFO cell; `value` may be NULL. */
void sink_info(Sink *self, const char *key, int64_t number, const char *value);

/* Opens and closes the stretch in which nothing is recorded by intent. */
void sink_gap_begin(Sink *self, uint64_t time, const char *reason);
void sink_gap_end(Sink *self, uint64_t time);

void sink_close(Sink *self);

#endif
