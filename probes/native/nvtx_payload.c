#include "nvtx_payload.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FIELDS = 64, MOST_PAYLOADS = 16 };

typedef struct Field {
    const char *name;
    uint64_t offset;
    uint8_t bytes;
    bool is_signed, is_float;
} Field;

typedef struct Schema {
    const void *domain;
    uint64_t id;
    const char *name;
    int count;
    struct Schema *next;
    Field fields[];
} Schema;

typedef struct Enum {
    const void *domain;
    uint64_t id;
    uint8_t bytes;
    struct Enum *next;
} Enum;

static _Atomic(Schema *) schemas; /* only ever grows, at its head; so the next */
static _Atomic(Enum *) enums;
static atomic_uint_fast64_t next_id = NVTX_SCHEMA_DYNAMIC;

/* Sizes of the entry types of nvToolsExtPayload.h that hold one number: bytes, negative if signed,
 * and whether it is a float. Types without a place here are passed over. */
static bool describe(uint64_t type, Field *field)
{
    static const int8_t SIZES[] = {
        0,  -1, 1,  -(int)sizeof(short), sizeof(short), -(int)sizeof(int), sizeof(int),
        -(int)sizeof(long), sizeof(long), -8, 8, -1, 1, -2, 2, -4, 4, -8, 8, 4, 8, 0,
        sizeof(size_t),
    };
    enum { TYPE_FLOAT = 19, TYPE_DOUBLE = 20, TYPE_FLOAT32 = 43, TYPE_FLOAT64 = 44 };
    int size = type < sizeof SIZES ? SIZES[type] : 0;
    if (type == TYPE_FLOAT32 || type == TYPE_FLOAT64)
        size = type == TYPE_FLOAT32 ? 4 : 8;
    field->is_float = type == TYPE_FLOAT || type == TYPE_DOUBLE || type >= TYPE_FLOAT32;
    field->is_signed = size < 0;
    field->bytes = (uint8_t)abs(size);
    return size != 0;
}

/* The same for a field whose type is an enumeration. */
static bool describe_enum(const void *domain, uint64_t type, Field *field)
{
    const Enum *found = atomic_load(&enums);
    while (found && (found->id != type || found->domain != domain))
        found = found->next;
    field->bytes = found ? found->bytes : 0;
    field->is_signed = found && found->bytes == sizeof(int);
    field->is_float = false;
    return found != NULL;
}

uint64_t nvtx_payload_enum(const void *domain, const NvtxEnumAttributes *attributes)
{
    Enum *self = attributes && attributes->bytes && attributes->bytes <= 8 ? calloc(1, sizeof *self) : NULL;
    if (!self)
        return 0;
    bool has_id = (attributes->fields & NVTX_ENUM_HAS_ID) && attributes->id;
    self->domain = domain;
    self->bytes = (uint8_t)attributes->bytes;
    self->id = has_id ? attributes->id : atomic_fetch_add(&next_id, 1);
    Enum *head = atomic_load(&enums);
    do {
        self->next = head;
    } while (!atomic_compare_exchange_weak(&enums, &head, self));
    return self->id;
}

static char *copied(const char *text)
{
    return strdup(text ? text : "payload");
}

static void add_fields(Schema *schema, const NvtxSchemaAttributes *from)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < from->entries_count && schema->count < MOST_FIELDS; i++) {
        const NvtxSchemaEntry *entry = &from->entries[i];
        Field *field = &schema->fields[schema->count];
        bool plain = describe(entry->type, field) || describe_enum(schema->domain, entry->type, field);
        if (entry->flags || !plain)
            continue; /* arrays, pointers and texts; a field after one of them has its offset */
        /* Offset 0 in a later field means that the fields follow each other, aligned. */
        offset = (offset + field->bytes - 1) / field->bytes * field->bytes;
        if (entry->offset || i == 0)
            offset = entry->offset;
        field->offset = offset;
        field->name = copied(entry->name);
        offset += field->bytes;
        schema->count++;
    }
}

