#include "buffers.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* With per-thread buffers CUPTI holds one or two for each thread that calls CUDA. */
enum { SLOTS = 4096, READY = 4, PRESSING = 4, MOST_FULL = 128 };
enum State { EMPTY, FREE, LENT, FULL, LOST };

typedef struct Slot {
    _Atomic(uint8_t *) data;
    atomic_int state;
    size_t valid;
    int next; /* the slot completed before this one; -1 none */
} Slot;

static Slot slots[SLOTS];
static atomic_int used; /* slots that ever held a buffer lie below */
static atomic_int full = -1, full_count;
static atomic_uint_fast64_t foreign, overrun;
static size_t buffer_bytes = 2u << 20;

void buffers_configure(size_t bytes)
{
    buffer_bytes = bytes;
}

static uint8_t *map_buffer(int populate)
{
    void *data = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

/* Takes a new slot for a buffer; -1 where all are taken. */
static int add_slot(uint8_t *data, enum State state)
{
    int at = atomic_fetch_add(&used, 1);
    if (at >= SLOTS) {
        atomic_fetch_sub(&used, 1);
        return -1;
    }
    atomic_store(&slots[at].data, data);
    atomic_store(&slots[at].state, state);
    return at;
}

static int used_slots(void)
{
    int count = atomic_load(&used);
    return count < SLOTS ? count : SLOTS;
}

static int take(enum State from, enum State to)
{
    int count = used_slots();
    for (int i = 0; i < count; i++) {
        int expected = from;
        if (atomic_compare_exchange_strong(&slots[i].state, &expected, to))
            return i;
    }
    return -1;
}

static int count_state(enum State state)
{
    int found = 0, count = used_slots();
    for (int i = 0; i < count; i++)
        found += atomic_load(&slots[i].state) == (int)state;
    return found;
}

void buffers_refill(void)
{
    for (int missing = READY - count_state(FREE); missing > 0; missing--) {
        uint8_t *data = map_buffer(MAP_POPULATE);
        if (data && add_slot(data, FREE) < 0)
            munmap(data, buffer_bytes);
    }
}

/* CUPTI before 12.9 may crash on a NULL buffer, so one is mapped where none is ready. */
void buffers_request(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    int at = take(FREE, LENT);
    *max_records = 0;
    *bytes = buffer_bytes;
    if (at >= 0) {
        *buffer = atomic_load(&slots[at].data);
        return;
    }
    *buffer = map_buffer(0);
    if (!*buffer || add_slot(*buffer, LENT) < 0)
        *bytes = *buffer ? buffer_bytes : 0;
}

static int slot_of(const uint8_t *buffer)
{
    int count = used_slots();
    for (int i = 0; i < count; i++)
        if (atomic_load(&slots[i].data) == buffer)
            return i;
    return -1;
}

void buffers_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    (void)context, (void)stream, (void)bytes;
    int at = slot_of(buffer);
    if (at < 0) {
        atomic_fetch_add(&foreign, 1);
        return;
    }
    if (atomic_load(&full_count) >= MOST_FULL) { /* the emptying thread gets no processor */
        atomic_fetch_add(&overrun, valid);
        memset(buffer, 0, valid);
        atomic_store(&slots[at].state, FREE);
        return;
    }
    slots[at].valid = valid;
    atomic_store(&slots[at].state, FULL);
    int head = atomic_load(&full);
    do {
        slots[at].next = head;
    } while (!atomic_compare_exchange_weak(&full, &head, at));
    atomic_fetch_add(&full_count, 1);
}

/* Takes the whole list, newest first, and turns it round. */
static int take_full(void)
{
    int at = atomic_exchange(&full, -1), reversed = -1;
    while (at >= 0) {
        int next = slots[at].next;
        slots[at].next = reversed;
        reversed = at;
        at = next;
    }
    return reversed;
}

void buffers_drain(void (*consume)(void *, const FullBuffer *), void *context)
{
    for (int at = take_full(); at >= 0;) {
        int next = slots[at].next;
        FullBuffer buffer = {atomic_load(&slots[at].data), slots[at].valid, at};
        if (buffer.valid)
            consume(context, &buffer);
        memset(buffer.data, 0, buffer.valid);
        atomic_fetch_sub(&full_count, 1);
        atomic_store(&slots[at].state, FREE);
        at = next;
    }
}

bool buffers_pressing(void)
{
    return atomic_load(&full_count) >= PRESSING;
}

uint64_t buffers_foreign(void)
{
    return atomic_load(&foreign);
}

uint64_t buffers_overrun(void)
{
    return atomic_load(&overrun);
}

int buffers_outstanding(void)
{
    return count_state(LENT);
}

void buffers_forget_outstanding(void)
{
    while (take(LENT, LOST) >= 0)
        continue;
}
