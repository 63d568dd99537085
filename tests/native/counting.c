/* Another preloaded library: counts writes to standard error at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_int count;

ssize_t pread(int fd, void *into, size_t bytes, off_t at)
{
    static ssize_t (*behind)(int, void *, size_t, off_t);
    if (!behind)
        *(void **)&behind = dlsym(RTLD_NEXT, "pread");
    count++;
    return behind(fd, into, bytes, at);
}

__attribute__((destructor)) static void tell(void)
{
    dprintf(2, "pread %d\n", count);
}