uint64_t nvtx_payload_register(const void *domain, const NvtxSchemaAttributes *attributes)
{
    if (!attributes || !attributes->entries)
        return 0;
    Schema *schema = calloc(1, sizeof *schema + MOST_FIELDS * sizeof *schema->fields);
    if (!schema)
        return 0;
    bool has_id = (attributes->fields & NVTX_SCHEMA_HAS_ID) && attributes->id;
    schema->domain = domain;
    schema->name = copied(attributes->name);
    schema->id = has_id ? attributes->id : atomic_fetch_add(&next_id, 1);
    add_fields(schema, attributes);
    Schema *head = atomic_load(&schemas);
    do {
        schema->next = head;
    } while (!atomic_compare_exchange_weak(&schemas, &head, schema));
    return schema->id;
}

static const Schema *find(const void *domain, uint64_t id)
{
    const Schema *schema = atomic_load(&schemas);
    while (schema && (schema->id != id || schema->domain != domain))
        schema = schema->next;
    return schema;
}

static int64_t integer(const void *at, const Field *field)
{
    uint64_t value = 0;
    memcpy(&value, at, field->bytes); /* little endian, as every machine with CUDA */
    unsigned unused = 64u - field->bytes * 8u;
    return field->is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

static double real(const void *at, const Field *field)
{
    double wide;
    float narrow;
    memcpy(&wide, at, field->bytes == 8 ? 8 : 0);
    memcpy(&narrow, at, field->bytes == 4 ? 4 : 0);
    return field->bytes == 8 ? wide : (double)narrow;
}

static void add(NvtxNumbers *into, NvtxNumber number)
{
    if (into->count < NVTX_MOST_NUMBERS)
        into->at[into->count++] = number;
    if (!number.is_float && into->bytes < 0 && strncmp(number.name, "Message size", 12) == 0)
        into->bytes = number.integer;
}

static void add_payload(NvtxNumbers *into, const Schema *schema, const NvtxPayload *payload)
{
    for (int i = 0; i < schema->count; i++) {
        const Field *field = &schema->fields[i];
        const uint8_t *at = (const uint8_t *)payload->data + field->offset;
        NvtxNumber number = {.name = field->name, .is_float = field->is_float};
        if (field->offset + field->bytes > payload->bytes)
            continue;
        if (field->is_float)
            number.real = real(at, field);
        else
            number.integer = integer(at, field);
        add(into, number);
    }
}

void nvtx_payload_list(NvtxNumbers *into, const void *domain, const NvtxPayload *list, size_t count)
{
    into->count = 0;
    into->bytes = -1;
    into->title = NULL;
    for (size_t i = 0; list && i < count && i < MOST_PAYLOADS; i++) {
        const Schema *schema = list[i].data ? find(domain, list[i].schema) : NULL;
        if (!schema)
            continue;
        into->title = into->title ? into->title : schema->name;
        add_payload(into, schema, &list[i]);
    }
}

void nvtx_payload_event(NvtxNumbers *into, const void *domain, const NvtxEvent *event)
{
    NvtxNumber number = {.name = "payload"};
    bool extended = event->payload_type == NVTX_PAYLOAD_EXTENDED && event->payload_count > 0;
    nvtx_payload_list(into, domain, extended ? event->payload.pointer : NULL,
                      extended ? (size_t)event->payload_count : 0);
    number.is_float = event->payload_type == NVTX_PAYLOAD_DOUBLE ||
                      event->payload_type == NVTX_PAYLOAD_FLOAT;
    switch (event->payload_type) {
    case NVTX_PAYLOAD_U64:
    case NVTX_PAYLOAD_I64: number.integer = event->payload.i64; break;
    case NVTX_PAYLOAD_U32: number.integer = event->payload.u32; break;
    case NVTX_PAYLOAD_I32: number.integer = event->payload.i32; break;
    case NVTX_PAYLOAD_DOUBLE: number.real = event->payload.f64; break;
    case NVTX_PAYLOAD_FLOAT: number.real = (double)event->payload.f32; break;
    default: return;
    }
    add(into, number);
}
