/* The functions that stand before the C library's: each calls the one behind it, which may belong to
 * another preloaded library, and looks at a counter before and after.
 *
 * Programs call a function under several names: `open64` where files may be large, `__read_chk`
 * where they were compiled with checks. All lead to the same few places here. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload.h"

#define EXPORT __attribute__((visibility("default"))) HOT
#define DEFAULT_LEAST_NS 50000u

struct mmsghdr; /* only ever passed on */

/* ---------------------------------------------------------------- the functions behind ours */

static struct {
    int (*open)(const char *, int, ...);
    int (*openat)(int, const char *, int, ...);
    int (*creat)(const char *, mode_t);
    int (*close)(int);
    int (*dup2)(int, int);
    int (*dup3)(int, int, int);
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*pread)(int, void *, size_t, off_t);
    ssize_t (*readv)(int, const struct iovec *, int);
    ssize_t (*preadv)(int, const struct iovec *, int, off_t);
    ssize_t (*preadv2)(int, const struct iovec *, int, off_t, int);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*pwrite)(int, const void *, size_t, off_t);
    ssize_t (*writev)(int, const struct iovec *, int);
    ssize_t (*pwritev)(int, const struct iovec *, int, off_t);
    ssize_t (*pwritev2)(int, const struct iovec *, int, off_t, int);
    int (*posix_fadvise)(int, off_t, off_t, int);
    int (*ftruncate)(int, off_t);
    int (*fsync)(int);
    int (*fdatasync)(int);
    ssize_t (*sendfile)(int, int, off_t *, size_t);
    ssize_t (*copy_file_range)(int, off_t *, int, off_t *, size_t, unsigned);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    int (*sendmmsg)(int, struct mmsghdr *, unsigned, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    int (*recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);
    int (*connect)(int, const struct sockaddr *, socklen_t);
} real;

static const struct {
    const char *name;
    void *at;
} NEEDED[] = {
    {"open", &real.open},         {"openat", &real.openat},
    {"creat", &real.creat},       {"close", &real.close},
    {"dup2", &real.dup2},         {"dup3", &real.dup3},
    {"read", &real.read},         {"pread", &real.pread},
    {"readv", &real.readv},       {"preadv", &real.preadv},
    {"preadv2", &real.preadv2},   {"write", &real.write},
    {"pwrite", &real.pwrite},     {"writev", &real.writev},
    {"pwritev", &real.pwritev},   {"pwritev2", &real.pwritev2},
    {"posix_fadvise", &real.posix_fadvise},
    {"ftruncate", &real.ftruncate},
    {"fsync", &real.fsync},       {"fdatasync", &real.fdatasync},
    {"sendfile", &real.sendfile}, {"copy_file_range", &real.copy_file_range},
    {"send", &real.send},         {"sendto", &real.sendto},
    {"sendmsg", &real.sendmsg},   {"sendmmsg", &real.sendmmsg},
    {"recv", &real.recv},         {"recvfrom", &real.recvfrom},
    {"recvmsg", &real.recvmsg},   {"recvmmsg", &real.recvmmsg},
    {"connect", &real.connect},
};

static COLD void resolve(void)
{
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        void *found = dlsym(RTLD_NEXT, NEEDED[i].name);
        __builtin_memcpy(NEEDED[i].at, &found, sizeof found);
    }
}

/* Constructors of other libraries may come before ours. A C library that lacks a function has no
 * program that calls it. */
#define REAL(name) (LIKELY(real.name != NULL) ? real.name : (resolve(), real.name))

/* ---------------------------------------------------------------- start and end */

static uint64_t asked_least(void)
{
    const char *text = getenv("RCA_LLM_IO_US"), *at = text;
    uint64_t value = 0;
    for (; at && *at >= '0' && *at <= '9' && value < 1000000; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    return at && at > text && !*at ? value * 1000 : DEFAULT_LEAST_NS;
}

__attribute__((constructor)) static void begin(void)
{
    const char *run = getenv("RCA_LLM_RUN");
    int before = errno;
    resolve();
    if (run && *run == '/') {
        identity_prepare();
        journal_prepare(run, asked_least());
        python_find();
    }
    errno = before;
}

__attribute__((destructor)) static void end(void)
{
    if (!state)
        return;
    files_flush();
    journal_close();
}

/* ---------------------------------------------------------------- what every call does */

/* Ends a call on a descriptor that was begun at `begun`. */
static inline void done(enum Op op, int fd, uint64_t begun, int64_t result)
{
    uint64_t spent = ticks() - begun;
    if (!state)
        return;
    if (LIKELY(spent < threshold))
        file_add(fd, spent, result);
    else
        file_call(op, fd, begun, spent, result);
}

static inline int opened(const char *path, uint64_t begun, int fd)
{
    uint64_t spent = ticks() - begun;
    if (!state)
        return fd;
    if (fd >= 0)
        file_fresh(fd);
    if (spent >= threshold)
        file_opened(path, begun, spent, fd);
    return fd;
}

/* Calls the function behind and times it; the value is that function's. */
#define TIMED(op, fd, call)                                                                        \
    do {                                                                                           \
        uint64_t begun = ticks();                                                                  \
        __typeof__(call) result = call;                                                            \
        done(op, fd, begun, result);                                                               \
        return result;                                                                             \
    } while (0)

/* ---------------------------------------------------------------- opening and closing */

/* The mode is there only where a file may be made. */
static mode_t mode_of(int flags, va_list more)
{
    return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(more, int) : 0;
}

#define OPEN(name)                                                                                 \
    EXPORT int name(const char *path, int flags, ...)                                              \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = mode_of(flags, more);                                                        \
        va_end(more);                                                                              \
        uint64_t begun = ticks();                                                                  \
        return opened(path, begun, REAL(open)(path, flags, mode));                                 \
    }
