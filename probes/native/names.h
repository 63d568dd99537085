/* Texts that a segment has already named, so that each is written once. One writer thread. */
#ifndef RCA_NAMES_H
#define RCA_NAMES_H

#include "segment.h"

typedef struct NameEntry {
    uint64_t hash;
    uint32_t id, bytes;
    char *text;
} NameEntry;

enum { NAME_CACHE = 1024 };

typedef struct Names {
    NameEntry *entries; /* open addressing, a power of two */
    size_t room, used;
    struct {
        const char *pointer;
        uint32_t slot; /* place in `entries` + 1, 0 none */
    } cache[NAME_CACHE];
} Names;

/* The id of a text in `segment`; 0 for NULL and where it could not be written. A text that changes
 * behind an old pointer (an unloaded module, a reused buffer) gets its own id. */
uint32_t names_id(Names *self, Segment *segment, const char *text);

/* Forgets every id: a new segment numbers its names anew. */
void names_clear(Names *self);

#endif
