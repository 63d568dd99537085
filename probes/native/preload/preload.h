/* The interposer: an LD_PRELOAD library that times system calls on files and sockets, and Python's
 * waits for its global lock, in any dynamically linked program.
 *
 * It must be harmless in every process of a tree, so it differs from the rest of this folder: it
 * uses system calls of its own instead of the C library's functions, because those may be half way
 * through when a signal handler calls `write`; it never allocates with malloc; and it imports only
 * what every C library has (musl's loader refuses a program whose preloaded library needs more).
 *
 *   calls.c     the functions that stand before the C library's
 *   files.c     what each descriptor is, and the sums of calls too short to be recorded
 *   cufile.c    reads and writes of GPUDirect Storage
 *   python.c    waits for the global interpreter lock
 *   journal.c   the process's segment: many threads write, without locks
 *   identity.c  who this process is, for the header of its segment */
#ifndef RCA_PRELOAD_H
#define RCA_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../clock.h"
#include "../format.h"

#define HOT __attribute__((hot))
#define COLD __attribute__((cold, noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
/* A preloaded library has static thread storage: reaching it needs no call and no allocation. */
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))

/* The names of what is recorded; `OP_NAMES` in journal.c has their texts in this order. */
enum Op {
    OP_OPEN,
    OP_CLOSE,
    OP_READ,
    OP_PREAD,
    OP_READV,
    OP_PREADV,
    OP_WRITE,
    OP_PWRITE,
    OP_WRITEV,
    OP_PWRITEV,
    OP_FSYNC,
    OP_FDATASYNC,
    OP_SENDFILE,
    OP_COPY_FILE_RANGE,
    OP_SEND,
    OP_SENDTO,
    OP_SENDMSG,
    OP_SENDMMSG,
    OP_RECV,
    OP_RECVFROM,
    OP_RECVMSG,
    OP_RECVMMSG,
    OP_CONNECT,
    OP_FADVISE,
    OP_FTRUNCATE,
    OP_GIL,
    OP_CUFILE_READ,
    OP_CUFILE_WRITE,
    OP_CUFILE_BATCH,
    OPS,
};

/* The span kinds of the contract that calls have; `KIND_NAMES` has their texts. */
enum Kind { KIND_NONE, KIND_FILE, KIND_NETWORK, KIND_LOG, KIND_MESSAGE, KIND_GIL, KINDS };

enum { FILES = 16384, HANDLES = 1024 };

/* A descriptor: what it is, once somebody asked, and the short calls on it since the last sum. */
typedef struct File {
    uint32_t path;    /* NAME id; 0 not asked yet */
    uint8_t kind;     /* what its calls are, KIND_NONE for pipes, terminals and the like */
    uint8_t asked;    /* the others here are known */
    uint32_t system;  /* type of the file system, as statfs gives it */
    uint64_t calls, ticks, bytes;
} File;

/* A handle of cuFile and its descriptor plus 1, 0 once it was given back. */
typedef struct Handle {
    uintptr_t handle;
    int32_t fd;
} Handle;

/* Everything that a forked child must not take over: the kernel empties these pages in it
 * (MADV_WIPEONFORK). A child of vfork shares them and is known by its process id. */
typedef struct State {
    int32_t pid; /* 0: a forked child that has recorded nothing yet */
    int32_t growing;
    uint8_t *block;       /* where cells go; older blocks stay mapped, a writer may be in them */
    uint64_t used;        /* bytes reserved in the block; past its end where it is full */
    Header *header;
    uint64_t file_bytes;
    uint32_t next_name;
    bool stopped;
    uint32_t ops[OPS], kinds[KINDS]; /* NAME ids; 0 not written yet */
    char path[4096];
    File files[FILES];
    Handle handles[HANDLES];
} State;

/* The state; NULL where this process is not to be recorded. */
extern State *state;
/* Calls shorter than this are only summed up, in ticks. */
extern uint64_t threshold;
/* The same in ns. */
extern uint64_t least_ns;

/* ---------------------------------------------------------------- time */

/* Ticks of the cheapest steady counter: reading the clock costs as much as a short call. */
#if defined(__x86_64__)
extern bool steady_counter;
static inline uint64_t ticks(void)
{
    uint32_t low, high;
    if (!steady_counter)
        return (uint64_t)clock_monotonic();
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
#elif defined(__aarch64__)
static inline uint64_t ticks(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
}
#else
static inline uint64_t ticks(void)
{
    return (uint64_t)clock_monotonic();
}
#endif

/* How many ns a number of ticks lasted, by the clock since the process began. */
int64_t ticks_ns(uint64_t count);

/* ---------------------------------------------------------------- system calls */

/* A system call that leaves errno alone: a negative result is the error. */
long quiet(long number, long a, long b, long c, long d, long e, long f);
int32_t thread_id(void);

/* ---------------------------------------------------------------- parts */

typedef struct Call {
    int64_t start, end, bytes; /* bytes -1: none */
    enum Op op;
    enum Kind kind;
    uint32_t path, system;
    bool failed;
} Call;

/* Writes a call; its CALL cell, which may be given a later end, or NULL. */
Cell *journal_call(const Call *call);
/* Writes the sum of short calls on one file. */
void journal_sum(enum Kind kind, uint32_t path, uint64_t calls, int64_t ns, uint64_t bytes);
/* Names a text in the segment; 0 where it cannot be written. */
uint32_t journal_name(const char *text, size_t bytes);
/* Enters the recorder: false where nothing may be recorded, and where the thread is already in it
 * (a signal handler came in between). */
bool journal_enter(void);
void journal_leave(void);
/* Whether the segment belongs to this process, and could be opened. */
bool journal_ours(void);
void journal_close(void);
/* Remembers the run directory and the threshold; once, at the start of the process. */
void journal_prepare(const char *run, uint64_t least);

/* Sums a short call up. */
void file_add(int fd, uint64_t spent, int64_t bytes);
/* Records a long one. */
void file_call(enum Op op, int fd, uint64_t begun, uint64_t spent, int64_t result);
/* The descriptor is about to mean something else: writes its sum and forgets it. */
void file_forget(int fd);
/* The descriptor is new: forgets what it was, which is gone. */
void file_fresh(int fd);
/* Writes all sums; at the end of the process. */
void files_flush(void);
/* Records a long open, by the path that was asked for. */
void file_opened(const char *path, uint64_t begun, uint64_t spent, int64_t result);

/* Looks for a Python in this process. */
void python_find(void);

/* Fills the header of a segment, except its magic; `run` is the run directory. */
void identity_fill(Header *header);
/* Remembers what the environment says; once, at the start. */
void identity_prepare(void);

/* Small parts of a C library that do nothing else. */
size_t text_length(const char *text);
size_t text_copy(char *into, size_t room, const char *from);
size_t text_number(char *into, uint64_t number);
size_t read_whole(const char *path, char *into, size_t room);
uint64_t process_start(void);

#endif
