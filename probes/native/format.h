/* The layout of segment files, as probes/format.py and docs/format.md define it.
 * tests/native compares the numbers here with those of format.py. */
#ifndef RCA_FORMAT_H
#define RCA_FORMAT_H

#include <stdint.h>

#define RCA_VERSION 1
#define RCA_MAGIC "RCASEG1\n"
#define RCA_HEADER_BYTES 512
#define RCA_CELL_BYTES 32
#define RCA_FIRST_BLOCK_BYTES (64 * 1024)
#define RCA_BLOCK_BYTES (1024 * 1024)
#define RCA_WRITER_NATIVE 2
#define RCA_WRITER_PRELOAD 4
#define RCA_CLOCK_MONOTONIC 1
#define RCA_TAG 0x52430000u
#define RCA_CONTROL_BYTES 4096
#define RCA_CONTROL_CHANGED_OFFSET 16

enum {
    RCA_PENDING = 1,
    RCA_NAME = 2,
    RCA_BUFFER = 3,
    RCA_SPAN = 16,
    RCA_MORE = 17,
    RCA_END = 18,
    RCA_MARK = 19,
    RCA_NUMBER = 20,
    RCA_REQUEST = 21,
    RCA_STEP = 22,
    RCA_STEP_REQUEST = 23,
    RCA_SCHED = 25,
    RCA_ANCHOR = 27,
    RCA_INFO = 28,
    RCA_GAP = 29,
    RCA_THREAD = 30,
    RCA_CALL = 31,
    RCA_SUM = 32,
};

enum {
    RCA_FLAG_MORE = 1,
    RCA_FLAG_ASYNC = 2,
    RCA_FLAG_NVTX = 4,
    RCA_FLAG_FLOAT = 8,
    RCA_FLAG_ERROR = 16,
};

typedef struct Header {
    uint64_t magic;
    uint32_t version, header_bytes, cell_bytes, writer, pid, ppid;
    uint64_t tid, process_start;
    int64_t anchor_monotonic_ns, anchor_utc_ns, anchor_width_ns;
    uint32_t clock, sequence;
    int32_t rank, local_rank, world_size;
    uint32_t flags;
    uint64_t dropped;
    int64_t closed_ns, stopped_ns;
    uint32_t stop_errno, reserved;
    char host[64], thread_name[32], process_name[128];
    char zero[160];
} Header;

typedef struct Cell {
    int64_t a;
    union {
        int64_t b;
        double number;
    };
    uint32_t c, d, e, tag;
} Cell;

_Static_assert(sizeof(Header) == RCA_HEADER_BYTES, "header layout");
_Static_assert(sizeof(Cell) == RCA_CELL_BYTES, "cell layout");

static inline uint32_t cell_tag(uint32_t type, uint32_t flags)
{
    return RCA_TAG | flags << 8 | type;
}

#endif
