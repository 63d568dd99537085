/* Ranges that are ended by their id, perhaps by another thread. No locks. */
#ifndef RCA_NVTX_RANGES_H
#define RCA_NVTX_RANGES_H

#include "nvtx_thread.h"

/* Keeps a range until its end; its id, 0 where there is no room. */
uint64_t nvtx_ranges_add(OpenRange range);

/* Takes a range out by its id; false for an id that is not open. */
bool nvtx_ranges_take(uint64_t id, OpenRange *range);

/* Forgets all ranges: they are those of the parent of a forked child. */
void nvtx_ranges_forget(void);

#endif
