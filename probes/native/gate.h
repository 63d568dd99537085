/* When the gate was open: records are kept by the time at which they began, since a buffer that
 * comes back now holds records from before the last change. */
#ifndef RCA_GATE_H
#define RCA_GATE_H

#include <stdbool.h>
#include <stdint.h>

enum { GATE_CHANGES = 64 };

typedef struct Gate {
    struct {
        uint64_t time;
        bool open;
    } changes[GATE_CHANGES]; /* oldest first */
    int count;
} Gate;

/* Begins with the state that the gate has now, for all times before. */
void gate_start(Gate *self, bool open);

/* The state noted last. */
bool gate_open(const Gate *self);

/* Notes another state, since a time. */
void gate_note(Gate *self, uint64_t time, bool open);

/* Whether a record that began then is wanted. */
static inline bool gate_wants(const Gate *self, uint64_t start)
{
    int at = self->count - 1;
    while (at > 0 && self->changes[at].time > start)
        at--;
    return self->changes[at].open;
}

#endif
