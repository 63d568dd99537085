// Millions of kernels of about a microsecond, launched one by one and as nodes of a replayed graph.
//
//   nvcc -O2 -o launches launches.cu && ./launches LAUNCHES REPLAYS [SECONDS]
//
// A replay is 1,000 nodes; after so many seconds of each it goes on to the next. Prints a line of JSON each time a tenth is done: kernels so far, seconds,
// the process's resident memory and the device memory in use.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

static const long NODES = 1000;

__global__ void tiny(float *x)
{
    x[threadIdx.x] += 1.0f;
}

static double now()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static long resident_kb()
{
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "RssAnon:", 8) == 0)
            found = atol(line + 8);
    if (file)
        fclose(file);
    return found;
}

static void told(const char *what, long kernels, double begun)
{
    size_t left = 0, whole = 0;
    cudaStreamSynchronize(0);
    cudaMemGetInfo(&left, &whole);
    printf("{\"phase\": \"%s\", \"kernels\": %ld, \"s\": %.2f, \"rss_anon_kb\": %ld, \"gpu_mb\": %zu}\n", what,
           kernels, now() - begun, resident_kb(), (whole - left) >> 20);
    fflush(stdout);
}

int main(int count, char **words)
{
    long launches = count > 1 ? atol(words[1]) : 100000, replays = count > 2 ? atol(words[2]) : 100;
    double limit = count > 3 ? atof(words[3]) : 1e9;
    long launched = 0, replayed = 0;
    float *x;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaMalloc(&x, 128);
    cudaStreamCreate(&stream);
    double begun = now();
    for (; launched < launches && (launched % 4096 || now() - begun < limit);) {
        tiny<<<1, 32, 0, stream>>>(x);
        if (++launched % (launches / 10 + 1) == 0)
            cudaStreamSynchronize(stream), told("launches", launched, begun);
    }
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (long i = 0; i < NODES; i++)
        tiny<<<1, 32, 0, stream>>>(x);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    begun = now();
    for (; replayed < replays && now() - begun < limit;) {
        cudaGraphLaunch(exec, stream);
        if (++replayed % 8 == 0)
            cudaStreamSynchronize(stream);
        if (replayed % (replays / 10 + 1) == 0)
            cudaStreamSynchronize(stream), told("replays", replayed * NODES, begun);
    }
    cudaError_t last = cudaStreamSynchronize(stream);
    printf("{\"phase\": \"end\", \"error\": %d, \"launched\": %ld, \"nodes\": %ld, \"ns\": %.0f}\n", (int)last,
           launched, replayed * NODES, now() * 1e9);
    return last != cudaSuccess;
}
