// What launches.cu uses of CUDA's runtime, played through the stand-in for CUPTI: RCA_LLM_CUPTI names
// it, and CUDA_INJECTION64_PATH is loaded first, as the driver does.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#define __global__ static inline __attribute__((unused))
enum cudaError_t { cudaSuccess };
enum { cudaStreamCaptureModeThreadLocal };
typedef int cudaStream_t;
typedef long cudaGraph_t, cudaGraphExec_t;
static const struct { int x; } threadIdx = {0};
static bool capturing;
static long captured;
static void (*record)(const char *, uint64_t);

static cudaError_t cudaMalloc(float **x, size_t bytes)
{
    const char *injected = getenv("CUDA_INJECTION64_PATH"), *cupti = getenv("RCA_LLM_CUPTI");
    void *library = injected ? dlopen(injected, RTLD_NOW) : NULL;
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (begin)
        begin();
    library = cupti ? dlopen(cupti, RTLD_NOW) : NULL;
    record = library ? (void (*)(const char *, uint64_t))dlsym(library, "fake_kernel") : NULL;
    *x = (float *)malloc(bytes);
    return cudaSuccess;
}

static void launched(uint64_t node)
{
    if (record)
        record("_Z4tinyPf", node);
}

static void standin_launch(float *)
{
    if (capturing)
        captured++;
    else
        launched(0);
}

static cudaError_t cudaStreamCreate(cudaStream_t *) { return cudaSuccess; }
static cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static cudaError_t cudaMemGetInfo(size_t *left, size_t *whole) { *left = *whole = 0; return cudaSuccess; }
static void cudaStreamBeginCapture(cudaStream_t, int) { capturing = true; }
static void cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) { capturing = false, *graph = captured; }
static void cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, int) { *exec = graph; }
static void cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (long i = 0; i < exec; i++)
        launched(1000 + (uint64_t)i);
}
