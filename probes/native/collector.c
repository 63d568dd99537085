#include "collector.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "activity.h"
#include "clock.h"
#include "control.h"
#include "markers.h"
#include "sink.h"

#define MS 1000000LL

enum { TICK_MS = 50, FLUSH_TICKS = 10, ANCHOR_TICKS = 20, EXIT_WAIT_S = 2 };
enum Request { NOTHING, FLUSH, RELEASE, RECLAIM };

static Options options;
static Cupti cupti;
static ActivityState activity;
static Sink sink;
static pthread_t thread;
static atomic_bool collecting;
static atomic_int owner; /* the process that collects; a forked child is another */

/* What other threads ask of the collector's thread; never held around a call of CUPTI. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked, answered;
static enum Request request;
static bool stopping;

static bool is_ours(void)
{
    return atomic_load(&owner) == (int)getpid();
}

static struct timespec after_ms(int64_t ms)
{
    int64_t at = clock_monotonic() + ms * MS;
    return (struct timespec){.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
}

static void describe(void)
{
    static const char *const MODES[] = {"off", "kernels", "launches", "full"};
    sink_info(&sink, "gpu.mode", 0, MODES[options.gpu]);
    sink_info(&sink, "gpu.graph", 0, options.graph_level ? "graph" : "node");
    sink_info(&sink, "gpu.cupti", activity.version, activity.found ? cupti.path : NULL);
    sink_info(&sink, "gpu.setup_us", activity.setup_us, NULL);
    sink_info(&sink, "gpu.functions", activity.selected_functions, NULL);
    sink_info(&sink, "gpu.external", options.external, NULL);
    sink_info(&sink, "gpu.steps", markers_cbid() != 0, NULL);
    if (activity.failed)
        sink_info(&sink, "gpu.error", activity.error, activity.failed);
    if (activity.error == CUPTI_MULTIPLE_SUBSCRIBERS)
        sink_info(&sink, "gpu.competitor", 0, activity.competitor);
    atomic_store(&collecting, activity.collecting);
    sink_info(&sink, "gpu.status", activity.collecting,
              activity.collecting ? "collecting" : activity.found ? "refused" : "no libcupti");
}

static void collect(uint32_t flag)
{
    ClockReading reading;
    cupti.ActivityFlushAll(flag);
    if (sink.foreign_clock && !activity_clock(&cupti, &reading))
        sink_clock(&sink, reading);
    buffers_drain(sink_buffer, &sink);
    sink_flush(&sink);
}

/* Whether CUPTI's kinds follow the gate. Calls of the APIs must not: where those kinds were off
 * while a graph was captured, its kernels lose their launch. */
static bool rests(void)
{
    return options.rests && options.gpu == GPU_KERNELS;
}

static void rest_or_wake(bool open)
{
    if (!rests() || !activity.collecting || activity.recording == open)
        return;
    if (open) {
        activity_enable(&cupti, &options, &activity);
        if (activity.failed)
            describe();
    } else {
        collect(CUPTI_FLUSH_COMPLETED);
        activity_stop(&cupti, &activity);
    }
}

/* What CUPTI still holds is judged by when the gate changed, not by when that is noticed here. */
static void follow_gate(void)
{
    bool open = control_gate();
    if (open != gate_open(&sink.gate)) {
        uint64_t since = control_changed((uint64_t)clock_monotonic());
        gate_note(&sink.gate, since, open);
        if (open)
            sink_gap_end(&sink, since);
        else
            sink_gap_begin(&sink, since, "paused");
    }
    rest_or_wake(open);
}

static void stopped(const char *why)
{
    markers_end();
    sink_gap_begin(&sink, (uint64_t)clock_monotonic(), why);
    activity.collecting = false;
    atomic_store(&collecting, false);
}

/* Once asked when kernels were queued, CUPTI takes device buffers for them and gives none back, not
 * even when it is asked no more. With its last one, kernels of graphs would be lost without a word. */
static void watch_queued(void)
{
    if (!options.queued || !activity.collecting || sink.queued < options.queued_most)
        return;
    options.queued = false;
    sink_info(&sink, "gpu.queued_limit", (int64_t)sink.queued, NULL);
    activity_stop(&cupti, &activity);
    stopped("queued limit");
}

/* The kinds go off too: the other client would be handed records that it never asked for. */
static void give_way(void)
{
    collect(CUPTI_FLUSH_COMPLETED);
    activity_stop(&cupti, &activity);
    stopped("displaced");
}

static void take_back(void)
{
    ClockReading reading;
    /* First the other client's buffers go to their owner. */
    cupti.ActivityFlushAll(CUPTI_FLUSH_COMPLETED);
    buffers_forget_outstanding();
    activity_resume(&cupti, &options, &activity, !rests() || control_gate());
    if (!activity_clock(&cupti, &reading))
        sink_clock(&sink, reading);
    sink_gap_end(&sink, (uint64_t)clock_monotonic());
    describe();
}

