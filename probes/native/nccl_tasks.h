/* Collectives and point-to-point transfers of NCCL as rows of the calling thread's segment. NCCL
 * hands its work to the device in plans, each a kernel that does one task or several; the tasks of
 * a plan are written together when the plan is complete. */
#ifndef RCA_NCCL_TASKS_H
#define RCA_NCCL_TASKS_H

#include <stdbool.h>
#include <stdint.h>

/* A communicator, as `init` describes it; it lives as long as the process. */
typedef struct NcclComm {
    struct NcclComm *next;
    uint64_t id;
    int ranks, rank;
    char name[128];
} NcclComm;

enum NcclTaskKind { NCCL_TASK_COLL, NCCL_TASK_P2P, NCCL_TASK_COPIES };
/* Whether the call was captured into a CUDA graph, where NCCL says so (version 5 on). */
enum NcclCapture { NCCL_CAPTURE_UNKNOWN, NCCL_EAGER, NCCL_CAPTURED };

/* A task; texts may be NULL, numbers -1 where they are not known or mean nothing. `count` is of
 * `datatype`; the caller may have asked in another one. */
typedef struct NcclTask {
    const char *comm_name, *func, *datatype, *asked_type, *algo, *proto;
    uint64_t comm, count;
    int64_t seq;
    int ranks, rank, root, peer, channels;
    enum NcclTaskKind kind;
    enum NcclCapture capture;
} NcclTask;

/* Prepares the process; false where nothing is to be recorded. `version` is that of the interface,
 * `address` any function of NCCL, or NULL, by which its release is found out. */
bool nccl_tasks_start(int version, void *address);

/* Whether the work of single channels is asked for, which puts a host call into every plan. */
bool nccl_tasks_channels(void);

/* Remembers a communicator; NULL without memory. */
NcclComm *nccl_tasks_comm(uint64_t id, const char *name, int ranks, int rank);

/* A kernel is about to be launched by this thread. */
void nccl_tasks_launch(void);

/* The tasks between these two belong to one plan. */
void nccl_tasks_plan_begin(void);
void nccl_tasks_plan_end(void);

/* A task begins to be handed over; its id, 0 where it is not recorded. */
uint32_t nccl_tasks_begin(const NcclTask *task);
void nccl_tasks_end(uint32_t id);

/* The device began (`end` 0) or ended (`begin` 0) the part of a task that a channel does. */
void nccl_tasks_channel(uint32_t task, uint8_t channel, uint64_t begin, uint64_t end);

#endif
