/* The NVTX side's segment of each thread. Threads that end hand theirs to the next new one, so that
 * a server with a thread a request does not leave a file a request. */
#ifndef RCA_NVTX_THREAD_H
#define RCA_NVTX_THREAD_H

#include "names.h"
#include "segment.h"

/* A range that waits for its end; `cell` is NULL where it was not recorded. */
typedef struct OpenRange {
    Cell *cell;
    Block *block;
    const void *domain;
} OpenRange;

typedef struct NvtxThread {
    Segment segment;
    Names names;
    OpenRange *stack;
    int depth, room;
    struct NvtxThread *next_spare, *next_all;
} NvtxThread;

/* Where segments go; before the first use. Only the first call counts. */
void nvtx_threads_start(const char *run);

/* The calling thread's; NULL where none can be made. */
NvtxThread *nvtx_thread(void);

/* Pushes a range, recorded or not; its level, from 0. */
int nvtx_thread_push(NvtxThread *self, OpenRange range);

/* Takes the innermost range of a domain out; its level, -1 where there is none. */
int nvtx_thread_pop(NvtxThread *self, const void *domain, OpenRange *range);

/* Ends a range now. */
void open_range_end(OpenRange *range);

#endif
