/* The GPU collector of a process: what the CUDA driver loads, and what our Python side calls. */
#ifndef RCA_COLLECTOR_H
#define RCA_COLLECTOR_H

#include <stdint.h>

#define RCA_EXPORT __attribute__((visibility("default")))

/* The driver calls it inside cuInit, once a process; always 1, whatever happens in here. */
RCA_EXPORT int InitializeInjection(void);

/* 1 collecting, 0 not started or not possible, -1 a forked child of a collecting process. */
RCA_EXPORT int rca_llm_gpu_status(void);

/* Empties what CUPTI has completed into the segment now; waits for it at most a moment. */
RCA_EXPORT void rca_llm_gpu_flush(void);

/* Gives way to another client of CUPTI in this process, and takes the collector back after it. */
RCA_EXPORT void rca_llm_gpu_release(void);
RCA_EXPORT void rca_llm_gpu_reclaim(void);

/* Mark what this thread launches as the work of an engine step; steps may nest. */
RCA_EXPORT void rca_llm_gpu_push_step(uint64_t step);
RCA_EXPORT void rca_llm_gpu_pop_step(void);

#endif
