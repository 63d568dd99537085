#include "cupti.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Newest first; CUDA 11 calls its library by its own release. */
static const char *const NAMES[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so", NULL};

/* Where libcupti lies, seen from another CUDA library's folder: PyTorch's wheels, toolkits. */
static const char *const BESIDE[] = {"", "/../../cuda_cupti/lib", "/../../cu13/lib",
                                     "/../extras/CUPTI/lib64", "/../../extras/CUPTI/lib64", NULL};
static const char *const TOOLKITS[] = {"/usr/local/cuda/extras/CUPTI/lib64",
                                       "/usr/local/cuda/lib64", NULL};

static void *open_named(const char *folder, int flags)
{
    char path[4096];
    for (const char *const *name = NAMES; *name; name++) {
        int length = snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", *name);
        if (length >= (int)sizeof path || (*folder && access(path, R_OK) != 0))
            continue;
        void *found = dlopen(path, flags);
        if (found)
            return found;
    }
    return NULL;
}

/* The path of libcupti where the process has it mapped under a name of its own. */
static int mapped_cupti(struct dl_phdr_info *info, size_t size, void *into)
{
    (void)size;
    const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!base || strncmp(base, "/libcupti.so", 12) != 0)
        return 0;
    snprintf(into, 4096, "%s", info->dlpi_name);
    return 1;
}

typedef struct Folders {
    char text[64][1024];
    int count;
} Folders;

/* Folders of the CUDA libraries of the process. */
static int cuda_folder(struct dl_phdr_info *info, size_t size, void *into)
{
    (void)size;
    Folders *folders = into;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!slash || (size_t)(slash - info->dlpi_name) >= sizeof folders->text[0])
        return 0;
    if (strncmp(slash, "/libcudart", 10) && strncmp(slash, "/libcublas", 10) &&
        strncmp(slash, "/libnvrtc", 9) && strncmp(slash, "/libnccl", 8))
        return 0;
    snprintf(folders->text[folders->count], sizeof folders->text[0], "%.*s",
             (int)(slash - info->dlpi_name), info->dlpi_name);
    return ++folders->count == (int)(sizeof folders->text / sizeof folders->text[0]);
}

static void *open_beside_cuda(void)
{
    void *found = NULL;
    Folders *folders = calloc(1, sizeof *folders);
    if (!folders)
        return NULL;
    dl_iterate_phdr(cuda_folder, folders);
    for (int i = 0; i < folders->count && !found; i++)
        for (const char *const *way = BESIDE; *way && !found; way++) {
            char folder[2048];
            snprintf(folder, sizeof folder, "%s%s", folders->text[i], *way);
            found = open_named(folder, RTLD_NOW | RTLD_LOCAL);
        }
    free(folders);
    return found;
}

static void *open_cupti(void)
{
    char mapped[4096] = "";
    const char *given = getenv("RCA_LLM_CUPTI");
    void *found = given && *given ? dlopen(given, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!found)
        found = open_named("", RTLD_NOW | RTLD_NOLOAD);
    if (!found && dl_iterate_phdr(mapped_cupti, mapped))
        found = dlopen(mapped, RTLD_NOW | RTLD_NOLOAD);
    if (!found)
        found = open_beside_cuda();
    if (!found)
        found = open_named("", RTLD_NOW | RTLD_LOCAL);
    for (const char *const *toolkit = TOOLKITS; *toolkit && !found; toolkit++)
        found = open_named(*toolkit, RTLD_NOW | RTLD_LOCAL);
    return found;
}

/* Stores a symbol where the function pointer lies, which POSIX allows and C does not say. */
static bool find_symbol(void *library, const char *name, void *into)
{
    void *symbol = dlsym(library, name);
    memcpy(into, &symbol, sizeof symbol);
    return symbol != NULL;
}

bool cupti_load(Cupti *self)
{
    Dl_info info;
    bool complete = true;
    void *library = open_cupti();
    *self = (Cupti){0};
    if (!library)
        return false;
#define X(name, arguments) complete &= find_symbol(library, "cupti" #name, &self->name);
    CUPTI_REQUIRED(X)
#undef X
#define X(name, arguments) find_symbol(library, "cupti" #name, &self->name);
    CUPTI_OPTIONAL(X)
#undef X
    void *anchor = dlsym(library, "cuptiGetVersion");
    if (anchor && dladdr(anchor, &info) && info.dli_fname)
        snprintf(self->path, sizeof self->path, "%s", info.dli_fname);
    return complete;
}
