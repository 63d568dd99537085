/* Uses cuFile and prints what came of it. As a program it is linked with the library; with
 * -DLOOKED_UP it opens the library and looks the functions up; -DPART makes a library with `use`,
 * which -DWHOLE opens in a scope of its own. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { int err, cu_err; } Status;
typedef struct { int type; union { int fd; void *other; } of; const void *more; } Description;

#ifdef WHOLE

int main(void)
{
    void *part = dlopen("libpart.so", RTLD_NOW | RTLD_LOCAL);
    int (*use)(void) = part ? (int (*)(void))dlsym(part, "use") : NULL;
    return use ? use() : (fprintf(stderr, "%s\n", dlerror()), 1);
}

#else

#ifdef LOOKED_UP
#define FUNCTION(result, name, ...) static result (*name)(__VA_ARGS__);
#else
#define FUNCTION(result, name, ...) result name(__VA_ARGS__);
#endif
FUNCTION(Status, cuFileHandleRegister, void **, Description *)
FUNCTION(void, cuFileHandleDeregister, void *)
FUNCTION(ssize_t, cuFileRead, void *, void *, size_t, off_t, off_t)
FUNCTION(ssize_t, cuFileWrite, void *, const void *, size_t, off_t, off_t)
FUNCTION(Status, cuFileBatchIOSubmit, void *, unsigned, void *, unsigned)

int use(void)
{
#ifdef LOOKED_UP
    void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    *(void **)&cuFileHandleRegister = dlsym(library, "cuFileHandleRegister");
    *(void **)&cuFileHandleDeregister = dlsym(library, "cuFileHandleDeregister");
    *(void **)&cuFileRead = dlsym(library, "cuFileRead");
    *(void **)&cuFileWrite = dlsym(library, "cuFileWrite");
    *(void **)&cuFileBatchIOSubmit = dlsym(library, "cuFileBatchIOSubmit");
#endif
    char block[4096] = "text", again[4096] = "";
    void *handle = NULL;
    Description wrong = {2, {.fd = 0}, NULL};
    printf("%d\n", cuFileHandleRegister(&handle, &wrong).err);
    cuFileHandleDeregister(handle);
    Description right = {1, {.fd = open("shard.safetensors", O_RDWR | O_CREAT, 0600)}, NULL};
    printf("%d\n", cuFileHandleRegister(&handle, &right).err);
    printf("%zd\n", cuFileWrite(handle, block, sizeof block, 0, 0));
    printf("%zd\n", cuFileRead(handle, again, 1000, 0, 8));
    ssize_t refused = cuFileRead(handle, again, 1, -1, 0);
    printf("%zd %d\n", refused, errno);
    printf("%s\n", again + 8);
    printf("%d\n", cuFileBatchIOSubmit(NULL, 2, NULL, 0).err);
    printf("%d\n", cuFileBatchIOSubmit(NULL, 9, NULL, 0).err);
    cuFileHandleDeregister(handle);
    return 7;
}

#ifndef PART
int main(void)
{
    return use();
}
#endif

#endif
