#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "preload.h"

/* A sum is written once it holds this much time, so that a killed process loses little. */
#define SUM_NS 5000000
/* At the end, and when a file is closed, sums below this explain nothing. */
#define LEAST_NS 50000

/* ---------------------------------------------------------------- what a descriptor is */

static long link_of(int fd, char *into, size_t room)
{
    char path[40];
    size_t at = text_copy(path, sizeof path, "/proc/self/fd/");
    text_number(path + at, (uint64_t)fd);
    return quiet(SYS_readlink, (long)path, (long)into, (long)room, 0, 0, 0);
}

static size_t put_address(char *into, const uint8_t *bytes)
{
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        at += text_number(into + at, bytes[i]);
        into[at++] = '.';
    }
    return at - 1;
}

static size_t put_address6(char *into, const uint8_t *bytes)
{
    static const char HEX[] = "0123456789abcdef";
    size_t at = 0;
    into[at++] = '[';
    for (int i = 0; i < 16; i++) {
        into[at++] = HEX[bytes[i] >> 4];
        into[at++] = HEX[bytes[i] & 15];
        if (i % 2 && i < 15)
            into[at++] = ':';
    }
    into[at++] = ']';
    return at;
}

static size_t put_port(char *into, uint16_t port)
{
    into[0] = ':';
    return 1 + text_number(into + 1, (uint64_t)(port >> 8 | (port & 255) << 8));
}

/* The peer of a socket as text; 0 bytes where it has none. */
static size_t peer_of(int fd, char *into)
{
    struct sockaddr_storage peer = {0};
    uint32_t bytes = sizeof peer;
    if (quiet(SYS_getpeername, fd, (long)&peer, (long)&bytes, 0, 0, 0) < 0)
        return 0;
    if (peer.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)&peer;
        size_t at = put_address(into, (const uint8_t *)&in->sin_addr);
        return at + put_port(into + at, in->sin_port);
    }
    if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)&peer;
        size_t at = put_address6(into, (const uint8_t *)&in->sin6_addr);
        return at + put_port(into + at, in->sin6_port);
    }
    const struct sockaddr_un *local = (const void *)&peer;
    return peer.ss_family == AF_UNIX ? text_copy(into, sizeof local->sun_path, local->sun_path) : 0;
}

static bool ends_with(const char *text, size_t bytes, const char *end)
{
    size_t size = text_length(end);
    return bytes >= size && !__builtin_memcmp(text + bytes - size, end, size);
}

static bool is_local(int fd)
{
    struct sockaddr_storage own = {0};
    uint32_t bytes = sizeof own;
    return quiet(SYS_getsockname, fd, (long)&own, (long)&bytes, 0, 0, 0) == 0 &&
           own.ss_family == AF_UNIX;
}

static enum Kind kind_of(int fd, uint32_t mode, const char *path, size_t bytes)
{
    if (S_ISSOCK(mode))
        return is_local(fd) ? KIND_MESSAGE : KIND_NETWORK;
    if (fd == 1 || fd == 2)
        return KIND_LOG;
    if (S_ISREG(mode) && ends_with(path, bytes, ".log"))
        return KIND_LOG;
    if (S_ISFIFO(mode))
        return KIND_MESSAGE;
    return S_ISREG(mode) || S_ISBLK(mode) ? KIND_FILE : KIND_NONE;
}

/* Finds out what a descriptor is, with a few system calls, once between two opens. */
static COLD void ask(int fd, File *file)
{
    char path[4096];
    struct stat found;
    struct statfs mount;
    long bytes = 0;
    file->asked = 1;
    if (quiet(SYS_fstat, fd, (long)&found, 0, 0, 0, 0) < 0)
        return;
    if (S_ISSOCK(found.st_mode))
        bytes = (long)peer_of(fd, path);
    else
        bytes = link_of(fd, path, sizeof path);
    bytes = bytes < 0 ? 0 : bytes;
    file->kind = (uint8_t)kind_of(fd, found.st_mode, path, (size_t)bytes);
    if (S_ISREG(found.st_mode) && quiet(SYS_fstatfs, fd, (long)&mount, 0, 0, 0, 0) == 0)
        file->system = (uint32_t)mount.f_type;
    if (file->kind != KIND_NONE && bytes)
        file->path = journal_name(path, (size_t)bytes);
}

/* ---------------------------------------------------------------- sums */