#define OPENAT(name)                                                                               \
    EXPORT int name(int folder, const char *path, int flags, ...)                                  \
    {                                                                                              \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = mode_of(flags, more);                                                        \
        va_end(more);                                                                              \
        uint64_t begun = ticks();                                                                  \
        return opened(path, begun, REAL(openat)(folder, path, flags, mode));                       \
    }
#define CREAT(name)                                                                                \
    EXPORT int name(const char *path, mode_t mode)                                                 \
    {                                                                                              \
        uint64_t begun = ticks();                                                                  \
        return opened(path, begun, REAL(creat)(path, mode));                                       \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CREAT(creat)
CREAT(creat64)

/* What programs call that were compiled with checks, and name no mode. */
#define CHECKED_OPEN(name)                                                                         \
    int name(const char *path, int flags);                                                         \
    EXPORT int name(const char *path, int flags)                                                   \
    {                                                                                              \
        uint64_t begun = ticks();                                                                  \
        return opened(path, begun, REAL(open)(path, flags));                                       \
    }
#define CHECKED_OPENAT(name)                                                                       \
    int name(int folder, const char *path, int flags);                                             \
    EXPORT int name(int folder, const char *path, int flags)                                       \
    {                                                                                              \
        uint64_t begun = ticks();                                                                  \
        return opened(path, begun, REAL(openat)(folder, path, flags));                             \
    }

CHECKED_OPEN(__open_2)
CHECKED_OPEN(__open64_2)
CHECKED_OPENAT(__openat_2)
CHECKED_OPENAT(__openat64_2)

EXPORT int close(int fd)
{
    if (state)
        file_forget(fd);
    uint64_t begun = ticks();
    int result = REAL(close)(fd);
    uint64_t spent = ticks() - begun;
    if (spent >= threshold && state)
        file_call(OP_CLOSE, fd, begun, spent, result);
    return result;
}

EXPORT int dup2(int from, int to)
{
    if (state && from != to)
        file_forget(to);
    return REAL(dup2)(from, to);
}

EXPORT int dup3(int from, int to, int flags)
{
    if (state && from != to)
        file_forget(to);
    return REAL(dup3)(from, to, flags);
}

/* ---------------------------------------------------------------- reading and writing */

EXPORT ssize_t read(int fd, void *into, size_t bytes)
{
    TIMED(OP_READ, fd, REAL(read)(fd, into, bytes));
}

EXPORT ssize_t write(int fd, const void *from, size_t bytes)
{
    TIMED(OP_WRITE, fd, REAL(write)(fd, from, bytes));
}

EXPORT ssize_t readv(int fd, const struct iovec *into, int count)
{
    TIMED(OP_READV, fd, REAL(readv)(fd, into, count));
}

EXPORT ssize_t writev(int fd, const struct iovec *from, int count)
{
    TIMED(OP_WRITEV, fd, REAL(writev)(fd, from, count));
}

#define PREAD(name)                                                                                \
    EXPORT ssize_t name(int fd, void *into, size_t bytes, off_t at)                                \
    {                                                                                              \
        TIMED(OP_PREAD, fd, REAL(pread)(fd, into, bytes, at));                                     \
    }
#define PWRITE(name)                                                                               \
    EXPORT ssize_t name(int fd, const void *from, size_t bytes, off_t at)                          \
    {                                                                                              \
        TIMED(OP_PWRITE, fd, REAL(pwrite)(fd, from, bytes, at));                                   \
    }
#define VECTORS(name, op, next)                                                                    \
    EXPORT ssize_t name(int fd, const struct iovec *vectors, int count, off_t at)                  \
    {                                                                                              \
        TIMED(op, fd, REAL(next)(fd, vectors, count, at));                                         \
    }
#define VECTORS2(name, op, next)                                                                   \
    EXPORT ssize_t name(int fd, const struct iovec *vectors, int count, off_t at, int flags)       \
    {                                                                                              \
        TIMED(op, fd, REAL(next)(fd, vectors, count, at, flags));                                  \
    }

PREAD(pread)
PREAD(pread64)
PWRITE(pwrite)
PWRITE(pwrite64)
VECTORS(preadv, OP_PREADV, preadv)
VECTORS(preadv64, OP_PREADV, preadv)
VECTORS(pwritev, OP_PWRITEV, pwritev)
VECTORS(pwritev64, OP_PWRITEV, pwritev)
VECTORS2(preadv2, OP_PREADV, preadv2)
VECTORS2(preadv64v2, OP_PREADV, preadv2)
VECTORS2(pwritev2, OP_PWRITEV, pwritev2)
VECTORS2(pwritev64v2, OP_PWRITEV, pwritev2)

EXPORT int fsync(int fd)
{
    TIMED(OP_FSYNC, fd, REAL(fsync)(fd));
}

EXPORT int fdatasync(int fd)
{
    TIMED(OP_FDATASYNC, fd, REAL(fdatasync)(fd));
}

#define FADVISE(name)                                                                              \
    EXPORT int name(int fd, off_t at, off_t bytes, int advice)                                     \
    {                                                                                              \
        TIMED(OP_FADVISE, fd, REAL(posix_fadvise)(fd, at, bytes, advice));                         \
    }
#define FTRUNCATE(name)                                                                            \
    EXPORT int name(int fd, off_t bytes)                                                           \
    {                                                                                              \
        TIMED(OP_FTRUNCATE, fd, REAL(ftruncate)(fd, bytes));                                       \
    }

FADVISE(posix_fadvise)
FADVISE(posix_fadvise64)
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

#define SENDFILE(name)                                                                             \
    EXPORT ssize_t name(int to, int from, off_t *at, size_t bytes)                                 \
    {                                                                                              \
        TIMED(OP_SENDFILE, to, REAL(sendfile)(to, from, at, bytes));                               \
    }

SENDFILE(sendfile)
SENDFILE(sendfile64)

EXPORT ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t bytes,
                               unsigned flags)
{
    TIMED(OP_COPY_FILE_RANGE, to,
          REAL(copy_file_range)(from, from_at, to, to_at, bytes, flags));
}

