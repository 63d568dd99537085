#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload.h"

static const char *const OP_NAMES[OPS] = {
    "open",     "close",           "read",    "pread",  "readv",   "preadv",
    "write",    "pwrite",          "writev",  "pwritev", "fsync",  "fdatasync",
    "sendfile", "copy_file_range", "send",    "sendto", "sendmsg", "sendmmsg",
    "recv",     "recvfrom",        "recvmsg", "recvmmsg", "connect", "fadvise",
    "ftruncate", "wait for the GIL", "cuFileRead", "cuFileWrite", "cuFileBatchIOSubmit",
};
static const char *const KIND_NAMES[KINDS] = {"", "file", "network", "log", "serialize", "gil"};

enum { SEQUENCES = 100000, PATIENCE = 200 };

State *state;
uint64_t threshold = UINT64_MAX, least_ns;
#if defined(__x86_64__)
bool steady_counter;
#endif

static char run[3072];
static const volatile uint8_t *gate;
static uint64_t first_ticks;
static int64_t first_ns;
THREAD_LOCAL int depth;
THREAD_LOCAL int32_t own_id;
THREAD_LOCAL int32_t own_process;

/* ---------------------------------------------------------------- system calls and time */

/* `syscall` sets errno, which belongs to the program. */
long quiet(long number, long a, long b, long c, long d, long e, long f)
{
    int before = errno;
    long result = syscall(number, a, b, c, d, e, f);
    if (result == -1)
        result = -errno;
    errno = before;
    return result;
}

