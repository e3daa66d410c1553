/* SPDX-License-Identifier: MIT */
/* descant bench exchange: how fast trainers of one machine, or ranks of an MPI job,
 * exchange a vector.
 *
 * shared and attached drive the fabric itself: begin, and poll to the end, without
 * merging. shared: the vector lies in memory that peers read in place. attached: it is
 * the caller's; for a mean what the fabric copies of it is timed too, an elastic exchange
 * reads it where it is. buffer: descant_mean on a caller's buffer, as the plan allreduce
 * does it. Under --sync-cpu these rest after each burst of a millisecond until it is paid
 * for. A run lasts from the first trainer's start to the last one's end
 * (CLOCK_MONOTONIC is one for all processes); the figure is the median of the runs after
 * warm-up. Under --again they follow on each other, and it is the mean. memcpy is
 * measured by one trainer while the others are asleep. Bytes a second are the vector's
 * bytes by that time. */
#include "base/budget.h"
#include "bench.h"
#include "fabric/fabric.h"
#include "kernels/kernels.h"
#include "link/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    MAX_RUNS = 1001,
    WARM = 3,
    MEAN = 0,
    ELASTIC = 1,
    SHARED = 0,
    ATTACHED = 1,
    BUFFER = 2
};

struct exchange_options {
    int what, memory;
    int64_t trainers, bytes, runs;
    const char *link, *job;
    double sync_cpu;
    bool again, json;
    char suffix[64];            /* of the job's name */
};

#define AT(field) offsetof(struct exchange_options, field)
static const struct option options[] = {
    {.name = "what",
     .type = OPTION_CHOICE,
     .offset = AT(what),
     .choices = "mean|elastic",
     .help = "the exchange"},
    {.name = "memory",
     .type = OPTION_CHOICE,
     .offset = AT(memory),
     .choices = "shared|attached|buffer",
     .help = "where the vector is"},
    {.name = "trainers",
     .type = OPTION_INT,
     .offset = AT(trainers),
     .low = 1,
     .high = BENCH_MAX_TRAINERS,
     .help = "processes"},
    {.name = "bytes",
     .type = OPTION_BYTES,
     .offset = AT(bytes),
     .low = 4096,
     .high = 1e12,
     .help = "of the vector"},
    {.name = "runs",
     .type = OPTION_INT,
     .offset = AT(runs),
     .low = 15,
     .high = MAX_RUNS,
     .help = "timed runs; 21, and 501 below 1 MiB"},
    {.name = "link",
     .type = OPTION_TEXT,
     .offset = AT(link),
     .help = "emulated: 1gbit,1ms, or none"},
    {.name = "job",
     .type = OPTION_TEXT,
     .offset = AT(job),
     .help = "this is one rank, as RANK and WORLD_SIZE say, of the job at tcp:HOST:PORT"},
    {.name = "sync-cpu",
     .type = OPTION_REAL,
     .offset = AT(sync_cpu),
     .low = 0.0001,
     .high = 1,
     .help = "the share of a core that exchanges may use, as a shadow's; not of buffer"},
    {.name = "again",
     .type = OPTION_BOOL,
     .offset = AT(again),
     .help = "run after run, without a barrier, as a training loop does; the mean time"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = AT(json),
     .help = "one JSON object on a line"},
};
#undef AT
enum { N_OPTIONS = sizeof options / sizeof *options };

struct exchange_result {
    uint64_t start_ns[MAX_RUNS], end_ns[MAX_RUNS];
    double memcpy_gb_per_s, cpu_ms;     /* cpu: of this process, a run */
};

struct exchange_side {
    const struct exchange_options *o;
    struct bench *bench;
    bool is_rank;               /* that a launcher has started; bench has no other
                                   trainers to wait for */
    int rank;
    struct budget spent;
    struct fabric *f;           /* or */
    struct descant *job;
    float *w;
    size_t n;                   /* floats that count */
    struct extent live_extent, copy_extent;
    struct vector live, copy;
};

static bool say_fabric(const struct exchange_side *s, descant_status status)
{
    if (status != DESCANT_OK)
        fprintf(s->bench->err, "descant: %s: %s\n", descant_status_text(status),
                descant_last_error());
    return status == DESCANT_OK;
}

