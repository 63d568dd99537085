/* An NVTX tool that does nothing: what a range costs when some tool listens, without that tool's own
 * work. Counts the ranges it is handed and writes the count to stderr at exit if NVTX_TOOL_PRINT is
 * set. */
#include "../probes/native/nvtx_abi.h"
#include <stdio.h>
#include <stdlib.h>

static unsigned long pushed, popped, marked, started, ended, domains[8];

static int domain_push(void *domain, const void *event) {
    (void)domain, (void)event;
    return (int)pushed++;
}
static int domain_pop(void *domain) {
    (void)domain;
    return (int)popped++;
}
static void domain_mark(void *domain, const void *event) {
    (void)domain, (void)event;
    marked++;
}
static uint64_t domain_start(void *domain, const void *event) {
    (void)domain, (void)event;
    return ++started;
}
static void domain_end(void *domain, uint64_t id) {
    (void)domain, (void)id;
    ended++;
}
static void *domain_create(const char *name) {
    (void)name;
    return domains;
}
static void *domain_register(void *domain, const char *text) {
    (void)domain, (void)text;
    return domains + 1;
}

static void print_counts(void) {
    fprintf(stderr, "pushed %lu popped %lu marked %lu started %lu ended %lu\n", pushed, popped,
            marked, started, ended);
}

int InitializeInjectionNvtx2(NvtxGetExportTable get_table) {
    const NvtxCallbacks *callbacks = get_table(NVTX_TABLE_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_MODULE_CORE2, &table, &size)) return 0;
    *table[NVTX_DOMAIN_PUSH_EX] = (NvtxFunction)domain_push;
    *table[NVTX_DOMAIN_POP] = (NvtxFunction)domain_pop;
    *table[NVTX_DOMAIN_MARK_EX] = (NvtxFunction)domain_mark;
    *table[NVTX_DOMAIN_START_EX] = (NvtxFunction)domain_start;
    *table[NVTX_DOMAIN_END] = (NvtxFunction)domain_end;
    *table[NVTX_DOMAIN_CREATE_A] = (NvtxFunction)domain_create;
    *table[NVTX_DOMAIN_REGISTER_A] = (NvtxFunction)domain_register;
    if (getenv("NVTX_TOOL_PRINT")) atexit(print_counts);
    return 1;
}
