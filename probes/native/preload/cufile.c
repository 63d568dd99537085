/* GPUDirect Storage: cuFile's reads and writes, which reach the disk without a system call of the C
 * library that could be seen.
 *
 * They are found where a program or a library of it is linked with libcufile. Who looks its functions
 * up with dlsym in the library's own handle gets them as they are. */
#include <dlfcn.h>
#include <sys/types.h>

#include "preload.h"

#define EXPORT __attribute__((visibility("default")))

/* CUfileError_t: two numbers; and the one that says that there is no cuFile. */
typedef struct Status {
    int error, driver;
} Status;
enum { NOT_INITIALIZED = 5001, OPAQUE_FD = 1 };

/* CUfileDescr_t, as far as it is read here. */
typedef struct Description {
    int type;
    union {
        int fd;
        void *other;
    } of;
} Description;

static struct {
    Status (*enter)(void **, Description *);
    void (*leave)(void *);
    ssize_t (*read)(void *, void *, size_t, off_t, off_t);
    ssize_t (*write)(void *, const void *, size_t, off_t, off_t);
    Status (*submit)(void *, unsigned, void *, unsigned);
} real;

/* A library that was opened with RTLD_LOCAL has its libcufile in a scope of its own, which comes after
 * ours and which RTLD_NEXT does not see. */
static COLD void *find(const char *name)
{
    typedef void *(*Open)(const char *, int);
    void *found = dlsym(RTLD_NEXT, name);
    Open open_loaded = (Open)(uintptr_t)dlsym(RTLD_DEFAULT, "dlopen");
    void *library = found || !open_loaded ? NULL
                                          : open_loaded("libcufile.so.0", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : found;
}

#define REAL(function, name)                                                                       \
    (real.function ? real.function : (real.function = (__typeof__(real.function))(uintptr_t)find(name)))

/* ---------------------------------------------------------------- whose file a handle is */

/* The place of a handle, or where it would be; NULL where the table is full. */
static Handle *place(const void *handle)
{
    uintptr_t wanted = (uintptr_t)handle;
    for (uintptr_t i = 0; i < HANDLES; i++) {
        Handle *at = &state->handles[(wanted / 16 + i) % HANDLES];
        uintptr_t there = __atomic_load_n(&at->handle, __ATOMIC_ACQUIRE);
        if (there == wanted || !there)
            return at;
    }
    return NULL;
}

static void remember(void *handle, int fd)
{
    uintptr_t none = 0;
    Handle *at = state && handle ? place(handle) : NULL;
    if (!at)
        return;
    /* Where another thread took the place, this handle stays without a path. */
    if (at->handle == (uintptr_t)handle ||
        __atomic_compare_exchange_n(&at->handle, &none, (uintptr_t)handle, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        __atomic_store_n(&at->fd, fd + 1, __ATOMIC_RELEASE);
}

static int descriptor_of(const void *handle)
{
    Handle *at = handle ? place(handle) : NULL;
    return at && at->handle == (uintptr_t)handle ? __atomic_load_n(&at->fd, __ATOMIC_ACQUIRE) - 1
                                                 : -1;
}

/* ---------------------------------------------------------------- the functions */

static void done(enum Op op, const void *handle, uint64_t begun, int64_t result)
{
    uint64_t spent = ticks() - begun;
    if (!state)
        return;
    int fd = descriptor_of(handle);
    if (spent < threshold)
        file_add(fd, spent, result);
    else
        file_call(op, fd, begun, spent, result);
}

Status cuFileHandleRegister(void **handle, Description *description);
EXPORT Status cuFileHandleRegister(void **handle, Description *description)
{
    if (!REAL(enter, "cuFileHandleRegister"))
        return (Status){NOT_INITIALIZED, 0};
    Status result = real.enter(handle, description);
    if (!result.error && handle && description && description->type == OPAQUE_FD)
        remember(*handle, description->of.fd);
    return result;
}

void cuFileHandleDeregister(void *handle);
EXPORT void cuFileHandleDeregister(void *handle)
{
    remember(handle, -1);
    if (REAL(leave, "cuFileHandleDeregister"))
        real.leave(handle);
}

ssize_t cuFileRead(void *handle, void *into, size_t bytes, off_t at, off_t offset);
EXPORT ssize_t cuFileRead(void *handle, void *into, size_t bytes, off_t at, off_t offset)
{
    if (!REAL(read, "cuFileRead"))
        return -NOT_INITIALIZED;
    uint64_t begun = ticks();
    ssize_t result = real.read(handle, into, bytes, at, offset);
    done(OP_CUFILE_READ, handle, begun, result);
    return result;
}

ssize_t cuFileWrite(void *handle, const void *from, size_t bytes, off_t at, off_t offset);
EXPORT ssize_t cuFileWrite(void *handle, const void *from, size_t bytes, off_t at, off_t offset)
{
    if (!REAL(write, "cuFileWrite"))
        return -NOT_INITIALIZED;
    uint64_t begun = ticks();
    ssize_t result = real.write(handle, from, bytes, at, offset);
    done(OP_CUFILE_WRITE, handle, begun, result);
    return result;
}

/* What is submitted ends later: the call says how long the program was held, and no bytes. */
Status cuFileBatchIOSubmit(void *batch, unsigned count, void *operations, unsigned flags);
EXPORT Status cuFileBatchIOSubmit(void *batch, unsigned count, void *operations, unsigned flags)
{
    if (!REAL(submit, "cuFileBatchIOSubmit"))
        return (Status){NOT_INITIALIZED, 0};
    uint64_t begun = ticks();
    Status result = real.submit(batch, count, operations, flags);
    done(OP_CUFILE_BATCH, NULL, begun, result.error ? -1 : 0);
    return result;
}
