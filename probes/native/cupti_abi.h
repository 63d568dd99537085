/* What the collector uses of CUPTI: values, record prefixes and prototypes, declared here so that
 * the build needs no CUDA toolkit. Taken from cupti_activity.h and cupti_callbacks.h of CUDA 12.0
 * to 13.5; kernel, copy, memset and API records only ever grew at their end, so the prefixes hold
 * for all of them, and records are walked by cuptiActivityGetNextRecord alone. */
#ifndef RCA_CUPTI_ABI_H
#define RCA_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CuptiResult;
typedef void *CuptiSubscriber;

enum { CUPTI_OK = 0, CUPTI_MULTIPLE_SUBSCRIBERS = 39 };

enum {
    CUPTI_KIND_MEMCPY = 1,
    CUPTI_KIND_MEMSET = 2,
    CUPTI_KIND_DRIVER = 4,
    CUPTI_KIND_RUNTIME = 5,
    CUPTI_KIND_DEVICE = 8,
    CUPTI_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_KIND_OVERHEAD = 17,
    CUPTI_KIND_MEMCPY2 = 22,
    CUPTI_KIND_SYNCHRONIZATION = 38,
    CUPTI_KIND_EXTERNAL_CORRELATION = 39,
    CUPTI_KIND_GRAPH_TRACE = 51,
    CUPTI_KIND_JIT = 52,
};

enum { CUPTI_DOMAIN_DRIVER = 1, CUPTI_DOMAIN_RUNTIME = 2 };
enum { CUPTI_THREAD_ID_SYSTEM = 1 };
enum { CUPTI_ATTR_ZEROED_BUFFER = 5 };
enum { CUPTI_FLUSH_COMPLETED = 0, CUPTI_FLUSH_FORCED = 1 };
/* torch.profiler pushes CUSTOM0 and CUSTOM1. */
enum { CUPTI_EXTERNAL_CUSTOM2 = 5 };

#define CUPTI_RECORD __attribute__((packed, aligned(8)))

typedef struct CUPTI_RECORD CuptiRecord {
    uint32_t kind;
} CuptiRecord;

/* CUpti_ActivityKernel9 (CUDA 12.0) up to its last member that is read here. */
typedef struct CUPTI_RECORD CuptiKernel {
    uint32_t kind;
    uint8_t cache_config, shared_config;
    uint16_t registers;
    uint32_t cache_requested, cache_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], shared_static, shared_dynamic;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
    void *reserved0;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout_requested, carveout, padding;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit, graph;
    void *access_policy;
    uint32_t channel, channel_type, cluster[3];
} CuptiKernel;

typedef struct CUPTI_RECORD CuptiMemcpy {
    uint32_t kind;
    uint8_t copy, src, dst, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, pad;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
} CuptiMemcpy;

typedef struct CUPTI_RECORD CuptiPeerCopy {
    uint32_t kind;
    uint8_t copy, src, dst, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, src_device, src_context, dst_device, dst_context, correlation;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
} CuptiPeerCopy;

typedef struct CUPTI_RECORD CuptiMemset {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t pad;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
} CuptiMemset;

typedef struct CUPTI_RECORD CuptiApi {
    uint32_t kind, cbid;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
} CuptiApi;

typedef struct CUPTI_RECORD CuptiSync {
    uint32_t kind, type;
    uint64_t start, end;
    uint32_t correlation, context, stream, event;
} CuptiSync;

/* The correlation id exists from CUDA 12.4 on and is not read. */
typedef struct CUPTI_RECORD CuptiOverhead {
    uint32_t kind, overhead, object, process, thread, unused;
    uint64_t start, end;
} CuptiOverhead;

typedef struct CUPTI_RECORD CuptiGraph {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
} CuptiGraph;

typedef struct CUPTI_RECORD CuptiExternal {
    uint32_t kind, external_kind;
    uint64_t id;
    uint32_t correlation;
} CuptiExternal;

/* CUpti_ActivityJit (12.0) and Jit2 (12.4) share everything up to `correlation`. */
typedef struct CUPTI_RECORD CuptiJit {
    uint32_t kind, entry, operation, device;
    uint64_t start, end;
    uint32_t correlation;
} CuptiJit;

typedef struct CUPTI_RECORD CuptiDevice {
    uint32_t kind, flags;
    uint64_t memory_bandwidth, memory_bytes; /* kB/s, bytes */
    uint32_t constant_bytes, l2_bytes, warp, core_clock, copy_engines, sms, max_ipc;
    uint32_t warps_per_sm, blocks_per_sm, shared_per_sm, registers_per_sm;
    uint32_t registers_per_block, shared_per_block, threads_per_block, max_block[3], max_grid[3];
    uint32_t major, minor, id, ecc;
    char uuid[16];
    const char *name;
} CuptiDevice;

_Static_assert(offsetof(CuptiKernel, registers) == 6, "kernel prefix");
_Static_assert(offsetof(CuptiKernel, correlation) == 92, "kernel prefix");
_Static_assert(offsetof(CuptiKernel, name) == 104, "kernel prefix");
_Static_assert(offsetof(CuptiKernel, queued) == 120, "kernel prefix");
_Static_assert(offsetof(CuptiKernel, graph_node) == 144, "kernel prefix");
_Static_assert(offsetof(CuptiKernel, cluster) == 176, "kernel prefix");
_Static_assert(offsetof(CuptiMemcpy, graph_node) == 64, "copy prefix");
_Static_assert(offsetof(CuptiPeerCopy, graph_node) == 72, "peer copy prefix");
_Static_assert(offsetof(CuptiMemset, graph_node) == 64, "memset prefix");
_Static_assert(offsetof(CuptiDevice, name) == 136, "device prefix");

typedef void (*CuptiCallback)(void *, uint32_t, uint32_t, const void *);
typedef void (*CuptiBufferRequest)(uint8_t **, size_t *, size_t *);
typedef void (*CuptiBufferComplete)(void *, uint32_t, uint8_t *, size_t, size_t);

typedef struct CuptiSubscriberParams {
    size_t size;
    const char *name;
    char *old_name;
    size_t old_name_bytes;
} CuptiSubscriberParams;

#endif
