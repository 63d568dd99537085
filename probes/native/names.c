#include "names.h"

#include <stdlib.h>
#include <string.h>

/* Beyond this many different texts each use writes its own NAME cell: memory stays bounded. */
enum { FIRST_ROOM = 1024, MOST_NAMES = 1 << 16, LONGEST_NAME = 1 << 16 };

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    return hash;
}

static size_t find(const Names *self, uint64_t hash, const char *text, size_t bytes)
{
    size_t at = hash & (self->room - 1);
    for (; self->entries[at].id; at = (at + 1) & (self->room - 1)) {
        const NameEntry *entry = &self->entries[at];
        if (entry->hash == hash && entry->bytes == bytes && !memcmp(entry->text, text, bytes))
            break;
    }
    return at;
}

static bool enlarge(Names *self)
{
    size_t room = self->room ? self->room * 2 : FIRST_ROOM;
    NameEntry *entries = calloc(room, sizeof *entries);
    if (!entries)
        return false;
    for (size_t i = 0; i < self->room; i++) {
        if (!self->entries[i].id)
            continue;
        size_t at = self->entries[i].hash & (room - 1);
        while (entries[at].id)
            at = (at + 1) & (room - 1);
        entries[at] = self->entries[i];
    }
    free(self->entries);
    self->entries = entries;
    self->room = room;
    memset(self->cache, 0, sizeof self->cache);
    return true;
}

/* Puts a new text into the free place `at`; its id. */
static uint32_t insert(Names *self, Segment *segment, size_t at, NameEntry entry)
{
    entry.id = segment_name(segment, 0, entry.text, entry.bytes);
    char *copy = entry.id ? malloc(entry.bytes + 1u) : NULL;
    if (!copy)
        return entry.id;
    memcpy(copy, entry.text, entry.bytes);
    copy[entry.bytes] = 0;
    entry.text = copy;
    self->entries[at] = entry;
    self->used++;
    return entry.id;
}

static uint32_t intern(Names *self, Segment *segment, const char *text, size_t bytes, size_t *slot)
{
    if (self->used * 2 >= self->room && self->used < MOST_NAMES && !enlarge(self))
        return segment_name(segment, 0, text, bytes);
    uint64_t hash = hash_of(text, bytes);
    size_t at = find(self, hash, text, bytes);
    uint32_t id = self->entries[at].id;
    NameEntry entry = {hash, 0, (uint32_t)bytes, (char *)(uintptr_t)text};
    if (!id && self->used < MOST_NAMES)
        id = insert(self, segment, at, entry);
    else if (!id)
        id = segment_name(segment, 0, text, bytes);
    *slot = self->entries[at].id ? at + 1 : 0;
    return id;
}

uint32_t names_id(Names *self, Segment *segment, const char *text)
{
    if (!text)
        return 0;
    size_t place = ((uintptr_t)text >> 4) % NAME_CACHE;
    uint32_t slot = self->cache[place].slot;
    if (slot && self->cache[place].pointer == text && !strcmp(self->entries[slot - 1].text, text))
        return self->entries[slot - 1].id;
    size_t found = 0;
    uint32_t id = intern(self, segment, text, strnlen(text, LONGEST_NAME), &found);
    self->cache[place].pointer = text;
    self->cache[place].slot = (uint32_t)found;
    return id;
}

void names_clear(Names *self)
{
    for (size_t i = 0; i < self->room; i++)
        free(self->entries[i].text);
    free(self->entries);
    memset(self, 0, sizeof *self);
}
