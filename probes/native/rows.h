/* The rows that the collector writes: payloads of BUFFER cells, many rows of one kind in each.
 * The cell's `c` is the kind of row, `d` the bytes of one row (so that rows may grow at their end).
 * Names are NAME ids of the segment. readers/cupti_rows.py reads them by the same layout. */
#ifndef RCA_ROWS_H
#define RCA_ROWS_H

#include <stdint.h>

enum RowKind {
    ROW_KERNEL = 1,
    ROW_COPY = 2,
    ROW_MEMSET = 3,
    ROW_API = 4,
    ROW_SYNC = 5,
    ROW_GRAPH = 6,
    ROW_OVERHEAD = 7,
    ROW_EXTERNAL = 8,
    ROW_JIT = 9,
    ROW_DEVICE = 10,
    ROW_MARKER = 11,
    ROW_KINDS, /* of the collector; the others are written by the plugin for NCCL */
    ROW_NCCL = 32,
    ROW_NCCL_CHANNEL = 33,
};

typedef struct RowKernel {
    uint64_t start, end, graph_node;
    uint32_t correlation, name, stream, context, graph, shared, local;
    int32_t grid[3];
    uint16_t block[3], registers, device;
    uint8_t cluster[3], launch;
    uint16_t pad;
    uint64_t queued; /* when the host put the launch into the command buffer; 0 where unknown */
} RowKernel;

typedef struct RowCopy { /* also memset: `copy` is then 0 and `src` the memory that was set */
    uint64_t start, end, bytes, graph_node;
    uint32_t correlation, stream, context, graph;
    uint16_t device, src_device, dst_device;
    uint8_t copy, src, dst, flags;
    uint8_t pad[6];
} RowCopy;

typedef struct RowApi {
    uint64_t start, end;
    uint32_t correlation, thread, name, result;
} RowApi;

typedef struct RowSync {
    uint64_t start, end;
    uint32_t correlation, stream, context, type;
} RowSync;

typedef struct RowGraph {
    uint64_t start, end;
    uint32_t correlation, stream, context, graph, device, pad;
} RowGraph;

typedef struct RowOverhead { /* `thread` is 0 where CUPTI names no thread */
    uint64_t start, end;
    uint32_t kind, thread;
} RowOverhead;

typedef struct RowExternal {
    uint64_t id;
    uint32_t correlation, kind;
} RowExternal;

typedef struct RowJit {
    uint64_t start, end;
    uint32_t correlation, device, entry, operation;
} RowJit;

typedef struct RowDevice {
    uint64_t memory_bytes, memory_bytes_s, clock_hz;
    uint32_t device, name, sms, warp, warps_per_sm, blocks_per_sm, registers_per_sm, shared_per_sm;
    uint32_t major, minor, l2_bytes, pad;
    uint8_t uuid[16]; /* zeros: not told */
} RowDevice;

/* From this call on, and until its next one, a thread is in a step (`state` 1), in none (0), or in one
 * that is not known (2); at a 3 that many threads, whichever, are in one. `within`: it was in one
 * before. `sequence` counts the markers of a thread from 1, modulo 65536. */
typedef struct RowMarker {
    uint64_t time, step;
    uint32_t correlation, thread;
    uint16_t sequence;
    uint8_t state, within, pad[4];
} RowMarker;

/* A collective or transfer that NCCL handed to the device: when that began and ended on the host, and
 * when the launch of its plan's kernel began (0 not told). The numbers from `ranks` on are -1 where
 * they are not known; `seq` counts the calls of one function on a communicator. */
typedef struct RowNccl {
    uint64_t start, end, launch, comm, count;
    int64_t seq;
    uint32_t plan, task, comm_name, func, datatype, asked_type, algo, proto;
    int32_t ranks, rank, root, peer, channels;
    uint32_t thread;
    uint8_t kind, capture, pad[6];
} RowNccl;

typedef struct RowNcclChannel { /* ns of the GPU's global timer; 0: told by another row */
    uint64_t begin, end;
    uint32_t task, channel;
} RowNcclChannel;

_Static_assert(sizeof(RowNccl) == 112, "row layout");
_Static_assert(sizeof(RowNcclChannel) == 24, "row layout");
_Static_assert(sizeof(RowKernel) == 88, "row layout");
_Static_assert(sizeof(RowCopy) == 64, "row layout");
_Static_assert(sizeof(RowApi) == 32, "row layout");
_Static_assert(sizeof(RowSync) == 32, "row layout");
_Static_assert(sizeof(RowGraph) == 40, "row layout");
_Static_assert(sizeof(RowOverhead) == 24, "row layout");
_Static_assert(sizeof(RowExternal) == 16, "row layout");
_Static_assert(sizeof(RowJit) == 32, "row layout");
_Static_assert(sizeof(RowDevice) == 88, "row layout");
_Static_assert(sizeof(RowMarker) == 32, "row layout");

#endif
