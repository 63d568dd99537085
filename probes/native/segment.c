#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "identity.h"

Block *block_hold(Block *block)
{
    atomic_fetch_add_explicit(&block->open, 1, memory_order_relaxed);
    return block;
}

void block_release(Block *block)
{
    if (atomic_fetch_sub_explicit(&block->open, 1, memory_order_acq_rel) != 1)
        return;
    munmap(block->base, block->bytes);
    free(block);
}

void segment_stop(Segment *self, int error)
{
    self->stopped = true;
    if (!self->header)
        return;
    self->header->stop_errno = (uint32_t)error;
    self->header->stopped_ns = clock_monotonic();
}

/* Allocates room on the disk before it is mapped: touching a hole on a full disk kills, and so does
 * growing a file past the limit of the process (SIGXFSZ). */
static int allocate(int fd, uint64_t offset, size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        offset + bytes > limit.rlim_cur)
        return EFBIG;
    return posix_fallocate(fd, (off_t)offset, (off_t)bytes);
}

static void *map_file(const char *path, uint64_t offset, size_t bytes, int *error)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *base = MAP_FAILED;
    *error = fd < 0 ? errno : allocate(fd, offset, bytes);
    if (!*error) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
        *error = base == MAP_FAILED ? errno : 0;
    }
    if (fd >= 0)
        close(fd);
    return *error ? NULL : base;
}

static Block *block_map(const char *path, uint64_t offset, size_t bytes, int *error)
{
    Block *block = malloc(sizeof *block);
    void *base = block ? map_file(path, offset, bytes, error) : NULL;
    if (!base) {
        *error = block ? *error : ENOMEM;
        free(block);
        return NULL;
    }
    block->base = base;
    block->bytes = bytes;
    atomic_init(&block->open, 1);
    return block;
}

static size_t block_bytes(size_t needed)
{
    size_t blocks = (needed + RCA_BLOCK_BYTES - 1) / RCA_BLOCK_BYTES;
    return (blocks ? blocks : 1) * RCA_BLOCK_BYTES;
}

static bool grow(Segment *self, size_t needed)
{
    int error = 0;
    size_t bytes = self->bytes ? block_bytes(needed) : RCA_FIRST_BLOCK_BYTES;
    Block *block = block_map(self->path, self->bytes, bytes, &error);
    if (!block) {
        segment_stop(self, error);
        return false;
    }
    if (self->block && self->block != self->first)
        block_release(self->block);
    self->block = block;
    self->next = block->base;
    self->end = block->base + bytes;
    self->bytes += bytes;
    return true;
}

static void fill_header(Segment *self, const Identity *who, uint32_t sequence)
{
    ClockAnchor anchor = clock_anchor();
    Header *header = self->header;
    *header = (Header){
        .version = RCA_VERSION,
        .header_bytes = RCA_HEADER_BYTES,
        .cell_bytes = RCA_CELL_BYTES,
        .writer = RCA_WRITER_NATIVE,
        .pid = who->pid,
        .ppid = who->ppid,
        .tid = who->tid,
        .process_start = who->process_start,
        .anchor_monotonic_ns = anchor.monotonic,
        .anchor_utc_ns = anchor.utc,
        .anchor_width_ns = anchor.width,
        .clock = RCA_CLOCK_MONOTONIC,
        .sequence = sequence,
        .rank = who->rank,
        .local_rank = who->local_rank,
        .world_size = who->world_size,
    };
    memcpy(header->host, who->host, sizeof header->host);
    memcpy(header->thread_name, who->thread_name, sizeof header->thread_name);
    memcpy(header->process_name, who->process_name, sizeof header->process_name);
    uint64_t magic;
    memcpy(&magic, RCA_MAGIC, sizeof magic);
    __atomic_store_n(&header->magic, magic, __ATOMIC_RELEASE);
}

bool segment_open(Segment *self, const char *run, const char *thread_name)
{
    Identity who;
    uint32_t sequence = 0;
    *self = (Segment){.next_id = 1, .stopped = true};
    identity_read(&who, thread_name);
    self->path = identity_create_file(&who, run, &sequence);
    if (!self->path || !grow(self, 0)) {
        free(self->path);
        self->path = NULL;
        return false;
    }
    self->first = self->block;
    self->header = (Header *)self->block->base;
    self->next += RCA_HEADER_BYTES;
    fill_header(self, &who, sequence);
    self->stopped = false;
    return true;
}

void segment_drop(Segment *self, uint64_t records)
{
    if (self->header)
        self->header->dropped += records;
}

Cell *segment_reserve(Segment *self, size_t cells)
{
    size_t bytes = cells * RCA_CELL_BYTES;
    if (!self->stopped && (size_t)(self->end - self->next) < bytes)
        grow(self, bytes);
    if (self->stopped) {
        segment_drop(self, 1);
        return NULL;
    }
    Cell *at = (Cell *)self->next;
    self->next += bytes;
    return at;
}

bool segment_payload(Segment *self, Cell cell, uint32_t type, const void *data, size_t bytes)
{
    size_t cells = 1 + (bytes + RCA_CELL_BYTES - 1) / RCA_CELL_BYTES;
    Cell *at = segment_reserve(self, cells);
    if (!at)
        return false;
    cell.b = (int64_t)bytes;
    cell_commit(at, cell, RCA_PENDING, 0);
    memcpy(at + 1, data, bytes);
    __atomic_store_n(&at->tag, cell_tag(type, 0), __ATOMIC_RELEASE);
    return true;
}

uint32_t segment_name(Segment *self, int64_t key, const char *text, size_t bytes)
{
    uint32_t id = self->next_id;
    if (!segment_payload(self, (Cell){.a = key, .c = id}, RCA_NAME, text, bytes))
        return 0;
    self->next_id++;
    return id;
}

void segment_cell(Segment *self, Cell cell, uint32_t type, uint32_t flags)
{
    Cell *at = segment_reserve(self, 1);
    if (at)
        cell_commit(at, cell, type, flags);
}

void segment_anchor(Segment *self)
{
    ClockAnchor now = clock_anchor();
    segment_cell(self, (Cell){.a = now.monotonic, .b = now.utc, .c = (uint32_t)now.width},
                 RCA_ANCHOR, 0);
}

static void let_go(Segment *self)
{
    if (self->block && self->block != self->first)
        block_release(self->block);
    if (self->first)
        block_release(self->first);
    free(self->path);
    *self = (Segment){.stopped = true};
}

void segment_close(Segment *self)
{
    if (self->header)
        self->header->closed_ns = clock_monotonic();
    let_go(self);
}

void segment_abandon(Segment *self)
{
    let_go(self);
}