static int32_t process_id(void)
{
    return (int32_t)quiet(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

/* The kernel's id of this thread; the copy of a thread in a forked child has another. */
int32_t thread_id(void)
{
    int32_t process = state && state->pid ? state->pid : process_id();
    if (own_process != process) {
        own_id = (int32_t)quiet(SYS_gettid, 0, 0, 0, 0, 0, 0);
        own_process = process;
    }
    return own_id;
}

int64_t ticks_ns(uint64_t count)
{
    uint64_t passed = ticks() - first_ticks;
    double rate = passed ? (double)(clock_monotonic() - first_ns) / (double)passed : 0.0;
    return (int64_t)((double)count * rate);
}

/* ---------------------------------------------------------------- preparation */

/* How many ticks some ns last, from a look at both clocks for a moment. */
static uint64_t in_ticks(uint64_t ns)
{
    uint64_t before = ticks(), began = (uint64_t)clock_monotonic(), now;
    do {
        now = (uint64_t)clock_monotonic();
    } while (now - began < 20000);
    return (uint64_t)((double)(ticks() - before) / (double)(now - began) * (double)ns);
}

#if defined(__x86_64__)
/* Whether the counter ticks at one rate whatever the processor does (CPUID 80000007h, EDX bit 8). */
static bool counter_is_steady(void)
{
    uint32_t a = 0x80000000u, b, c, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
    if (a < 0x80000007u)
        return false;
    a = 0x80000007u;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
    return d & 1u << 8;
}
#endif

static void *map_private(size_t bytes)
{
    long at = quiet(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

/* Without the kernel's help (before Linux 4.14) only the process itself is recorded: its children
 * would write into its segment. */
void journal_prepare(const char *directory, uint64_t least)
{
    State *made = map_private(sizeof *made);
    if (!made || text_length(directory) >= sizeof run)
        return;
    text_copy(run, sizeof run, directory);
    quiet(SYS_madvise, (long)made, sizeof *made, MADV_WIPEONFORK, 0, 0, 0);
#if defined(__x86_64__)
    steady_counter = counter_is_steady();
#endif
    least_ns = least;
    threshold = in_ticks(least);
    first_ns = clock_monotonic();
    first_ticks = ticks();
    state = made;
}

static bool map_gate(void)
{
    char path[sizeof run + 16];
    size_t at = text_copy(path, sizeof path, run);
    text_copy(path + at, sizeof path - at, "/control");
    long fd = quiet(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0)
        return false;
    long end = quiet(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    long page = end < RCA_CONTROL_BYTES
                    ? -EINVAL
                    : quiet(SYS_mmap, 0, RCA_CONTROL_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    quiet(SYS_close, fd, 0, 0, 0, 0, 0);
    if (page < 0 && page > -4096)
        return false;
    gate = (const volatile uint8_t *)page;
    return true;
}

/* ---------------------------------------------------------------- the file */

/* The first free name <pid>-<start>-<tid>-<n>.seg; false where no file can be made. */
static bool create_file(uint32_t *sequence)
{
    size_t at = text_copy(state->path, sizeof state->path, run);
    at += text_copy(state->path + at, sizeof state->path - at, "/segments/");
    uint64_t parts[] = {(uint64_t)process_id(), process_start(), (uint64_t)thread_id()};
    for (int i = 0; i < 3; i++) {
        at += text_number(state->path + at, parts[i]);
        state->path[at++] = '-';
    }
    for (uint32_t n = 0; n < SEQUENCES; n++) {
        size_t end = at + text_number(state->path + at, n);
        text_copy(state->path + end, sizeof state->path - end, ".seg");
        long fd = quiet(SYS_openat, AT_FDCWD, (long)state->path,
                        O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644, 0, 0);
        if (fd == -EEXIST)
            continue;
        if (fd >= 0)
            quiet(SYS_close, fd, 0, 0, 0, 0, 0);
        *sequence = n;
        return fd >= 0;
    }
    return false;
}

static long write_zeros(long fd, uint64_t offset, size_t bytes)
{
    static const char zeros[4096];
    for (size_t done = 0; done < bytes; done += sizeof zeros) {
        long got = quiet(SYS_pwrite64, fd, (long)zeros, sizeof zeros, (long)(offset + done), 0, 0);
        if (got != (long)sizeof zeros)
            return got < 0 ? got : -ENOSPC;
    }
    return 0;
}

/* Room on the disk comes before the mapping: touching a hole on a full disk kills the process, and
 * so does growing a file past the limit on its size. */
static long allocate(long fd, uint64_t offset, size_t bytes)
{
    struct rlimit limit;
    if (quiet(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&limit, 0, 0) == 0 &&
        limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur)
        return -EFBIG;
    long error = quiet(SYS_fallocate, fd, 0, (long)offset, (long)bytes, 0, 0);
    return error == -EOPNOTSUPP || error == -ENOSYS ? write_zeros(fd, offset, bytes) : error;
}

/* The next block of the file, mapped; NULL with the error where that fails. */
static uint8_t *map_block(size_t bytes, long *error)
{
    long fd = quiet(SYS_openat, AT_FDCWD, (long)state->path, O_RDWR | O_CLOEXEC, 0, 0, 0);
    long at = fd < 0 ? fd : allocate(fd, state->file_bytes, bytes);
    if (at == 0)
        at = quiet(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                   (long)state->file_bytes);
    if (fd >= 0)
        quiet(SYS_close, fd, 0, 0, 0, 0, 0);
    *error = at < 0 && at > -4096 ? at : 0;
    return *error ? NULL : (uint8_t *)at;
}

static void stop(long error)
{
    state->stopped = true;
    if (!state->header)
        return;
    state->header->stop_errno = (uint32_t)-error;
    state->header->stopped_ns = clock_monotonic();
}

/* The first block, which begins with the header, is smaller than the others. */
static uint64_t block_bytes(const uint8_t *block)
{
    return block == (uint8_t *)state->header ? RCA_FIRST_BLOCK_BYTES : RCA_BLOCK_BYTES;
}

static void begin_file(uint8_t *block, uint32_t sequence)
{
    state->header = (Header *)block;
    identity_fill(state->header);
    state->header->sequence = sequence;
    uint64_t magic;
    __builtin_memcpy(&magic, RCA_MAGIC, sizeof magic);
    __atomic_store_n(&state->header->magic, magic, __ATOMIC_RELEASE);
}

/* Opens the file, or appends a block to it. One thread at a time. Both the block and the place in it
 * change: the place is set to its end first, so that nobody reserves in a mixture of the two. */
static COLD void grow(void)
{
    long error = 0;
    uint32_t sequence = 0;
    bool first = !state->file_bytes;
    if (first && !create_file(&sequence)) {
        state->stopped = true;
        return;
    }
    size_t bytes = first ? RCA_FIRST_BLOCK_BYTES : RCA_BLOCK_BYTES;
    uint8_t *block = map_block(bytes, &error);
    if (!block) {
        stop(error);
        if (first) /* without a header it would look damaged */
            quiet(SYS_unlinkat, AT_FDCWD, (long)state->path, 0, 0, 0, 0);
        return;
    }
    state->file_bytes += bytes;
    state->next_name += first;
    if (first)
        begin_file(block, sequence);
    __atomic_store_n(&state->block, block, __ATOMIC_RELEASE);
    __atomic_store_n(&state->used, first ? RCA_HEADER_BYTES : 0, __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------- reserving */

static void lose(void)
{
    if (state->header)
        __atomic_fetch_add(&state->header->dropped, 1, __ATOMIC_RELAXED);
}

/* Makes room, or waits a little for the thread that does; whether to try again. */
static COLD bool make_room(int attempt)
{
    if (__atomic_exchange_n(&state->growing, 1, __ATOMIC_ACQUIRE) == 0) {
        uint64_t used = __atomic_load_n(&state->used, __ATOMIC_ACQUIRE);
        if (!state->block || used > block_bytes(state->block))
            grow();
        __atomic_store_n(&state->growing, 0, __ATOMIC_RELEASE);
        return !state->stopped;
    }
    quiet(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    return attempt < PATIENCE;
}

/* The block is read on both sides of the reservation: where it changed in between, the place belongs
 * to nobody and is left as zeros, which readers skip. */
static Cell *reserve(size_t cells)
{
    uint64_t bytes = cells * RCA_CELL_BYTES;
    for (int attempt = 0; !state->stopped; attempt++) {
        uint8_t *block = __atomic_load_n(&state->block, __ATOMIC_ACQUIRE);
        uint64_t size = block ? block_bytes(block) : 0;
        uint64_t at = block ? __atomic_fetch_add(&state->used, bytes, __ATOMIC_ACQ_REL) : size;
        if (at + bytes <= size && block == __atomic_load_n(&state->block, __ATOMIC_ACQUIRE))
            return (Cell *)(block + at);
        if (at + bytes > size && !make_room(attempt))
            break;
    }
    lose();
    return NULL;
}

static void commit(Cell *at, Cell cell, uint32_t type, uint32_t flags)
{
    at->a = cell.a;
    at->b = cell.b;
    at->c = cell.c;
    at->d = cell.d;
    at->e = cell.e;
    __atomic_store_n(&at->tag, cell_tag(type, flags), __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------- entering */

/* A child of vfork shares everything with its parent and must not write: its id tells it apart from
 * the parent, and the state, which is not empty, from a forked child. */
bool journal_ours(void)
{
    int32_t process = process_id();
    if (!state->pid)
        state->pid = process;
    return state->pid == process && !state->stopped;
}

bool journal_enter(void)
{
    if (!state || depth)
        return false;
    depth++;
    if ((gate || map_gate()) && *gate && journal_ours())
        return true;
    depth--;
    return false;
}

void journal_leave(void)
{
    depth--;
}

/* ---------------------------------------------------------------- records */

uint32_t journal_name(const char *text, size_t bytes)
{
    size_t cells = 1 + (bytes + RCA_CELL_BYTES - 1) / RCA_CELL_BYTES;
    Cell *at = reserve(cells);
    if (!at)
        return 0;
    uint32_t id = __atomic_fetch_add(&state->next_name, 1, __ATOMIC_RELAXED);
    Cell cell = {.b = (int64_t)bytes, .c = id};
    commit(at, cell, RCA_PENDING, 0);
    __builtin_memcpy(at + 1, text, bytes);
    __atomic_store_n(&at->tag, cell_tag(RCA_NAME, 0), __ATOMIC_RELEASE);
    return id;
}

/* Two threads may both name a text: then it has two ids, which does no harm. */
static uint32_t known(uint32_t *id, const char *text)
{
    uint32_t found = __atomic_load_n(id, __ATOMIC_RELAXED);
    if (!found && *text) {
        found = journal_name(text, text_length(text));
        __atomic_store_n(id, found, __ATOMIC_RELAXED);
    }
    return found;
}

Cell *journal_call(const Call *call)
{
    uint32_t op = known(&state->ops[call->op], OP_NAMES[call->op]);
    uint32_t kind = known(&state->kinds[call->kind], KIND_NAMES[call->kind]);
    Cell *at = reserve(2);
    if (!at)
        return NULL;
    Cell more = {.a = -1,
                 .b = call->bytes,
                 .c = call->path,
                 .d = call->system,
                 .e = (uint32_t)thread_id()};
    commit(at + 1, more, RCA_MORE, 0);
    commit(at, (Cell){.a = call->start, .b = call->end, .c = 0, .d = kind, .e = op}, RCA_CALL,
           RCA_FLAG_MORE | (call->failed ? RCA_FLAG_ERROR : 0));
    return at;
}

void journal_sum(enum Kind kind, uint32_t path, uint64_t calls, int64_t ns, uint64_t bytes)
{
    uint32_t name = known(&state->kinds[kind], KIND_NAMES[kind]);
    Cell *at = reserve(2);
    if (!at)
        return;
    commit(at + 1, (Cell){.a = (int64_t)calls, .b = (int64_t)bytes, .c = path}, RCA_MORE, 0);
    commit(at, (Cell){.a = clock_monotonic(), .b = ns, .d = name}, RCA_SUM, RCA_FLAG_MORE);
}

void journal_close(void)
{
    if (state && state->header && state->pid == process_id())
        state->header->closed_ns = clock_monotonic();
}
