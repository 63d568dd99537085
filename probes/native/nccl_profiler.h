/* The profiler plugin that NCCL finds through NCCL_PROFILER_PLUGIN, in every version of its
 * interface. It answers every call with success and makes no call of CUDA or NCCL: what fails in
 * here costs a record, never a collective. */
#ifndef RCA_NCCL_PROFILER_H
#define RCA_NCCL_PROFILER_H

#include "nccl_abi.h"

#define NCCL_EXPORT __attribute__((visibility("default")))

extern NCCL_EXPORT NcclProfiler1 ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3;
extern NCCL_EXPORT NcclProfiler4 ncclProfiler_v4;
extern NCCL_EXPORT NcclProfiler5 ncclProfiler_v5, ncclProfiler_v6;

#endif
