/* The NVTX handler: ranges, marks, domains, registered strings and the numbers that they carry. */
#include "nvtx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "nvtx_abi.h"
#include "nvtx_payload.h"
#include "nvtx_ranges.h"
#include "nvtx_thread.h"
#include "options.h"

enum { LONGEST_TEXT = 4096, NO_RANGE = -1 };

/* Our own Python spans show in other tools through this domain; here they have cells already. */
static const char OWN_DOMAIN[] = "rca-llm";

/* What a handle of a domain or a registered string points to; it lives as long as the process. */
typedef struct Text {
    struct Text *next;
    char text[];
} Text;

static Options options;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Text *domains;

static const char *text_of(const void *handle)
{
    return handle ? ((const Text *)handle)->text : NULL;
}

/* UTF-8 of a wide string, into `into`; what cannot be written becomes a question mark. */
static const char *narrow(const wchar_t *wide, char *into, size_t room)
{
    size_t at = 0;
    for (; wide && *wide && at + 4 < room; wide++) {
        uint32_t c = (uint32_t)*wide > 0x10FFFF ? '?' : (uint32_t)*wide;
        if (c < 0x80)
            into[at++] = (char)c;
        else if (c < 0x800)
            into[at++] = (char)(0xC0 | c >> 6);
        else if (c < 0x10000)
            into[at++] = (char)(0xE0 | c >> 12);
        else
            into[at++] = (char)(0xF0 | c >> 18);
        if (c >= 0x10000)
            into[at++] = (char)(0x80 | (c >> 12 & 0x3F));
        if (c >= 0x800)
            into[at++] = (char)(0x80 | (c >> 6 & 0x3F));
        if (c >= 0x80)
            into[at++] = (char)(0x80 | (c & 0x3F));
    }
    into[at] = 0;
    return into;
}

static Text *new_text(const char *text)
{
    size_t bytes = strnlen(text ? text : "", LONGEST_TEXT);
    Text *self = malloc(sizeof *self + bytes + 1);
    if (!self)
        return NULL;
    self->next = NULL;
    memcpy(self->text, text ? text : "", bytes);
    self->text[bytes] = 0;
    return self;
}

/* The text of an event; `room` holds it where it had to be converted. */
static const char *message(const NvtxEvent *event, char *room)
{
    if (event->message_type == NVTX_MESSAGE_ASCII)
        return event->message.ascii;
    if (event->message_type == NVTX_MESSAGE_REGISTERED)
        return text_of(event->message.registered);
    if (event->message_type == NVTX_MESSAGE_UNICODE)
        return narrow(event->message.unicode, room, LONGEST_TEXT);
    return NULL;
}

static void put_numbers(Cell *at, const NvtxNumbers *numbers, const uint32_t *ids)
{
    for (int i = 0; i < numbers->count; i++) {
        Cell cell = {.e = ids[i]};
        if (numbers->at[i].is_float)
            cell.number = numbers->at[i].real;
        else
            cell.b = numbers->at[i].integer;
        cell_commit(at + i, cell, RCA_NUMBER, numbers->at[i].is_float ? RCA_FLAG_FLOAT : 0);
    }
}

/* Names first: they are cells of their own and must not come between those of the record. */
static void name_numbers(NvtxThread *thread, const NvtxNumbers *numbers, uint32_t *ids)
{
    for (int i = 0; i < numbers->count; i++)
        ids[i] = names_id(&thread->names, &thread->segment, numbers->at[i].name);
}

/* Writes a SPAN with its followers, the leading tag last; tells where, so that it can be ended. */
static OpenRange put_span(NvtxThread *thread, const void *domain, const char *name, uint32_t flags,
                          const NvtxNumbers *numbers)
{
    uint32_t ids[NVTX_MOST_NUMBERS];
    OpenRange range = {.domain = domain};
    name_numbers(thread, numbers, ids);
    uint32_t domain_id = names_id(&thread->names, &thread->segment, text_of(domain));
    Cell span = {.e = names_id(&thread->names, &thread->segment, name ? name : "")};
    Cell *at = segment_reserve(&thread->segment, 2 + (size_t)numbers->count);
    if (!at)
        return range;
    put_numbers(at + 2, numbers, ids);
    cell_commit(at + 1, (Cell){.a = -1, .b = numbers->bytes, .d = domain_id}, RCA_MORE, 0);
    span.a = clock_monotonic();
    cell_commit(at, span, RCA_SPAN, RCA_FLAG_NVTX | RCA_FLAG_MORE | flags);
    range.cell = at;
    range.block = block_hold(thread->segment.block);
    return range;
}

static bool is_recorded(const void *domain)
{
    const char *name = text_of(domain);
    return control_gate() && !(name && strcmp(name, OWN_DOMAIN) == 0);
}