static void pay(struct exchange_side *s)
{
    if (s->o->sync_cpu >= 1 || !budget_burst_over(&s->spent))
        return;
    budget_pay(&s->spent, s->o->sync_cpu, UINT64_MAX);
    if (s->spent.until_ns > clock_now_ns())
        clock_sleep_until(s->spent.until_ns);
}

/* The parts are looked at and dropped. A wait spins a little before it sleeps, but not
 * where CPU is paid for. */
static bool drive(struct exchange_side *s, const struct exchange *x)
{
    const struct fabric_type *type = s->f->type;
    struct fabric_part part;
    uint64_t spin_until = 0;
    if (!say_fabric(s, type->begin(s->f, x)))
        return false;
    for (;;) {
        pay(s);
        switch (type->poll(s->f, &part)) {
        case FABRIC_DONE:
            return true;
        case FABRIC_FAILED:
            return say_fabric(s, s->f->status);
        case FABRIC_WAITING:
        case FABRIC_CALLED:
            if (spin_until == 0)
                spin_until = clock_now_ns() + 50000;
            if (s->o->sync_cpu < 1 || clock_now_ns() > spin_until)
                type->wait(s->f, clock_now_ns() + 1000000000u);
            break;
        case FABRIC_WORKED:
        case FABRIC_PART:
            spin_until = 0;
            break;
        }
    }
}

static bool exchange_once(struct exchange_side *s)
{
    if (s->job)
        return descant_mean(s->job, s->w, s->n) == DESCANT_OK;
    bool elastic = s->o->what == ELASTIC;
    bool copies = !elastic && s->f->contribution != NULL && !s->f->any_memory;
    if (copies && s->n >= 1 << 20)
        kernels_best()->copy_past(s->f->contribution, s->w, s->n);
    else if (copies)
        kernels_best()->copy(s->f->contribution, s->w, s->n);
    struct exchange x = {.kind = elastic ? EXCHANGE_ELASTIC : EXCHANGE_MEAN,
                         .in = copies ? &s->copy : &s->live, .n = s->live.n, .weight = 1,
                         .alpha = 0.5};
    return drive(s, &x);
}

/* The trainers all meet in a first state, as a job's start makes them. */
static bool start_fabric(struct exchange_side *s)
{
    bool elastic = s->o->what == ELASTIC, in_place = s->o->memory == SHARED;
    size_t n = fabric_round_up(s->n);
    struct fabric_start start = {.manifest = "bench\n", .n = n, .room = n,
                                 .in_place = in_place, .collective = !elastic,
                                 .center = elastic, .threads = 1};
    s->w = in_place ? s->f->type->alloc(s->f, 0, n) : memory_take_array(n, sizeof *s->w);
    if (!s->w)
        return say_fabric(s, DESCANT_MEMORY);
    bench_fill(s->w, s->n, 1);
    if (!say_fabric(s, s->f->type->start(s->f, &start)))
        return false;
    s->live_extent = (struct extent){.n = n, .p = s->w};
    s->copy_extent = (struct extent){.n = n, .p = s->f->contribution};
    s->live = (struct vector){n, 1, &s->live_extent};
    s->copy = (struct vector){n, 1, &s->copy_extent};
    if (s->f->contribution)
        memcpy(s->f->contribution, s->w, s->n * sizeof *s->w);
    struct exchange x = {.kind = EXCHANGE_STATE, .n = n,
                         .in = s->f->contribution ? &s->copy : &s->live};
    return drive(s, &x);
}

static bool open_side(struct exchange_side *s)
{
    char address[192];
    const struct exchange_options *o = s->o;
    if (o->memory == BUFFER) {
        struct descant_options d = descant_options_default();
        snprintf(address, sizeof address, "shm:%s%s", s->bench->name, o->suffix);
        d.job = s->is_rank ? o->job ? o->job : "mpi" : address;
        d.plan = "allreduce";
        d.rank = s->rank;
        d.size = s->is_rank ? 0 : s->bench->trainers;
        d.log = cli_log;
        d.log_user = s->bench->err;
        if (descant_open(&s->job, &d) != DESCANT_OK)
            return false;
        s->w = memory_take_array(s->n, sizeof *s->w);
        return s->w && descant_alloc(s->job, "w", s->n) &&
               descant_start(s->job) == DESCANT_OK;
    }
    snprintf(address, sizeof address, "%s%s", s->bench->name, o->suffix);
    struct fabric_options f = {
        .address = address, .rank = s->rank, .size = s->bench->trainers, .start_s = 30};
    const struct fabric_type *type = s->is_rank ? &fabric_mpi : &fabric_shm;
    if (s->is_rank)
        f = (struct fabric_options){.rank = -1, .start_s = 30};
    if (o->job) {
        const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
        type = &fabric_tcp;
        f.address = o->job + strlen("tcp:");
        f.rank = rank ? atoi(rank) : -1;
        f.size = size ? atoi(size) : 0;
    }
    return say_fabric(s, type->open(&s->f, &f)) && start_fabric(s);
}

