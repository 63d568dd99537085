/* Subscribing to CUPTI and choosing what it records. */
#ifndef RCA_ACTIVITY_H
#define RCA_ACTIVITY_H

#include "cupti.h"
#include "options.h"

/* How the attempt to collect went; `failed` names the call behind `error`. */
typedef struct ActivityState {
    bool found, collecting;
    bool recording; /* the kinds are on */
    uint32_t version;
    int error;
    const char *failed;
    char competitor[128]; /* the client that holds CUPTI, where it says */
    int selected_functions, setup_us;
} ActivityState;

/* Loads CUPTI, learns whether it is free, and gets ready to record; `enable` begins at once. */
void activity_start(Cupti *cupti, const Options *options, ActivityState *state, bool enable);

/* Enables the kinds of `options`. */
void activity_enable(Cupti *cupti, const Options *options, ActivityState *state);

/* Has steps marked from now on, where a thread has begun one. */
void activity_follow_steps(Cupti *cupti, const Options *options);

/* Switches every kind off that may be on. Graph replays in one piece stay on: switching them where
 * graphs exist is not safe. */
void activity_stop(Cupti *cupti, ActivityState *state);

/* Registers our buffers again, after another client ended; `enable` goes on recording at once. */
void activity_resume(Cupti *cupti, const Options *options, ActivityState *state, bool enable);

/* One instant on the clock of CUPTI's records and on ours. */
typedef struct ClockReading {
    int64_t theirs, ours;
} ClockReading;

/* Reads both clocks; false where another client has replaced ours. */
bool activity_clock(const Cupti *cupti, ClockReading *reading);

#endif
