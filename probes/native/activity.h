/* Subscribing to CUPTI and choosing what it records. */
#ifndef RCA_ACTIVITY_H
#define RCA_ACTIVITY_H

#include "cupti.h"
#include "options.h"

/* How the attempt to collect went; `failed` names the call behind `error`. */
typedef struct ActivityState {
    bool found, collecting;
    uint32_t version;
    int error;
    const char *failed;
    char competitor[128]; /* the client that holds CUPTI, where it says */
    int selected_functions, setup_us;
} ActivityState;

/* Loads CUPTI, takes the subscriber's place and enables the kinds of `options`. */
void activity_start(Cupti *cupti, const Options *options, ActivityState *state);

/* Registers our buffers and clock again and enables the kinds again, after another client ended. */
void activity_resume(Cupti *cupti, const Options *options, ActivityState *state);

/* Whether another client has replaced the clock, which a displaced collector cannot see otherwise. */
bool activity_clock_is_ours(const Cupti *cupti);

#endif
