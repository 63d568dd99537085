#include "sink.h"

#include <string.h>

#include "clock.h"
#include "markers.h"

static const uint32_t ROW_BYTES[ROW_KINDS] = {
    [ROW_KERNEL] = sizeof(RowKernel),     [ROW_COPY] = sizeof(RowCopy),
    [ROW_MEMSET] = sizeof(RowCopy),       [ROW_API] = sizeof(RowApi),
    [ROW_SYNC] = sizeof(RowSync),         [ROW_GRAPH] = sizeof(RowGraph),
    [ROW_OVERHEAD] = sizeof(RowOverhead), [ROW_EXTERNAL] = sizeof(RowExternal),
    [ROW_JIT] = sizeof(RowJit),           [ROW_DEVICE] = sizeof(RowDevice),
    [ROW_MARKER] = sizeof(RowMarker),
};

/* Further than this in the future, a time is on another client's clock. */
enum { FUTURE_NS = 1000000000 };

static void write_stage(Sink *self, enum RowKind kind)
{
    Stage *stage = &self->stages[kind];
    Cell cell = {.a = (int64_t)self->now, .c = kind, .d = ROW_BYTES[kind]};
    if (!stage->rows)
        return;
    if (!segment_payload(&self->segment, cell, RCA_BUFFER, stage->data,
                         (size_t)stage->rows * ROW_BYTES[kind]))
        segment_drop(&self->segment, stage->rows - 1);
    stage->rows = 0;
}

/* The place of the next row, zeroed. */
static void *row(Sink *self, enum RowKind kind)
{
    Stage *stage = &self->stages[kind];
    if ((stage->rows + 1) * ROW_BYTES[kind] > STAGE_BYTES)
        write_stage(self, kind);
    void *at = stage->data + (size_t)stage->rows++ * ROW_BYTES[kind];
    return memset(at, 0, ROW_BYTES[kind]);
}

void sink_clock(Sink *self, ClockReading reading)
{
    if (!self->foreign_clock)
        self->first = reading;
    self->foreign_clock = true;
    self->latest = reading;
}

/* A time on our clock. */
static uint64_t ours(const Sink *self, uint64_t time)
{
    int64_t passed = self->latest.theirs - self->first.theirs;
    if (!self->foreign_clock || !time || passed <= 0)
        return time;
    double rate = (double)(self->latest.ours - self->first.ours) / (double)passed;
    double since = (double)((int64_t)time - self->latest.theirs) * rate;
    return (uint64_t)(self->latest.ours + (int64_t)since);
}

/* Whether a record is to be written, and its times on our clock; counts those that have none. */
static bool wanted(Sink *self, uint64_t *start, uint64_t *end)
{
    if (*start == 0 || *end == 0) {
        self->seen.no_timestamp++;
        return gate_wants(&self->gate, self->now);
    }
    *start = ours(self, *start);
    *end = ours(self, *end);
    if (*start > self->now + FUTURE_NS) {
        self->seen.foreign_time++;
        return false;
    }
    return gate_wants(&self->gate, *start);
}

static void kernel(Sink *self, const CuptiKernel *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    self->queued += from->queued != 0;
    RowKernel *to = row(self, ROW_KERNEL);
    *to = (RowKernel){
        .start = start,
        .end = end,
        .graph_node = from->graph_node,
        .correlation = from->correlation,
        .name = names_id(&self->names, &self->segment, from->name),
        .stream = from->stream,
        .context = from->context,
        .graph = from->graph,
        .shared = (uint32_t)(from->shared_static + from->shared_dynamic),
        .local = from->local_per_thread,
        .registers = from->registers,
        .device = (uint16_t)from->device,
        .launch = from->launch_type,
        .queued = ours(self, from->queued),
    };
    for (int i = 0; i < 3; i++) {
        to->grid[i] = from->grid[i];
        to->block[i] = (uint16_t)from->block[i];
        to->cluster[i] = (uint8_t)from->cluster[i];
    }
}

