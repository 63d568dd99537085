/* The gate of a run: a byte in a file that every process of the run maps. */
#ifndef RCA_CONTROL_H
#define RCA_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

/* Maps the control file of the run that the environment names; the gate is open without one. */
void control_open(const char *run);

/* What `control_gate` reads; a shared mapping, or a constant 1. */
extern const volatile uint8_t *control_byte;

/* Whether records are wanted now. */
static inline bool control_gate(void)
{
    return *control_byte != 0;
}

/* When the gate changed, once one thread finds that it has: what the run says, else `now`. */
uint64_t control_changed(uint64_t now);

#endif
