/* Who writes a segment: process, thread and rank, as the header of the file names them. */
#ifndef RCA_IDENTITY_H
#define RCA_IDENTITY_H

#include <stdint.h>

typedef struct Identity {
    uint32_t pid, ppid;
    uint64_t tid, process_start;
    int32_t rank, local_rank, world_size;
    char host[64], thread_name[32], process_name[128];
} Identity;

/* Reads it for the calling thread; `thread_name` may be NULL for the thread's own. */
void identity_read(Identity *self, const char *thread_name);

/* Creates the next free segment file in `run`/segments; its path, to be freed, or NULL. */
char *identity_create_file(const Identity *self, const char *run, uint32_t *sequence);

#endif