static void copy(Sink *self, const CuptiMemcpy *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowCopy *)row(self, ROW_COPY) = (RowCopy){
        .start = start,
        .end = end,
        .bytes = from->bytes,
        .graph_node = from->graph_node,
        .correlation = from->correlation,
        .stream = from->stream,
        .context = from->context,
        .graph = from->graph,
        .device = (uint16_t)from->device,
        .src_device = (uint16_t)from->device,
        .dst_device = (uint16_t)from->device,
        .copy = from->copy,
        .src = from->src,
        .dst = from->dst,
        .flags = from->flags,
    };
}

static void peer_copy(Sink *self, const CuptiPeerCopy *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowCopy *)row(self, ROW_COPY) = (RowCopy){
        .start = start,
        .end = end,
        .bytes = from->bytes,
        .graph_node = from->graph_node,
        .correlation = from->correlation,
        .stream = from->stream,
        .context = from->context,
        .graph = from->graph,
        .device = (uint16_t)from->device,
        .src_device = (uint16_t)from->src_device,
        .dst_device = (uint16_t)from->dst_device,
        .copy = from->copy,
        .src = from->src,
        .dst = from->dst,
        .flags = from->flags,
    };
}

static void memory_set(Sink *self, const CuptiMemset *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowCopy *)row(self, ROW_MEMSET) = (RowCopy){
        .start = start,
        .end = end,
        .bytes = from->bytes,
        .graph_node = from->graph_node,
        .correlation = from->correlation,
        .stream = from->stream,
        .context = from->context,
        .graph = from->graph,
        .device = (uint16_t)from->device,
        .src = (uint8_t)from->memory,
        .flags = (uint8_t)from->flags,
    };
}

static uint32_t api_name(Sink *self, uint32_t kind, uint32_t cbid)
{
    bool runtime = kind == CUPTI_KIND_RUNTIME;
    const char *name = NULL;
    if (cbid < API_IDS && self->api_ids[runtime][cbid])
        return self->api_ids[runtime][cbid];
    self->cupti->GetCallbackName(runtime ? CUPTI_DOMAIN_RUNTIME : CUPTI_DOMAIN_DRIVER, cbid, &name);
    uint32_t id = names_id(&self->names, &self->segment, name);
    if (cbid < API_IDS)
        self->api_ids[runtime][cbid] = id;
    return id;
}

static MarkerHalf *half(Sink *self, uint32_t correlation)
{
    MarkerHalf *found = &self->halves[correlation % MARKER_HALVES];
    if (found->correlation != correlation)
        *found = (MarkerHalf){.correlation = correlation};
    return found;
}

/* Written once both halves are here, and whatever the gate says: a marker holds on after a pause. */
static void marker(Sink *self, MarkerHalf *of)
{
    Marker said;
    if (!of->time || !markers_read(of->id, &said))
        return;
    *(RowMarker *)row(self, ROW_MARKER) = (RowMarker){
        .time = of->time,
        .step = said.step,
        .correlation = of->correlation,
        .thread = of->thread,
        .sequence = said.sequence,
        .state = said.state,
        .within = said.within,
    };
    *of = (MarkerHalf){0};
}

static void marking_call(Sink *self, const CuptiApi *from)
{
    MarkerHalf *of = half(self, from->correlation);
    of->time = ours(self, from->start);
    of->thread = from->thread;
    marker(self, of);
}

static void api(Sink *self, const CuptiApi *from)
{
    if (from->kind == CUPTI_KIND_DRIVER && from->cbid == markers_cbid()) {
        marking_call(self, from);
        return;
    }
    if (self->options->gpu == GPU_KERNELS)
        return; /* while functions are switched off, some of their calls come through */

    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowApi *)row(self, ROW_API) = (RowApi){
        .start = start,
        .end = end,
        .correlation = from->correlation,
        .thread = from->thread,
        .name = api_name(self, from->kind, from->cbid),
        .result = from->result,
    };
}

