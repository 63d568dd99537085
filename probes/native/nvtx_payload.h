/* The numbers that NVTX events carry: plain ones, and fields of structures that programs describe
 * by schemas, as NCCL does for the message size and the communicator of each call. */
#ifndef RCA_NVTX_PAYLOAD_H
#define RCA_NVTX_PAYLOAD_H

#include <stdbool.h>

#include "nvtx_abi.h"

enum { NVTX_MOST_NUMBERS = 8 };

typedef struct NvtxNumber {
    const char *name;
    bool is_float;
    union {
        int64_t integer;
        double real;
    };
} NvtxNumber;

typedef struct NvtxNumbers {
    int count;
    NvtxNumber at[NVTX_MOST_NUMBERS];
    int64_t bytes; /* the message size among them; -1 none */
    const char *title; /* of the first schema; NULL none */
} NvtxNumbers;

/* Remembers a schema of a domain; its id. Schemas live as long as the process. */
uint64_t nvtx_payload_register(const void *domain, const NvtxSchemaAttributes *attributes);

/* Remembers an enumeration that fields of schemas may have as their type; its id. */
uint64_t nvtx_payload_enum(const void *domain, const NvtxEnumAttributes *attributes);

/* Reads the numbers of an event, and of a list of payloads. */
void nvtx_payload_event(NvtxNumbers *into, const void *domain, const NvtxEvent *event);
void nvtx_payload_list(NvtxNumbers *into, const void *domain, const NvtxPayload *list, size_t count);

#endif