static void close_side(struct exchange_side *s)
{
    bool own = s->o->memory != SHARED;
    if (s->f)
        s->f->type->close(s->f);
    if (s->job)
        descant_close(s->job);
    if (own)
        memory_give(s->w);
}

/* GB/s copied, bytes ÷ time, by one core; the median of 15. */
static double measure_memcpy(size_t bytes)
{
    char *from = memory_take(bytes), *to = memory_take(bytes);
    double seconds[15], result = 0;
    if (from && to) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        for (int i = 0; i < 15; i++) {
            uint64_t start = clock_now_ns();
            memcpy(to, from, bytes);
            __asm__ volatile("" : : "r"(to) : "memory");
            seconds[i] = (double)(clock_now_ns() - start) * 1e-9;
        }
        result = (double)bytes / bench_percentile(seconds, 15, 0.5) / 1e9;
    }
    memory_give(from);
    memory_give(to);
    return result;
}

/* Over MPI one mean of a float is what all wait for; elastic exchanges there need nobody.
 */
static bool barrier(struct exchange_side *s)
{
    struct exchange x = {.kind = EXCHANGE_MEAN, .in = &s->live, .n = 1, .weight = 1};
    float one = 1;
    if (!s->is_rank)
        return bench_barrier(s->bench, s->bench->trainers);
    if (s->job)
        return descant_mean(s->job, &one, 1) == DESCANT_OK;
    if (s->f->contribution)
        x.in = &s->copy;
    return s->o->what == ELASTIC || drive(s, &x);
}

static double process_cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static bool measure(struct exchange_side *s, struct exchange_result *r)
{
    const struct exchange_options *o = s->o;
    bool good = true;
    double cpu_ms = 0;
    for (int64_t i = -WARM; good && i < o->runs; i++) {
        if (!o->again || i <= 0) {
            bench_fill(s->w, s->n,
                       (uint64_t)(s->rank + 1) * 1000003u + (uint64_t)(i + WARM));
            good = barrier(s);
        }
        uint64_t start = clock_now_ns();
        cpu_ms -= i >= 0 ? process_cpu_ms() : 0;
        good = good && exchange_once(s);
        if (i >= 0) {
            cpu_ms += process_cpu_ms();
            r->start_ns[i] = start;
            r->end_ns[i] = clock_now_ns();
        }
    }
    r->cpu_ms = cpu_ms / (double)o->runs;
    return good && barrier(s);
}

static bool trainer(struct bench *bench, int rank, const void *how, void *result)
{
    const struct exchange_options *o = how;
    struct exchange_result *r = result;
    struct exchange_side s = {
        .o = o, .bench = bench, .rank = rank, .n = (size_t)o->bytes / sizeof(float)};
    budget_begin(&s.spent, 1, 0);
    if (rank == 0)
        r->memcpy_gb_per_s = measure_memcpy((size_t)o->bytes);
    bool good = bench_barrier(bench, bench->trainers) && open_side(&s) && measure(&s, r);
    close_side(&s);
    return good;
}

/* From the first trainer's start of run i to the last one's end of run j. */
static double span_ms(const struct exchange_result *results,
                      const struct exchange_options *o, int64_t i, int64_t j)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (int64_t k = 0; k < o->trainers; k++) {
        first = results[k].start_ns[i] < first ? results[k].start_ns[i] : first;
        last = results[k].end_ns[j] > last ? results[k].end_ns[j] : last;
    }
    return (double)(last - first) * 1e-6;
}

static double run_ms(const struct exchange_result *results,
                     const struct exchange_options *o)
{
    static double ms[MAX_RUNS];
    if (o->again)
        return span_ms(results, o, 0, o->runs - 1) / (double)o->runs;
    for (int64_t i = 0; i < o->runs; i++)
        ms[i] = span_ms(results, o, i, i);
    return bench_percentile(ms, (size_t)o->runs, 0.5);
}

