/* What NVTX calls when a library that uses it makes its first call. */
#ifndef RCA_NVTX_H
#define RCA_NVTX_H

#include "nvtx_abi.h"

/* Installs our handlers in one user of NVTX; 0 where ranges are not wanted. Called once for each
 * library of the process that NVTX is compiled into. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTable get_table);

/* The same for the payload extension. */
__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(NvtxExtModule *module);

#endif
