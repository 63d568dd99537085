/* What NCCL's profiler plugin interface hands over, in its versions 1 to 6 (NCCL 2.23 to 2.30),
 * declared here so that the build needs no NCCL: the members that are read, each at the offset that
 * the interface fixes. Later versions only ever add members behind them. */
#ifndef RCA_NCCL_ABI_H
#define RCA_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NCCL_SUCCESS = 0 };

/* Kinds of events; bits of the mask that a plugin answers `init` with. */
enum {
    NCCL_GROUP = 1 << 0,
    NCCL_COLL = 1 << 1,
    NCCL_P2P = 1 << 2,
    NCCL_KERNEL_CHANNEL = 1 << 6,
    NCCL_COLL_API = 1 << 9,
    NCCL_P2P_API = 1 << 10,
    NCCL_KERNEL_LAUNCH = 1 << 11,
    NCCL_COPY_COLL = 1 << 12,
};

/* From version 4 on. The type has 8 bits in version 4 and 64 from version 5 on. */
typedef struct NcclEvent {
    union {
        uint8_t narrow;
        uint64_t wide;
    } type;
    void *parent;
    int rank;
    union {
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool captured;
        } coll_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool captured;
        } p2p_api;
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *receive;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } p2p;
        struct {
            uint8_t channel;
            uint64_t timer; /* ns of the GPU's global timer */
        } kernel;
        struct { /* the same up to `datatype` as a collective by a kernel */
            uint64_t seq;
            const char *func;
            const void *send;
            void *receive;
            size_t count;
            int root;
            const char *datatype;
        } copies;
    };
} NcclEvent;

/* Versions 2 and 3, whose events name their communicator themselves. */
typedef struct NcclEvent3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t comm, seq;
            const char *func;
            const void *send;
            void *receive;
            size_t count;
            int root;
            const char *datatype;
            union {
                struct {
                    size_t traffic;
                    uint8_t channels, warps;
                    const char *algo, *proto;
                } v2;
                struct {
                    uint8_t channels, warps;
                    const char *algo, *proto;
                } v3;
            };
        } coll;
        struct {
            const char *name;
            uint64_t comm;
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } p2p;
    };
} NcclEvent3;

/* Version 1, which has numbers where later ones have texts. */
typedef struct NcclEvent1 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t comm, seq;
            uint8_t func;
            const void *send;
            void *receive;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t op;
            size_t traffic;
            uint8_t channels, warps, algo, proto;
        } coll;
        struct {
            const char *name;
            uint64_t comm;
            uint8_t func;
            void *buffer;
            uint8_t datatype;
            size_t count;
            int peer;
        } p2p;
    };
} NcclEvent1;

/* What `recordEventState` brings, as far as it is read: the end of a channel's work. */
typedef union NcclStateArguments {
    uint64_t timer;
} NcclStateArguments;

typedef void (*NcclLog)(int, unsigned long, const char *, int, const char *, ...);

/* The tables of functions that NCCL looks up by name, `ncclProfiler_v1` and so on. */
typedef struct NcclProfiler1 { /* versions 1 to 3; the events differ */
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, void *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, NcclStateArguments *arguments);
    int (*finalize)(void *context);
} NcclProfiler1;

typedef struct NcclProfiler4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm, int nodes, int ranks,
                int rank, NcclLog log);
    int (*start)(void *context, void **handle, NcclEvent *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, NcclStateArguments *arguments);
    int (*finalize)(void *context);
} NcclProfiler4;

typedef struct NcclProfiler5 { /* and 6 */
    const char *name;
    int (*init)(void **context, uint64_t comm, int *mask, const char *comm_name, int nodes, int ranks,
                int rank, NcclLog log);
    int (*start)(void *context, void **handle, NcclEvent *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, NcclStateArguments *arguments);
    int (*finalize)(void *context);
} NcclProfiler5;

_Static_assert(offsetof(NcclEvent, coll) == 24, "event layout");
_Static_assert(offsetof(NcclEvent, coll.datatype) == 24 + 48, "collective layout");
_Static_assert(offsetof(NcclEvent, coll.algo) == 24 + 64, "collective layout");
_Static_assert(offsetof(NcclEvent, p2p.peer) == 24 + 32, "point-to-point layout");
_Static_assert(offsetof(NcclEvent, coll_api.captured) == 24 + 40, "API layout");
_Static_assert(offsetof(NcclEvent, p2p_api.captured) == 24 + 32, "API layout");
_Static_assert(offsetof(NcclEvent, kernel.timer) == 24 + 8, "channel layout");
_Static_assert(offsetof(NcclEvent3, coll.v3.algo) == 24 + 80, "collective layout");
_Static_assert(offsetof(NcclEvent3, coll.v2.algo) == 24 + 88, "collective layout");
_Static_assert(offsetof(NcclEvent1, coll.datatype) == 24 + 60, "collective layout");
_Static_assert(offsetof(NcclEvent1, coll.channels) == 24 + 80, "collective layout");

#endif
