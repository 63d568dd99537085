/* The functions of libcupti, found at run time in whatever release the process uses. */
#ifndef RCA_CUPTI_H
#define RCA_CUPTI_H

#include <stdbool.h>

#include "cupti_abi.h"

/* Functions that every release from CUDA 12.0 on has: X(name, arguments). */
#define CUPTI_REQUIRED(X)                                                                          \
    X(GetVersion, (uint32_t *))                                                                    \
    X(ActivityRegisterCallbacks, (CuptiBufferRequest, CuptiBufferComplete))                        \
    X(ActivityRegisterTimestampCallback, (uint64_t(*)(void)))                                      \
    X(ActivityEnable, (uint32_t))                                                                  \
    X(ActivityDisable, (uint32_t))                                                                 \
    X(ActivityFlushAll, (uint32_t))                                                                \
    X(ActivityGetNextRecord, (uint8_t *, size_t, CuptiRecord **))                                  \
    X(ActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))                                  \
    X(ActivitySetAttribute, (uint32_t, size_t *, void *))                                          \
    X(GetTimestamp, (uint64_t *))                                                                  \
    X(GetCallbackName, (uint32_t, uint32_t, const char **))

/* Functions of some releases only; NULL where they are missing. */
#define CUPTI_OPTIONAL(X)                                                                          \
    X(Subscribe, (CuptiSubscriber *, CuptiCallback, void *))                                       \
    X(Subscribe_v2, (CuptiSubscriber *, CuptiCallback, void *, CuptiSubscriberParams *))           \
    X(Unsubscribe, (CuptiSubscriber))                                                              \
    X(SetThreadIdType, (uint32_t))                                                                 \
    X(ActivityEnableRuntimeApi, (uint32_t, uint8_t))                                               \
    X(ActivityEnableDriverApi, (uint32_t, uint8_t))                                                \
    X(ActivityEnableLatencyTimestamps, (uint8_t))                                                  \
    X(ActivityPushExternalCorrelationId, (uint32_t, uint64_t))                                     \
    X(ActivityPopExternalCorrelationId, (uint32_t, uint64_t *))

typedef struct Cupti {
#define X(name, arguments) CuptiResult(*name) arguments;
    CUPTI_REQUIRED(X) CUPTI_OPTIONAL(X)
#undef X
    char path[1024]; /* of the file that was found */
} Cupti;

/* Finds libcupti: the one of RCA_LLM_CUPTI, the one already in the process, one beside a CUDA
 * library of the process, else by its plain name. False where there is none, or it lacks functions. */
bool cupti_load(Cupti *self);

#endif
