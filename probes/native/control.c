#include "control.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format.h"

static const uint8_t ALWAYS = 1;
const volatile uint8_t *control_byte = &ALWAYS;

/* The time of the change that was found last. */
static uint64_t found_last;

static uint64_t told(void)
{
    return *(const volatile uint64_t *)(control_byte + RCA_CONTROL_CHANGED_OFFSET);
}

uint64_t control_changed(uint64_t now)
{
    uint64_t before = found_last;
    if (control_byte == &ALWAYS)
        return now;
    found_last = told();
    return found_last != before && found_last < now ? found_last : now;
}

void control_open(const char *run)
{
    char path[4096];
    struct stat found;
    int length = snprintf(path, sizeof path, "%s/control", run);
    if (control_byte != &ALWAYS || length >= (int)sizeof path)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &found) == 0 && found.st_size >= RCA_CONTROL_BYTES) {
        void *page = mmap(NULL, RCA_CONTROL_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        if (page != MAP_FAILED) {
            control_byte = page;
            found_last = told();
        }
    }
    close(fd);
}
