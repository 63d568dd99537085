#include "nvtx_ranges.h"

/* An id is the place in the table and the number of times it was used, so that a stale id ends
 * nothing. The number is odd while the place holds a range. */
enum { PLACES = 8192, PLACE_BITS = 13 };

typedef struct Place {
    atomic_uint_fast64_t uses;
    OpenRange range;
} Place;

static Place places[PLACES];
static atomic_uint hint;

uint64_t nvtx_ranges_add(OpenRange range)
{
    unsigned first = atomic_fetch_add_explicit(&hint, 1, memory_order_relaxed);
    for (unsigned i = 0; i < PLACES; i++) {
        unsigned at = (first + i) % PLACES;
        uint_fast64_t uses = atomic_load(&places[at].uses);
        /* Odd is taken; the range is stored before the id is known to anyone. */
        if (uses % 2 == 0 && atomic_compare_exchange_strong(&places[at].uses, &uses, uses + 1)) {
            places[at].range = range;
            return (uint64_t)(uses + 1) << PLACE_BITS | at;
        }
    }
    return 0;
}

bool nvtx_ranges_take(uint64_t id, OpenRange *range)
{
    Place *place = &places[id % PLACES];
    uint_fast64_t uses = id >> PLACE_BITS;
    if (uses % 2 == 0 || atomic_load(&place->uses) != uses)
        return false;
    *range = place->range;
    return atomic_compare_exchange_strong(&place->uses, &uses, uses + 1);
}

void nvtx_ranges_forget(void)
{
    for (unsigned at = 0; at < PLACES; at++) {
        uint_fast64_t uses = atomic_load(&places[at].uses);
        if (uses % 2)
            atomic_store(&places[at].uses, uses + 1);
    }
}
