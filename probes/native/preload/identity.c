#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "preload.h"

static const char *const RANK[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID",
                                   NULL};
static const char *const LOCAL_RANK[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_LOCALID", NULL};
static const char *const WORLD_SIZE[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_NTASKS", NULL};

static int32_t rank, local_rank, world_size;

size_t text_length(const char *text)
{
    size_t bytes = 0;
    while (text[bytes])
        bytes++;
    return bytes;
}

/* Copies with the closing zero, cut to fit; the bytes before the zero. */
size_t text_copy(char *into, size_t room, const char *from)
{
    size_t at = 0;
    for (; from[at] && at + 1 < room; at++)
        into[at] = from[at];
    into[at] = 0;
    return at;
}

size_t text_number(char *into, uint64_t number)
{
    char digits[20];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    for (size_t i = 0; i < count; i++)
        into[i] = digits[count - 1 - i];
    into[count] = 0;
    return count;
}

/* A number of at most nine digits and nothing else, else -1. */
static int64_t parse(const char *text)
{
    int64_t value = 0;
    size_t count = 0;
    for (; text[count] >= '0' && text[count] <= '9' && count < 10; count++)
        value = value * 10 + (text[count] - '0');
    return count && count < 10 && !text[count] ? value : -1;
}

static int32_t number_of(const char *const *variables)
{
    for (; *variables; variables++) {
        const char *text = getenv(*variables);
        int64_t value = text ? parse(text) : -1;
        if (value >= 0)
            return (int32_t)value;
    }
    return -1;
}

void identity_prepare(void)
{
    rank = number_of(RANK);
    local_rank = number_of(LOCAL_RANK);
    world_size = number_of(WORLD_SIZE);
}

size_t read_whole(const char *path, char *into, size_t room)
{
    long fd = quiet(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    long got = fd < 0 ? 0 : quiet(SYS_read, fd, (long)into, (long)(room - 1), 0, 0, 0);
    if (fd >= 0)
        quiet(SYS_close, fd, 0, 0, 0, 0, 0);
    into[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* Field 22 of /proc/self/stat; the command in field 2 may itself hold spaces and brackets. */
uint64_t process_start(void)
{
    char text[1024];
    size_t bytes = read_whole("/proc/self/stat", text, sizeof text), at = bytes;
    uint64_t value = 0;
    while (at && text[at] != ')')
        at--;
    for (int field = 2; field < 22 && at < bytes; at++)
        field += text[at] == ' ';
    for (; text[at] >= '0' && text[at] <= '9'; at++)
        value = value * 10 + (uint64_t)(text[at] - '0');
    return value;
}

static const char *base_name(const char *path)
{
    const char *base = path;
    for (; *path; path++)
        base = *path == '/' ? path + 1 : base;
    return base;
}

/* Base names of the program and of its script or module; other arguments may hold secrets. */
static void process_name(char *into, size_t room)
{
    char text[4096];
    size_t bytes = read_whole("/proc/self/cmdline", text, sizeof text);
    const char *end = text + bytes, *second = text + text_length(text) + 1;
    const char *third = second < end ? second + text_length(second) + 1 : end;
    size_t at = text_copy(into, room, base_name(text));
    if (second >= end || !second[0])
        return;
    bool module = second[0] == '-' && second[1] == 'm' && !second[2] && third < end;
    if (module)
        at += text_copy(into + at, room - at, " -m ");
    else if (second[0] != '-')
        at += text_copy(into + at, room - at, " ");
    if (module || second[0] != '-')
        text_copy(into + at, room - at, module ? third : base_name(second));
}

void identity_fill(Header *header)
{
    struct utsname host;
    ClockAnchor anchor = clock_anchor();
    header->version = RCA_VERSION;
    header->header_bytes = RCA_HEADER_BYTES;
    header->cell_bytes = RCA_CELL_BYTES;
    header->writer = RCA_WRITER_PRELOAD;
    header->pid = (uint32_t)quiet(SYS_getpid, 0, 0, 0, 0, 0, 0);
    header->ppid = (uint32_t)quiet(SYS_getppid, 0, 0, 0, 0, 0, 0);
    header->tid = (uint64_t)thread_id();
    header->process_start = process_start();
    header->anchor_monotonic_ns = anchor.monotonic;
    header->anchor_utc_ns = anchor.utc;
    header->anchor_width_ns = anchor.width;
    header->clock = RCA_CLOCK_MONOTONIC;
    header->rank = rank;
    header->local_rank = local_rank;
    header->world_size = world_size;
    if (quiet(SYS_uname, (long)&host, 0, 0, 0, 0, 0) == 0)
        text_copy(header->host, sizeof header->host, host.nodename);
    process_name(header->process_name, sizeof header->process_name);
}