static void put_mark(const void *domain, const char *name, const NvtxNumbers *numbers)
{
    uint32_t ids[NVTX_MOST_NUMBERS];
    NvtxThread *thread = is_recorded(domain) ? nvtx_thread() : NULL;
    if (!thread)
        return;
    name_numbers(thread, numbers, ids);
    Cell mark = {.e = names_id(&thread->names, &thread->segment, name ? name : "")};
    Cell *at = segment_reserve(&thread->segment, 1 + (size_t)numbers->count);
    if (!at)
        return;
    put_numbers(at + 1, numbers, ids);
    mark.a = clock_monotonic();
    cell_commit(at, mark, RCA_MARK, RCA_FLAG_NVTX);
}

static int push(const void *domain, const char *name, const NvtxNumbers *numbers)
{
    OpenRange range = {.domain = domain};
    NvtxThread *thread = nvtx_thread();
    if (!thread)
        return NO_RANGE;
    if (is_recorded(domain))
        range = put_span(thread, domain, name, 0, numbers);
    return nvtx_thread_push(thread, range);
}

static int pop(const void *domain)
{
    OpenRange range;
    NvtxThread *thread = nvtx_thread();
    int level = thread ? nvtx_thread_pop(thread, domain, &range) : NO_RANGE;
    if (level >= 0)
        open_range_end(&range);
    return level;
}

static uint64_t start(const void *domain, const char *name, const NvtxNumbers *numbers)
{
    NvtxThread *thread = is_recorded(domain) ? nvtx_thread() : NULL;
    if (!thread)
        return 0;
    OpenRange range = put_span(thread, domain, name, RCA_FLAG_ASYNC, numbers);
    uint64_t id = range.cell ? nvtx_ranges_add(range) : 0;
    if (range.cell && !id)
        block_release(range.block);
    return id;
}

static void end(uint64_t id)
{
    OpenRange range;
    if (nvtx_ranges_take(id, &range))
        open_range_end(&range);
}

static const NvtxNumbers NONE = {.bytes = -1};

static void domain_mark_ex(const void *domain, const NvtxEvent *event)
{
    char room[LONGEST_TEXT];
    NvtxNumbers numbers;
    nvtx_payload_event(&numbers, domain, event);
    put_mark(domain, message(event, room), &numbers);
}

static uint64_t domain_start_ex(const void *domain, const NvtxEvent *event)
{
    char room[LONGEST_TEXT];
    NvtxNumbers numbers;
    nvtx_payload_event(&numbers, domain, event);
    return start(domain, message(event, room), &numbers);
}

static int domain_push_ex(const void *domain, const NvtxEvent *event)
{
    char room[LONGEST_TEXT];
    NvtxNumbers numbers;
    nvtx_payload_event(&numbers, domain, event);
    return push(domain, message(event, room), &numbers);
}

static void domain_end(const void *domain, uint64_t id)
{
    (void)domain;
    end(id);
}

static void mark_ex(const NvtxEvent *event)
{
    domain_mark_ex(NULL, event);
}

static void mark_a(const char *text)
{
    put_mark(NULL, text, &NONE);
}

static void mark_w(const wchar_t *text)
{
    char room[LONGEST_TEXT];
    put_mark(NULL, narrow(text, room, sizeof room), &NONE);
}

static uint64_t start_ex(const NvtxEvent *event)
{
    return domain_start_ex(NULL, event);
}

static uint64_t start_a(const char *text)
{
    return start(NULL, text, &NONE);
}

static uint64_t start_w(const wchar_t *text)
{
    char room[LONGEST_TEXT];
    return start(NULL, narrow(text, room, sizeof room), &NONE);
}

static int push_ex(const NvtxEvent *event)
{
    return domain_push_ex(NULL, event);
}

static int push_a(const char *text)
{
    return push(NULL, text, &NONE);
}

static int push_w(const wchar_t *text)
{
    char room[LONGEST_TEXT];
    return push(NULL, narrow(text, room, sizeof room), &NONE);
}

static int pop_default(void)
{
    return pop(NULL);
}

static void name_thread(uint32_t tid, const char *text)
{
    NvtxThread *thread = nvtx_thread();
    if (!thread)
        return;
    Cell cell = {.a = clock_monotonic(), .b = tid};
    cell.c = names_id(&thread->names, &thread->segment, "thread.name");
    cell.d = names_id(&thread->names, &thread->segment, text);
    segment_cell(&thread->segment, cell, RCA_INFO, 0);
}

static const void *register_a(const void *domain, const char *text)
{
    (void)domain;
    return new_text(text);
}

static const void *register_w(const void *domain, const wchar_t *text)
{
    char room[LONGEST_TEXT];
    (void)domain;
    return new_text(narrow(text, room, sizeof room));
}