/* ---------------------------------------------------------------- sockets */

EXPORT ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
    TIMED(OP_SEND, fd, REAL(send)(fd, from, bytes, flags));
}

EXPORT ssize_t sendto(int fd, const void *from, size_t bytes, int flags,
                      const struct sockaddr *peer, socklen_t size)
{
    TIMED(OP_SENDTO, fd, REAL(sendto)(fd, from, bytes, flags, peer, size));
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    TIMED(OP_SENDMSG, fd, REAL(sendmsg)(fd, message, flags));
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    TIMED(OP_SENDMMSG, fd, REAL(sendmmsg)(fd, messages, count, flags));
}

EXPORT ssize_t recv(int fd, void *into, size_t bytes, int flags)
{
    TIMED(OP_RECV, fd, REAL(recv)(fd, into, bytes, flags));
}

EXPORT ssize_t recvfrom(int fd, void *into, size_t bytes, int flags, struct sockaddr *peer,
                        socklen_t *size)
{
    TIMED(OP_RECVFROM, fd, REAL(recvfrom)(fd, into, bytes, flags, peer, size));
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    TIMED(OP_RECVMSG, fd, REAL(recvmsg)(fd, message, flags));
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags,
                    struct timespec *limit)
{
    TIMED(OP_RECVMMSG, fd, REAL(recvmmsg)(fd, messages, count, flags, limit));
}

EXPORT int connect(int fd, const struct sockaddr *peer, socklen_t size)
{
    TIMED(OP_CONNECT, fd, REAL(connect)(fd, peer, size));
}

/* ---------------------------------------------------------------- with checks of the buffer */

/* The C library ends a program that would write past its buffer; so must these. */
static inline void check(size_t bytes, size_t room)
{
    if (bytes > room)
        abort();
}

#define CHECKED(name, op, next, ...)                                                               \
    {                                                                                              \
        check(bytes, room);                                                                        \
        TIMED(op, fd, REAL(next)(fd, into, bytes, ##__VA_ARGS__));                                 \
    }

ssize_t __read_chk(int fd, void *into, size_t bytes, size_t room);
EXPORT ssize_t __read_chk(int fd, void *into, size_t bytes, size_t room)
    CHECKED(__read_chk, OP_READ, read)

ssize_t __pread_chk(int fd, void *into, size_t bytes, off_t at, size_t room);
EXPORT ssize_t __pread_chk(int fd, void *into, size_t bytes, off_t at, size_t room)
    CHECKED(__pread_chk, OP_PREAD, pread, at)

ssize_t __pread64_chk(int fd, void *into, size_t bytes, off_t at, size_t room);
EXPORT ssize_t __pread64_chk(int fd, void *into, size_t bytes, off_t at, size_t room)
    CHECKED(__pread64_chk, OP_PREAD, pread, at)

ssize_t __recv_chk(int fd, void *into, size_t bytes, size_t room, int flags);
EXPORT ssize_t __recv_chk(int fd, void *into, size_t bytes, size_t room, int flags)
    CHECKED(__recv_chk, OP_RECV, recv, flags)

ssize_t __recvfrom_chk(int fd, void *into, size_t bytes, size_t room, int flags,
                       struct sockaddr *peer, socklen_t *size);
EXPORT ssize_t __recvfrom_chk(int fd, void *into, size_t bytes, size_t room, int flags,
                              struct sockaddr *peer, socklen_t *size)
    CHECKED(__recvfrom_chk, OP_RECVFROM, recvfrom, flags, peer, size)
