/* Activity buffers between CUPTI's callbacks, which run in any thread inside any CUDA call, and the
 * one thread that empties them. The callbacks take no lock, make no CUPTI call and never wait. */
#ifndef RCA_BUFFERS_H
#define RCA_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets the size of a buffer in bytes; before the first request. */
void buffers_configure(size_t bytes);

/* Keeps a few zeroed, touched buffers ready, so that requests need no system call. */
void buffers_refill(void);

/* What CUPTI calls for an empty buffer and with a full one. */
void buffers_request(uint8_t **buffer, size_t *bytes, size_t *max_records);
void buffers_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);

/* A completed buffer, in the order of completion. */
typedef struct FullBuffer {
    uint8_t *data;
    size_t valid;
    int slot;
} FullBuffer;

/* Calls `consume` for every completed buffer and zeroes and recycles it. One thread at a time. */
void buffers_drain(void (*consume)(void *, const FullBuffer *), void *context);

/* Whether enough is waiting that the emptying thread should be woken. */
bool buffers_pressing(void);

/* Buffers that came back and were not ours, bytes of records thrown away because nobody emptied the
 * buffers, and buffers of ours that are still with CUPTI. */
uint64_t buffers_foreign(void);
uint64_t buffers_overrun(void);
int buffers_outstanding(void);

/* Forgets buffers that another client of CUPTI received in our place. */
void buffers_forget_outstanding(void);

#endif
