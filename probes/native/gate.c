#include "gate.h"

#include <string.h>

void gate_start(Gate *self, bool open)
{
    self->count = 1;
    self->changes[0].time = 0;
    self->changes[0].open = open;
}

bool gate_open(const Gate *self)
{
    return self->changes[self->count - 1].open;
}

void gate_note(Gate *self, uint64_t time, bool open)
{
    if (self->count == GATE_CHANGES) {
        memmove(self->changes, self->changes + 1, sizeof self->changes - sizeof *self->changes);
        self->count--;
    }
    self->changes[self->count].time = time;
    self->changes[self->count++].open = open;
}