static void synchronisation(Sink *self, const CuptiSync *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowSync *)row(self, ROW_SYNC) = (RowSync){
        .start = start,
        .end = end,
        .correlation = from->correlation,
        .stream = from->stream,
        .context = from->context,
        .type = from->type,
    };
}

static void graph(Sink *self, const CuptiGraph *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowGraph *)row(self, ROW_GRAPH) = (RowGraph){
        .start = start,
        .end = end,
        .correlation = from->correlation,
        .stream = from->stream,
        .context = from->context,
        .graph = from->graph,
        .device = from->device,
    };
}

static void overhead(Sink *self, const CuptiOverhead *from)
{
    enum { OBJECT_THREAD = 2 };
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowOverhead *)row(self, ROW_OVERHEAD) = (RowOverhead){
        .start = start,
        .end = end,
        .kind = from->overhead,
        .thread = from->object == OBJECT_THREAD ? from->thread : 0,
    };
}

static void external(Sink *self, const CuptiExternal *from)
{
    Marker said;
    if (from->external_kind != CUPTI_EXTERNAL_CUSTOM2)
        return;
    if (self->options->steps && markers_read(from->id, &said)) {
        MarkerHalf *of = half(self, from->correlation);
        of->id = from->id;
        marker(self, of);
        return;
    }
    if (!self->options->external || !gate_wants(&self->gate, self->now))
        return;
    *(RowExternal *)row(self, ROW_EXTERNAL) = (RowExternal){
        .id = from->id,
        .correlation = from->correlation,
        .kind = from->external_kind,
    };
}

static void jit(Sink *self, const CuptiJit *from)
{
    uint64_t start = from->start, end = from->end;
    if (!wanted(self, &start, &end))
        return;
    *(RowJit *)row(self, ROW_JIT) = (RowJit){
        .start = start,
        .end = end,
        .correlation = from->correlation,
        .device = from->device,
        .entry = from->entry,
        .operation = from->operation,
    };
}

/* Devices are written whatever the gate says: a report without them knows no limits. */
static void device(Sink *self, const CuptiDevice *from)
{
    RowDevice *at = row(self, ROW_DEVICE);
    *at = (RowDevice){
        .memory_bytes = from->memory_bytes,
        .memory_bytes_s = from->memory_bandwidth * 1000,
        .clock_hz = (uint64_t)from->core_clock * 1000,
        .device = from->id,
        .name = names_id(&self->names, &self->segment, from->name),
        .sms = from->sms,
        .warp = from->warp,
        .warps_per_sm = from->warps_per_sm,
        .blocks_per_sm = from->blocks_per_sm,
        .registers_per_sm = from->registers_per_sm,
        .shared_per_sm = from->shared_per_sm,
        .major = from->major,
        .minor = from->minor,
        .l2_bytes = from->l2_bytes,
    };
    memcpy(at->uuid, from->uuid, sizeof at->uuid);
}

static void record(Sink *self, const CuptiRecord *from)
{
    const void *any = from;
    switch (from->kind) {
    case CUPTI_KIND_CONCURRENT_KERNEL: kernel(self, any); break;
    case CUPTI_KIND_MEMCPY: copy(self, any); break;
    case CUPTI_KIND_MEMCPY2: peer_copy(self, any); break;
    case CUPTI_KIND_MEMSET: memory_set(self, any); break;
    case CUPTI_KIND_DRIVER:
    case CUPTI_KIND_RUNTIME: api(self, any); break;
    case CUPTI_KIND_SYNCHRONIZATION: synchronisation(self, any); break;
    case CUPTI_KIND_GRAPH_TRACE: graph(self, any); break;
    case CUPTI_KIND_OVERHEAD: overhead(self, any); break;
    case CUPTI_KIND_EXTERNAL_CORRELATION: external(self, any); break;
    case CUPTI_KIND_JIT: jit(self, any); break;
    case CUPTI_KIND_DEVICE: device(self, any); break;
    default: self->seen.unknown_kind++;
    }
}

