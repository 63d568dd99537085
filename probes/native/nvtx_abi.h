/* What the handler uses of NVTX 3, declared here so that the build needs no NVTX headers. From
 * nvtxTypes.h, nvtxExtTypes.h, nvToolsExt.h and nvToolsExtPayload.h; the layouts are fixed by the
 * interface between NVTX, which is compiled into each program, and its tools. */
#ifndef RCA_NVTX_ABI_H
#define RCA_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

typedef const void *(*NvtxGetExportTable)(uint32_t);
typedef void (*NvtxFunction)(void);
typedef NvtxFunction **NvtxFunctionTable; /* an array of places of function pointers */

typedef struct NvtxCallbacks {
    size_t struct_size;
    int (*GetModuleFunctionTable)(uint32_t module, NvtxFunctionTable *table, unsigned *size);
} NvtxCallbacks;

enum { NVTX_TABLE_CALLBACKS = 1 };
enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

enum {
    NVTX_MARK_EX = 1, NVTX_MARK_A, NVTX_MARK_W,
    NVTX_START_EX, NVTX_START_A, NVTX_START_W, NVTX_END,
    NVTX_PUSH_EX, NVTX_PUSH_A, NVTX_PUSH_W, NVTX_POP,
    NVTX_NAME_THREAD_A = 14,
};

enum {
    NVTX_DOMAIN_MARK_EX = 1, NVTX_DOMAIN_START_EX, NVTX_DOMAIN_END, NVTX_DOMAIN_PUSH_EX,
    NVTX_DOMAIN_POP, NVTX_DOMAIN_REGISTER_A = 10, NVTX_DOMAIN_REGISTER_W, NVTX_DOMAIN_CREATE_A,
    NVTX_DOMAIN_CREATE_W,
};

enum { NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_UNICODE = 2, NVTX_MESSAGE_REGISTERED = 3 };

enum {
    NVTX_PAYLOAD_U64 = 1, NVTX_PAYLOAD_I64, NVTX_PAYLOAD_DOUBLE,
    NVTX_PAYLOAD_U32, NVTX_PAYLOAD_I32, NVTX_PAYLOAD_FLOAT,
};
#define NVTX_PAYLOAD_EXTENDED ((int32_t)0xDFBD0009)

typedef struct NvtxEvent {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, payload_count;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        uint32_t u32;
        int32_t i32;
        float f32;
        const void *pointer;
    } payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered;
    } message;
} NvtxEvent;

_Static_assert(sizeof(NvtxEvent) == 48, "event attributes");

/* The payload extension. */
enum { NVTX_EXTENSION_PAYLOAD = 2 };
enum {
    NVTX_EXT_SCHEMA_REGISTER = 0,
    NVTX_EXT_ENUM_REGISTER = 1,
    NVTX_EXT_MARK = 2,
    NVTX_EXT_PUSH = 3,
    NVTX_EXT_POP = 4,
    NVTX_EXT_START = 5,
    NVTX_EXT_END = 6,
    NVTX_EXT_DOMAIN_ENABLED = 7,
};

typedef struct NvtxExtSegment {
    size_t id, slots;
    intptr_t *functions;
} NvtxExtSegment;

typedef struct NvtxExtModule {
    uint16_t nvtx_version, struct_size, module, compatibility;
    size_t segments_count;
    NvtxExtSegment *segments;
} NvtxExtModule;

typedef struct NvtxPayload {
    uint64_t schema;
    size_t bytes;
    const void *data;
} NvtxPayload;

typedef struct NvtxSchemaEntry {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t detail, offset;
    const void *semantics, *reserved;
} NvtxSchemaEntry;

typedef struct NvtxSchemaAttributes {
    uint64_t fields;
    const char *name;
    uint64_t type, flags;
    const NvtxSchemaEntry *entries;
    size_t entries_count, static_bytes, alignment;
    uint64_t id;
    void *extension;
} NvtxSchemaAttributes;

typedef struct NvtxEnumAttributes {
    uint64_t fields;
    const char *name;
    const void *entries;
    size_t entries_count, bytes;
    uint64_t id;
    void *extension;
} NvtxEnumAttributes;

enum { NVTX_ENUM_HAS_ID = 1 << 5 };
enum { NVTX_SCHEMA_HAS_ID = 1 << 8 };
/* Ids that a tool gives lie above those that programs choose themselves. */
#define NVTX_SCHEMA_DYNAMIC ((uint64_t)1 << 32)

#endif
