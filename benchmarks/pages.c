/* What a page of a mapped file costs that is touched for the first time, and what it costs where some
 * kilobytes of zeros are written ahead: ns of processor time a page, of 64 MiB in blocks of 1 MiB as
 * the recorder maps them.
 *
 *     cc -O2 -o /tmp/pages benchmarks/pages.c && /tmp/pages FILE [0|16|64|256 …] */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, BLOCKS = 64, PAGE = 4096 };

static char zeros[BLOCK];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Touches a block, so many bytes written ahead each time (0: none); 0 where that is impossible. */
static int touch_block(int file, off_t offset, size_t ahead)
{
    if (posix_fallocate(file, offset, BLOCK))
        return 0;
    char *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    if (block == MAP_FAILED)
        return 0;
    for (size_t at = 0; at < BLOCK; at += 32) {
        if (ahead && at % ahead == 0 && pwrite(file, zeros, ahead, offset + (off_t)at) < 0)
            return 0;
        *(volatile int64_t *)(block + at) = 1;
    }
    return !munmap(block, BLOCK);
}

int main(int count, char **words)
{
    for (int i = 2; i < count; i++) {
        size_t ahead = strtoul(words[i], NULL, 10) * 1024;
        int file = open(words[1], O_CREAT | O_TRUNC | O_RDWR, 0600), done = file >= 0;
        double began = now();
        for (int block = 0; done && block < BLOCKS; block++)
            done = touch_block(file, (off_t)block * BLOCK, ahead);
        double spent = now() - began;
        if (!done)
            return perror(words[1]), 1;
        printf("%zu KiB ahead: %.0f ns a page, %.1f a record\n", ahead / 1024,
               spent / BLOCKS / (BLOCK / PAGE), spent / BLOCKS / (BLOCK / 32));
        close(file);
        unlink(words[1]);
    }
    return 0;
}