static void take_sum(int fd, File *file, int64_t least)
{
    uint64_t calls = __atomic_exchange_n(&file->calls, 0, __ATOMIC_RELAXED);
    uint64_t spent = __atomic_exchange_n(&file->ticks, 0, __ATOMIC_RELAXED);
    uint64_t bytes = __atomic_exchange_n(&file->bytes, 0, __ATOMIC_RELAXED);
    int64_t ns = ticks_ns(spent);
    if (!calls || ns < least)
        return;
    if (!file->asked)
        ask(fd, file);
    if (file->kind != KIND_NONE)
        journal_sum((enum Kind)file->kind, file->path, calls, ns, bytes);
}

/* The additions are not atomic: threads that read one file at once may lose a few of them, and a
 * short call costs half as much. */
HOT void file_add(int fd, uint64_t spent, int64_t bytes)
{
    if ((unsigned)fd >= FILES)
        return;
    File *file = &state->files[fd];
    file->calls++;
    file->ticks += spent;
    file->bytes += bytes > 0 ? (uint64_t)bytes : 0;
    if (LIKELY(file->ticks < threshold * (SUM_NS / LEAST_NS)) || !journal_enter())
        return;
    take_sum(fd, file, LEAST_NS);
    journal_leave();
}

static void forget(File *file)
{
    *file = (File){0};
}

COLD void file_forget(int fd)
{
    if ((unsigned)fd >= FILES)
        return;
    File *file = &state->files[fd];
    if (file->ticks >= threshold) {
        if (!journal_enter())
            return; /* perhaps a child of vfork: the descriptor stays open in the parent */
        take_sum(fd, file, LEAST_NS);
        journal_leave();
    }
    forget(file);
}

void file_fresh(int fd)
{
    if ((unsigned)fd < FILES && (state->files[fd].calls || state->files[fd].asked))
        forget(&state->files[fd]);
}

void files_flush(void)
{
    if (!journal_enter())
        return;
    for (int fd = 0; fd < FILES; fd++)
        if (state->files[fd].calls)
            take_sum(fd, &state->files[fd], LEAST_NS);
    journal_leave();
}

/* ---------------------------------------------------------------- long calls */

static Call timed(enum Op op, uint64_t begun, uint64_t spent, int64_t result)
{
    int64_t now = clock_monotonic();
    int64_t since = ticks_ns(ticks() - begun - spent);
    int64_t end = now - since;
    return (Call){.start = end - ticks_ns(spent),
                  .end = end,
                  .bytes = -1,
                  .op = op,
                  .failed = result < 0};
}

static bool moves_bytes(enum Op op)
{
    return op != OP_OPEN && op != OP_CLOSE && op != OP_FSYNC && op != OP_FDATASYNC &&
           op != OP_FADVISE && op != OP_FTRUNCATE && op != OP_CONNECT && op != OP_SENDMMSG &&
           op != OP_RECVMMSG && op != OP_CUFILE_BATCH;
}

/* Whoever reads what another process of this machine sends waits for that process, which is no IO;
 * sending is work on a message. */
static bool is_waiting(enum Op op, enum Kind kind)
{
    bool sends = op == OP_WRITE || op == OP_WRITEV || op == OP_SEND || op == OP_SENDTO ||
                 op == OP_SENDMSG || op == OP_SENDMMSG || op == OP_SENDFILE;
    return kind == KIND_MESSAGE && !sends;
}

static bool is_cufile(enum Op op)
{
    return op == OP_CUFILE_READ || op == OP_CUFILE_WRITE || op == OP_CUFILE_BATCH;
}

COLD void file_call(enum Op op, int fd, uint64_t begun, uint64_t spent, int64_t result)
{
    File other = {0};
    if (!journal_enter())
        return;
    Call call = timed(op, begun, spent, result);
    File *file = (unsigned)fd < FILES ? &state->files[fd] : &other;
    if (file == &other && is_cufile(op)) /* a handle whose descriptor is not known */
        other.kind = KIND_FILE;
    else if (!file->asked && op != OP_CLOSE)
        ask(fd, file);
    call.kind = (enum Kind)file->kind;
    call.path = file->path;
    call.system = file->system;
    if (moves_bytes(op) && result >= 0)
        call.bytes = result;
    if (call.kind != KIND_NONE && !is_waiting(op, call.kind))
        journal_call(&call);
    journal_leave();
}

COLD void file_opened(const char *path, uint64_t begun, uint64_t spent, int64_t result)
{
    if (!journal_enter())
        return;
    Call call = timed(OP_OPEN, begun, spent, result);
    call.kind = KIND_FILE;
    call.path = path ? journal_name(path, text_length(path)) : 0;
    journal_call(&call);
    journal_leave();
}