static void report(const struct cli *cli, const struct exchange_options *o, double ms,
                   double memcpy_gb, double cpu_ms)
{
    char what[16], memory[16];
    option_write(&options[0], o, what, sizeof what);
    option_write(&options[1], o, memory, sizeof memory);
    double gb = (double)o->bytes / ms / 1e6;
    if (!o->json) {
        cli_say(cli->out, "exchange", "%s, memory %s, %d trainers, %lld bytes", what,
                memory, (int)o->trainers, (long long)o->bytes);
        cli_say(cli->out, o->again ? "time, mean" : "time, median", "%.4f ms", ms);
        cli_say(cli->out, "speed", "%.2f GB/s", gb);
        cli_say(cli->out, "memcpy, one core", "%.2f GB/s", memcpy_gb);
        cli_say(cli->out, "CPU of rank 0", "%.1f ms", cpu_ms);
        return;
    }
    struct json json;
    json_begin(&json, cli->out);
    json_text(&json, "bench", "exchange");
    json_text(&json, "what", what);
    json_text(&json, "memory", memory);
    json_int(&json, "trainers", o->trainers);
    json_int(&json, "bytes", o->bytes);
    json_int(&json, "again", o->again);
    json_real(&json, "ms", ms);
    json_real(&json, "gb_per_s", gb);
    json_real(&json, "memcpy_gb_per_s", memcpy_gb);
    json_real(&json, "cpu_ms", cpu_ms);
    if (*o->suffix) {
        json_text(&json, "link", o->link);
        json_text(&json, "note", "emulated, no network CPU");
    }
    json_end(&json);
}

/* As a rank that a launcher has started. Clocks of other hosts are not ours: the figure
 * is rank 0's own time. */
static bool run_rank(const struct cli *cli, struct exchange_options *o)
{
    struct exchange_result *r = calloc(1, sizeof *r);
    struct bench bench = {.err = cli->err};
    struct exchange_side s = {.o = o,
                              .bench = &bench,
                              .is_rank = true,
                              .rank = -1,
                              .n = (size_t)o->bytes / sizeof(float)};
    struct descant_members members = {0};
    if (r)
        r->memcpy_gb_per_s = measure_memcpy((size_t)o->bytes);
    bool good = r && open_side(&s);
    if (good && s.job)
        good = descant_members(s.job, &members) == DESCANT_OK;
    else if (good)
        members = (struct descant_members){.rank = s.f->rank, .size = atomic_load(&s.f->members)};
    good = good && measure(&s, r);
    o->trainers = 1;
    double ms = good ? run_ms(r, o) : 0, copied = good ? r->memcpy_gb_per_s : 0;
    close_side(&s);
    o->trainers = members.size;
    if (good && members.rank == 0)
        report(cli, o, ms, copied, r->cpu_ms);
    free(r);
    return good;
}

int bench_exchange(const struct cli *cli)
{
    struct exchange_options o = {
        .trainers = 2, .bytes = 64 << 20, .link = "none", .sync_cpu = 1};
    double rate, rtt;
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    if (!cli_link_ok(cli, o.link, o.suffix, sizeof o.suffix, &rate, &rtt))
        return CLI_BAD_USE;
    if (o.what == ELASTIC && o.memory == BUFFER)
        return cli_bad_use(cli, "--memory buffer is only for --what mean");
    if (o.memory == BUFFER && o.sync_cpu < 1)
        return cli_bad_use(cli,
                           "--sync-cpu does not bound --memory buffer: its caller waits");
    if (o.job && strncmp(o.job, "tcp:", 4) != 0)
        return cli_bad_use(cli, "--job %s: allowed is tcp:HOST:PORT", o.job);
    if (o.runs == 0)
        o.runs = o.bytes < 1 << 20 ? 501 : 21;
    if (o.job || mpi_module_launcher() != MPI_LAUNCHER_NONE)
        return run_rank(cli, &o) ? CLI_DONE : CLI_FAILED;
    struct bench bench = {.trainers = (int)o.trainers, .err = cli->err};
    struct exchange_result *results = calloc((size_t)o.trainers, sizeof *results);
    bool good = results && bench_run(&bench, trainer, &o, results, sizeof *results);
    if (good)
        report(cli, &o, run_ms(results, &o), results[0].memcpy_gb_per_s,
               results[0].cpu_ms);
    free(results);
    return good ? CLI_DONE : CLI_FAILED;
}
