/* One append-only segment file, mapped block by block, with a single writer thread.
 * Nothing here fails loudly: where the disk is full or a call fails, the segment stops, counts what
 * it drops, and the program goes on. */
#ifndef RCA_SEGMENT_H
#define RCA_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

/* A mapped piece of the file; it stays mapped while `open` ranges in it wait for their end. */
typedef struct Block {
    uint8_t *base;
    size_t bytes;
    atomic_int open; /* the writer itself holds one */
} Block;

typedef struct Segment {
    char *path; /* opened anew for each block: daemons close descriptors that they do not know */
    uint8_t *next, *end; /* where the next cell goes, and the end of the current block */
    Block *block;
    Header *header; /* the first block, mapped until the segment is closed */
    Block *first;
    uint64_t bytes; /* length of the file */
    uint32_t next_id;
    bool stopped;
} Segment;

/* Opens a segment of the calling thread in `run`/segments; false where that cannot be. */
bool segment_open(Segment *self, const char *run, const char *thread_name);

/* Room for `cells` cells side by side; NULL, and counted as dropped, where there is none. */
Cell *segment_reserve(Segment *self, size_t cells);

/* Ends recording for good, with the reason that the header is to give. */
void segment_stop(Segment *self, int error);

/* Counts records that could not be written. */
void segment_drop(Segment *self, uint64_t records);

/* Writes a cell with a payload, in the order that survives a kill; false where it was dropped. */
bool segment_payload(Segment *self, Cell cell, uint32_t type, const void *data, size_t bytes);

/* Writes a NAME cell and returns its id, 0 where it was dropped. */
uint32_t segment_name(Segment *self, int64_t key, const char *text, size_t bytes);

/* Writes one cell without followers. */
void segment_cell(Segment *self, Cell cell, uint32_t type, uint32_t flags);

/* Writes a pair of clock readings. */
void segment_anchor(Segment *self);

/* Marks a clean end and lets go of the file. */
void segment_close(Segment *self);

/* Lets go of the mappings and the file without touching their content: what a forked child does. */
void segment_abandon(Segment *self);

/* Takes and gives back a hold on a block, so that its cells may be patched later. */
Block *block_hold(Block *block);
void block_release(Block *block);

/* Stores a cell whose followers are complete: fields first, the tag last. */
static inline void cell_commit(Cell *at, Cell cell, uint32_t type, uint32_t flags)
{
    at->a = cell.a;
    at->b = cell.b;
    at->c = cell.c;
    at->d = cell.d;
    at->e = cell.e;
    __atomic_store_n(&at->tag, cell_tag(type, flags), __ATOMIC_RELEASE);
}

#endif
