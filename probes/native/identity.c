#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SEQUENCES = 1000000 };

static const char *const RANK[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID",
                                   NULL};
static const char *const LOCAL_RANK[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_LOCALID", NULL};
static const char *const WORLD_SIZE[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_NTASKS", NULL};

/* The first of these variables that holds a number, else -1. */
static int32_t number_of(const char *const *variables)
{
    for (; *variables; variables++) {
        const char *text = getenv(*variables);
        char *end = NULL;
        long value = text && *text ? strtol(text, &end, 10) : -1;
        if (end && !*end && value >= 0 && value <= INT32_MAX)
            return (int32_t)value;
    }
    return -1;
}

/* Reads a small file without stdio, whose locks a forked child may have inherited. */
static size_t slurp(const char *path, char *into, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, into, room - 1);
    if (fd >= 0)
        close(fd);
    into[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* Field 22 of /proc/self/stat; the command in field 2 may itself hold spaces and brackets. */
static uint64_t process_start(void)
{
    char text[1024];
    slurp("/proc/self/stat", text, sizeof text);
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Base names of the program and of its script or module; other arguments may hold secrets. */
static void process_name(char *into, size_t room)
{
    char text[4096];
    size_t bytes = slurp("/proc/self/cmdline", text, sizeof text);
    const char *first = base_name(text), *second = text + strlen(text) + 1, *end = text + bytes;
    const char *third = second < end ? second + strlen(second) + 1 : end;
    if (second < end && strcmp(second, "-m") == 0 && third < end)
        snprintf(into, room, "%s -m %s", first, third);
    else if (second < end && second[0] && second[0] != '-')
        snprintf(into, room, "%s %s", first, base_name(second));
    else
        snprintf(into, room, "%s", first);
}

void identity_read(Identity *self, const char *thread_name)
{
    *self = (Identity){
        .pid = (uint32_t)getpid(),
        .ppid = (uint32_t)getppid(),
        .tid = (uint64_t)syscall(SYS_gettid),
        .process_start = process_start(),
        .rank = number_of(RANK),
        .local_rank = number_of(LOCAL_RANK),
        .world_size = number_of(WORLD_SIZE),
    };
    gethostname(self->host, sizeof self->host - 1);
    if (thread_name)
        snprintf(self->thread_name, sizeof self->thread_name, "%s", thread_name);
    else
        pthread_getname_np(pthread_self(), self->thread_name, sizeof self->thread_name);
    process_name(self->process_name, sizeof self->process_name);
}

char *identity_create_file(const Identity *self, const char *run, uint32_t *sequence)
{
    char path[4096];
    for (uint32_t n = 0; n < SEQUENCES; n++) {
        int length = snprintf(path, sizeof path, "%s/segments/%u-%llu-%llu-%u.seg", run, self->pid,
                              (unsigned long long)self->process_start,
                              (unsigned long long)self->tid, n);
        if (length < 0 || (size_t)length >= sizeof path)
            return NULL;
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return NULL;
        close(fd);
        *sequence = n;
        return strdup(path);
    }
    return NULL;
}