/* One handle a name, so that programs which create a domain again and again do not grow. */
static const void *create_a(const char *name)
{
    pthread_mutex_lock(&lock);
    Text *found = domains;
    while (found && strcmp(found->text, name ? name : "") != 0)
        found = found->next;
    if (!found && (found = new_text(name))) {
        found->next = domains;
        domains = found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static const void *create_w(const wchar_t *name)
{
    char room[LONGEST_TEXT];
    return create_a(narrow(name, room, sizeof room));
}

static uint64_t ext_register(const void *domain, const NvtxSchemaAttributes *attributes)
{
    return nvtx_payload_register(domain, attributes);
}

static uint64_t ext_enum(const void *domain, const NvtxEnumAttributes *attributes)
{
    return nvtx_payload_enum(domain, attributes);
}

static void ext_mark(const void *domain, const NvtxPayload *list, size_t count)
{
    NvtxNumbers numbers;
    nvtx_payload_list(&numbers, domain, list, count);
    put_mark(domain, numbers.title, &numbers);
}

static int ext_push(const void *domain, const NvtxPayload *list, size_t count)
{
    NvtxNumbers numbers;
    nvtx_payload_list(&numbers, domain, list, count);
    return push(domain, numbers.title, &numbers);
}

static int ext_pop(const void *domain, const NvtxPayload *list, size_t count)
{
    (void)list, (void)count;
    return pop(domain);
}

static uint64_t ext_start(const void *domain, const NvtxPayload *list, size_t count)
{
    NvtxNumbers numbers;
    nvtx_payload_list(&numbers, domain, list, count);
    return start(domain, numbers.title, &numbers);
}

static void ext_end(const void *domain, uint64_t id, const NvtxPayload *list, size_t count)
{
    (void)domain, (void)list, (void)count;
    end(id);
}

static uint8_t ext_enabled(const void *domain)
{
    (void)domain;
    return 1;
}

typedef struct Handler {
    unsigned id;
    NvtxFunction function;
} Handler;

#define HANDLER(id, function) {id, (NvtxFunction)(void *)(function)}

static const Handler CORE[] = {
    HANDLER(NVTX_MARK_EX, mark_ex),   HANDLER(NVTX_MARK_A, mark_a),
    HANDLER(NVTX_MARK_W, mark_w),     HANDLER(NVTX_START_EX, start_ex),
    HANDLER(NVTX_START_A, start_a),   HANDLER(NVTX_START_W, start_w),
    HANDLER(NVTX_END, end),           HANDLER(NVTX_PUSH_EX, push_ex),
    HANDLER(NVTX_PUSH_A, push_a),     HANDLER(NVTX_PUSH_W, push_w),
    HANDLER(NVTX_POP, pop_default),   HANDLER(NVTX_NAME_THREAD_A, name_thread),
    {0, NULL},
};

static const Handler CORE2[] = {
    HANDLER(NVTX_DOMAIN_MARK_EX, domain_mark_ex), HANDLER(NVTX_DOMAIN_START_EX, domain_start_ex),
    HANDLER(NVTX_DOMAIN_END, domain_end),         HANDLER(NVTX_DOMAIN_PUSH_EX, domain_push_ex),
    HANDLER(NVTX_DOMAIN_POP, pop),                HANDLER(NVTX_DOMAIN_REGISTER_A, register_a),
    HANDLER(NVTX_DOMAIN_REGISTER_W, register_w),  HANDLER(NVTX_DOMAIN_CREATE_A, create_a),
    HANDLER(NVTX_DOMAIN_CREATE_W, create_w),      {0, NULL},
};

static const Handler PAYLOAD[] = {
    HANDLER(NVTX_EXT_SCHEMA_REGISTER, ext_register), HANDLER(NVTX_EXT_ENUM_REGISTER, ext_enum),
    HANDLER(NVTX_EXT_MARK, ext_mark),                HANDLER(NVTX_EXT_PUSH, ext_push),
    HANDLER(NVTX_EXT_POP, ext_pop),                  HANDLER(NVTX_EXT_START, ext_start),
    HANDLER(NVTX_EXT_END, ext_end),                  HANDLER(NVTX_EXT_DOMAIN_ENABLED, ext_enabled),
    {0, NULL},
};

static void install(const NvtxCallbacks *callbacks, uint32_t module, const Handler *handlers)
{
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (!callbacks->GetModuleFunctionTable(module, &table, &size) || !table)
        return;
    for (; handlers->function; handlers++)
        if (handlers->id < size && table[handlers->id])
            *table[handlers->id] = handlers->function;
}

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    nvtx_ranges_forget();
}

static void start_once(void)
{
    options_read(&options);
    if (!options.run[0] || !options.nvtx)
        return;
    control_open(options.run);
    nvtx_threads_start(options.run);
    pthread_atfork(NULL, NULL, in_child);
}

static bool is_wanted(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return options.run[0] && options.nvtx;
}

int InitializeInjectionNvtx2(NvtxGetExportTable get_table)
{
    const NvtxCallbacks *callbacks = get_table ? get_table(NVTX_TABLE_CALLBACKS) : NULL;
    if (!is_wanted() || !callbacks || callbacks->struct_size < sizeof *callbacks)
        return 0;
    install(callbacks, NVTX_MODULE_CORE, CORE);
    install(callbacks, NVTX_MODULE_CORE2, CORE2);
    return 1;
}

int InitializeInjectionNvtxExtension(NvtxExtModule *module)
{
    if (!is_wanted() || !module || module->module != NVTX_EXTENSION_PAYLOAD ||
        module->segments_count < 1)
        return 0;
    for (const Handler *handler = PAYLOAD; handler->function; handler++)
        if (handler->id < module->segments->slots)
            module->segments->functions[handler->id] = (intptr_t)handler->function;
    return 1;
}
