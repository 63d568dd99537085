"""What every term of a report means, in one or two sentences: shown wherever the term stands."""

from __future__ import annotations

from collections.abc import Mapping

CLASSES: Mapping[str, str] = {
    "compute": "Kernels that calculate run on the device that holds the request up (or, on an "
    "engine without a GPU, the model runs on the CPU).",
    "communication": "Collectives, peer and KV-cache transfers, waiting for other ranks in them, "
    "and serialisation, while no compute kernel runs.",
    "io": "Copies between host and device, files, network, page faults and log writing, while "
    "neither compute nor communication runs.",
    "scheduling": "The device is idle, or the request waits: queue, launches, host code, "
    "synchronisation, preemption, garbage collection and the like.",
    "unknown": "Time nobody may judge: the device was not traced, or its graph replays were not "
    "recorded. It is not idle time.",
}
"""The five classes of the partition."""

PARTS: Mapping[str, str] = {
    "compute.gemm": "matrix multiplication",
    "compute.attention": "attention",
    "compute.norm": "normalisation",
    "compute.elementwise": "elementwise operations",
    "compute.reduce": "reductions",
    "compute.sampling": "sampling",
    "compute.moe": "mixture-of-experts routing",
    "compute.quant": "quantisation and dequantisation",
    "compute.memory": "device-to-device copies and memsets",
    "compute.graph": "CUDA graph replays recorded as one piece",
    "compute.other": "other kernels",
    "compute.cpu": "the model on the CPU",
    "communication.collective": "collectives: data moving",
    "communication.wait": "waiting for the last rank of a collective",
    "communication.p2p": "transfers between GPUs",
    "communication.serialization": "serialisation of messages",
    "communication.kv_transfer": "KV-cache hand-over",
    "io.h2d": "host-to-device copies",
    "io.d2h": "device-to-host copies",
    "io.file": "reading or writing files",
    "io.network": "network",
    "io.page_fault": "major page faults",
    "io.log": "writing logs",
    "scheduling.queue": "waiting to be admitted",
    "scheduling.host": "host code between launches",
    "scheduling.launch": "launching kernels one by one",
    "scheduling.sync": "the host waiting in a synchronisation, the device idle",
    "scheduling.alloc": "memory allocation",
    "scheduling.jit": "compiling or loading kernels",
    "scheduling.gc": "garbage collection",
    "scheduling.gil": "waiting for the GIL",
    "scheduling.cpu_wait": "ready to run, but without a CPU",
    "scheduling.preempt": "preempted, waiting to resume",
    "scheduling.recompute": "computing again what preemption threw away",
    "scheduling.prefill_interference": "held up by another request's step",
    "scheduling.tokenize": "tokenising the prompt",
    "scheduling.detokenize": "turning tokens into text",
    "scheduling.client": "before the server saw the request",
    "scheduling.graph_capture": "capturing a CUDA graph",
    "scheduling.other": "unexplained idle time of the device",
    "unknown.not_traced": "the device was not traced",
    "unknown.not_recorded": "graph replays without records",
}
"""What every part of the partition is, in words that fit after a number."""

TERMS: Mapping[str, str] = {
    "share": "Part of the time it is judged on, as a percentage.",
    "latency": "From the request's arrival at the server to its finish.",
    "P50": "Half of the finished requests took this long or less (nearest rank).",
    "P90": "Nine in ten finished requests took this long or less (nearest rank).",
    "P99": "99 in 100 finished requests took this long or less (nearest rank).",
    "mean": "Sum divided by count, over finished requests.",
    "variation": "Standard deviation divided by the mean, over requests: how unevenly it hits.",
    "TTFT": "Time to first token: from arrival to the first token.",
    "ITL": "Inter-token latency: the time between two tokens of one request.",
    "client latency": "Latency plus the time before the server saw the request, where known.",
    "shared": "Time in steps that served other requests too.",
    "interference": "Steps of other requests that held this one up.",
    "cause": "The part that holds most of the request's excess over the median request; of a "
    "lone request its largest part.",
    "hidden": "Work of a class that ran while the time was charged to another one: it delayed "
    "nothing, and is added to nothing.",
    "prefill": "Tokens of prompts that were computed.",
    "decode": "Tokens that were generated.",
    "mode": "Whether the step's kernels came from a CUDA graph or were launched one by one.",
    "launches": "Calls that start kernels or graphs.",
    "busy": "Union of kernels (and graph replays recorded as one piece) over all streams.",
    "idle": "Span minus the union of kernels, copies and memsets. Why it was idle stands in the "
    "scheduling and IO parts.",
    "utilization": "Busy time divided by the span.",
    "span": "From the first to the last record of the rank.",
    "sum": "Plain sum of kernel durations: more than busy where kernels overlap.",
    "grid": "Blocks of the launch in x, y and z.",
    "block": "Threads of a block in x, y and z.",
    "registers": "Registers a thread uses; with the block size they limit how many blocks fit.",
    "shared memory": "Shared memory of a block, static and dynamic.",
    "occupancy": "Warps that can be resident on a multiprocessor, as part of its maximum; "
    "theoretical, from the launch configuration.",
    "also": "Second class of a fused kernel.",
    "wait": "Time ranks spent in the collective before the last one arrived; unknown when seen "
    "from one rank alone.",
    "transfer": "Time of the collective after the last rank had arrived.",
    "busbw": "Bus bandwidth as NCCL's tests define it: what the links carried, in bytes a second.",
    "contended": "Time of the collective while another transfer used the same link.",
    "launch delay": "From the end of the launching call to the start of its kernel.",
    "blocked": "Time an asynchronous call kept its thread.",
    "self": "The range without the ranges nested in it on the same thread.",
    "GPU time": "Union of the kernels launched inside the range.",
    "saving": "Latency saved, summed over the requests named (else wall time), if the cause were "
    "gone. Unknown where it was not judged.",
    "confidence": "How sure the rule is, after checks on the data it rests on.",
    "memory": "Kind of host memory: a copy from pageable memory goes through a staging buffer.",
    "uncertainty": "Half the width of the interval in which the clock offset must lie.",
    "offset": "Clock offset of the rank that was removed before comparing ranks.",
}
"""Column heads and figures."""