void sink_buffer(void *context, const FullBuffer *buffer)
{
    Sink *self = context;
    CuptiRecord *at = NULL;
    self->now = (uint64_t)clock_monotonic();
    while (self->cupti->ActivityGetNextRecord(buffer->data, buffer->valid, &at) == CUPTI_OK)
        record(self, at);
}

void sink_info(Sink *self, const char *key, int64_t number, const char *value)
{
    Cell cell = {.a = clock_monotonic(), .b = number};
    cell.c = names_id(&self->names, &self->segment, key);
    cell.d = names_id(&self->names, &self->segment, value);
    segment_cell(&self->segment, cell, RCA_INFO, 0);
}

/* Counts are written as increments, so that the sum over all cells of a process is right. */
static void tell(Sink *self, const char *key, uint64_t seen, uint64_t *told)
{
    if (seen != *told)
        sink_info(self, key, (int64_t)(seen - *told), NULL);
    *told = seen;
}

static void tell_counts(Sink *self)
{
    size_t lost = 0;
    if (self->cupti->ActivityGetNumDroppedRecords(NULL, 0, &lost) == CUPTI_OK)
        self->seen.dropped += lost;
    self->seen.foreign_buffers = buffers_foreign();
    self->seen.overrun = buffers_overrun();
    tell(self, "gpu.dropped", self->seen.dropped, &self->told.dropped);
    tell(self, "gpu.no_timestamp", self->seen.no_timestamp, &self->told.no_timestamp);
    tell(self, "gpu.foreign_time", self->seen.foreign_time, &self->told.foreign_time);
    tell(self, "gpu.foreign_buffers", self->seen.foreign_buffers, &self->told.foreign_buffers);
    tell(self, "gpu.unknown_kind", self->seen.unknown_kind, &self->told.unknown_kind);
    tell(self, "gpu.overrun_bytes", self->seen.overrun, &self->told.overrun);
}

static void forget_ids(Sink *self)
{
    names_clear(&self->names);
    memset(self->api_ids, 0, sizeof self->api_ids);
}

/* Follows a segment that has grown large by a new one, as long as the run may grow. */
static void rotate(Sink *self)
{
    uint64_t total = self->written + self->segment.bytes;
    if (self->segment.stopped || self->segment.bytes < self->options->segment_bytes)
        return;
    if (self->options->most_bytes && total >= self->options->most_bytes) {
        sink_info(self, "gpu.size_limit", (int64_t)total, NULL);
        segment_stop(&self->segment, 0);
        return;
    }
    self->written = total;
    segment_close(&self->segment);
    forget_ids(self);
    segment_open(&self->segment, self->options->run, "rca-llm-gpu");
}

bool sink_open(Sink *self, const Cupti *cupti, const Options *options, bool open)
{
    memset(self, 0, sizeof *self);
    self->cupti = cupti;
    self->options = options;
    gate_start(&self->gate, open);
    return segment_open(&self->segment, options->run, "rca-llm-gpu");
}

void sink_flush(Sink *self)
{
    for (int kind = 1; kind < ROW_KINDS; kind++)
        write_stage(self, kind);
    tell_counts(self);
    rotate(self);
}

void sink_gap_begin(Sink *self, uint64_t time, const char *reason)
{
    if (self->gap.cell)
        return;
    uint32_t id = names_id(&self->names, &self->segment, reason);
    Cell *cell = segment_reserve(&self->segment, 1);
    if (!cell)
        return;
    cell_commit(cell, (Cell){.a = time, .c = id}, RCA_GAP, 0);
    self->gap.cell = cell;
    self->gap.block = block_hold(self->segment.block);
}

void sink_gap_end(Sink *self, uint64_t time)
{
    if (!self->gap.cell)
        return;
    __atomic_store_n(&self->gap.cell->b, time, __ATOMIC_RELEASE);
    block_release(self->gap.block);
    self->gap.cell = NULL;
}

void sink_close(Sink *self)
{
    segment_anchor(&self->segment);
    segment_close(&self->segment);
    forget_ids(self);
}