/* A client that came without telling us is known by its clock alone. It is left in peace. */
static void watch_clock(void)
{
    ClockReading reading;
    if (!activity.collecting || sink.foreign_clock || activity_clock(&cupti, &reading))
        return;
    sink_info(&sink, "gpu.competitor", 0, "a client of CUPTI with its own clock");
    stopped("displaced");
}

static void serve(enum Request what)
{
    if (what == FLUSH && activity.collecting)
        collect(CUPTI_FLUSH_COMPLETED);
    else if (what == RELEASE && activity.collecting)
        give_way();
    else if (what == RECLAIM && !activity.collecting)
        take_back();
}

/* Waits for a tick or a request, and serves the request; false when the process ends. */
static bool wait_and_serve(void)
{
    struct timespec until = after_ms(TICK_MS);
    pthread_mutex_lock(&lock);
    while (!stopping && request == NOTHING)
        if (pthread_cond_timedwait(&asked, &lock, &until) == ETIMEDOUT)
            break;
    enum Request what = request;
    bool more = !stopping;
    pthread_mutex_unlock(&lock);
    serve(what);
    if (what == NOTHING)
        return more;
    pthread_mutex_lock(&lock);
    request = NOTHING;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    return more;
}

static void tick(unsigned count)
{
    follow_gate();
    buffers_refill();
    if (activity.collecting && activity.recording)
        activity_follow_steps(&cupti, &options);
    if (activity.collecting && (count % FLUSH_TICKS == 0 || buffers_pressing()))
        collect(CUPTI_FLUSH_COMPLETED);
    watch_queued();
    if (count % ANCHOR_TICKS == 0) {
        segment_anchor(&sink.segment);
        watch_clock();
    }
}

static void *run(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "rca-llm-gpu");
    bool open = control_gate();
    if (!sink_open(&sink, &cupti, &options, open))
        return NULL;
    if (!open)
        sink_gap_begin(&sink, (uint64_t)clock_monotonic(), "paused");
    describe();
    buffers_refill();
    for (unsigned count = 1; wait_and_serve(); count++)
        tick(count);
    if (activity.collecting)
        collect(CUPTI_FLUSH_FORCED);
    sink_close(&sink);
    return NULL;
}

/* Asks the collector's thread for something and waits for it, within a limit. */
static void ask(enum Request what)
{
    if (!is_ours())
        return;
    struct timespec until = after_ms(EXIT_WAIT_S * 1000);
    pthread_mutex_lock(&lock);
    while (request != NOTHING && !stopping)
        if (pthread_cond_timedwait(&answered, &lock, &until) == ETIMEDOUT)
            break;
    request = what;
    pthread_cond_signal(&asked);
    while (request == what && !stopping)
        if (pthread_cond_timedwait(&answered, &lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&lock);
}

/* Timed throughout: a signal handler may have called exit while its thread held the lock. */
static void at_exit(void)
{
    struct timespec until;
    markers_end(); /* the driver may be gone before the last step ends */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_WAIT_S;
    if (!is_ours() || pthread_mutex_timedlock(&lock, &until) != 0)
        return;
    stopping = true;
    pthread_cond_broadcast(&asked);
    pthread_mutex_unlock(&lock);
    pthread_timedjoin_np(thread, NULL, &until);
}

/* Neither CUPTI nor our thread live on in a forked child: it must not touch either again. */
static void in_child(void)
{
    if (atomic_load(&owner))
        segment_abandon(&sink.segment);
}

static bool start_thread(void)
{
    sigset_t all, before;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&asked, &monotonic);
    pthread_cond_init(&answered, &monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int InitializeInjection(void)
{
    int nobody = 0;
    options_read(&options);
    if (!options.run[0] || options.gpu == GPU_OFF)
        return 1;
    if (!atomic_compare_exchange_strong(&owner, &nobody, (int)getpid()))
        return 1;
    control_open(options.run);
    activity_start(&cupti, &options, &activity, !rests() || control_gate());
    pthread_atfork(NULL, NULL, in_child);
    if (start_thread())
        atexit(at_exit);
    return 1;
}

int rca_llm_gpu_status(void)
{
    int who = atomic_load(&owner);
    return who && who != (int)getpid() ? -1 : who && atomic_load(&collecting);
}

void rca_llm_gpu_flush(void)
{
    ask(FLUSH);
}

void rca_llm_gpu_release(void)
{
    ask(RELEASE);
}

void rca_llm_gpu_reclaim(void)
{
    ask(RECLAIM);
}

void rca_llm_gpu_push_step(uint64_t step)
{
    if (!is_ours())
        return;
    if (options.external && cupti.ActivityPushExternalCorrelationId)
        cupti.ActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CUSTOM2, step);
    markers_push(step);
}

void rca_llm_gpu_pop_step(void)
{
    if (!is_ours())
        return;
    if (options.external && cupti.ActivityPopExternalCorrelationId)
        cupti.ActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CUSTOM2, NULL);
    markers_pop();
}
