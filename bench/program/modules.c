/* SPDX-License-Identifier: MIT */
/* descant bench modules: what control costs the ML modules that it reads out.
 *
 * Modules are processes on one segment that compute gradients of a network without pause:
 * one dense layer of k x k floats, about as many as --bytes says, over batches. Control
 * is a process of its own, which makes a superstep each period. Runs come in pairs, in
 * changing order: with --slow 0 one in which control makes supersteps and one in which it
 * sleeps; else all are with control, and in one of the two the first module computes each
 * gradient so many times before it gives it. The ratio of a pair is of gradients a
 * second: of all modules, or of those that are not slowed. After each change the modules
 * have a fifth of a run to settle. */
#include "bench.h"
#include "bsp/control.h"
#include "descant_ml.h"
#include "nn/nn.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_MODULES = 32, WAIT_S = 60 };

struct modules_options {
    int64_t bytes, modules, batch, slow, pairs;
    double period_ms, run_s;
    bool json;
};

#define AT(field) offsetof(struct modules_options, field)
static const struct option table[] = {
    {"bytes", OPTION_BYTES, AT(bytes), 4096, 1e12, NULL, "size of the model, about"},
    {"modules", OPTION_INT, AT(modules), 1, MOST_MODULES, NULL,
     "processes that give gradients"},
    {"batch", OPTION_INT, AT(batch), 1, 65536, NULL, "examples of a gradient"},
    {"period-ms", OPTION_REAL, AT(period_ms), 1, 60000, NULL, "between two supersteps"},
    {"slow", OPTION_INT, AT(slow), 0, 1000, NULL,
     "times that one module computes each gradient; 0: none is slowed, and control is "
     "compared with none"},
    {"pairs", OPTION_INT, AT(pairs), 1, BENCH_MAX_PAIRS, NULL, "pairs of runs"},
    {"run-s", OPTION_SECONDS, AT(run_s), 0.05, 600, NULL, "seconds of a run"},
    {"json", OPTION_BOOL, AT(json), 0, 0, NULL, "one JSON object on one line"},
};
enum { N_TABLE = sizeof table / sizeof *table };

/* Shared by all processes. */
struct stage {
    _Atomic int slowed;         /* control writes, the first module reads; relaxed */
    struct {
        _Alignas(64) _Atomic uint64_t gradients;    /* the module's own; relaxed */
    } modules[MOST_MODULES];
};

struct how {
    const struct modules_options *o;
    struct model *model;
    struct stage *stage;
    char name[32];
};

/* Of rank 0; the other ranks' stay empty. */
struct result {
    size_t pairs;
    double ratio[BENCH_MAX_PAIRS], of_parts[BENCH_MAX_PAIRS];
    /* gradients a second of all */
    double with[BENCH_MAX_PAIRS], without[BENCH_MAX_PAIRS];
    uint64_t supersteps;
    double superstep_s;
};

/* --- a module --- */

struct module {
    struct descant_ml *ml;
    struct work *work;
    float *g, *inputs, *labels;
};

static bool module_open(struct module *m, const struct how *how)
{
    size_t batch = (size_t)how->o->batch,
           width = (size_t)model_shape(how->model)->n_dense;
    m->g = memory_take_array(model_floats(how->model), sizeof(float));
    m->inputs = memory_take_array(batch * width, sizeof(float));
    m->labels = memory_take_array(batch, sizeof(float));
    if (!m->g || !m->inputs || !m->labels)
        return false;
    bench_fill(m->inputs, batch * width, 2);
    return work_create(&m->work, how->model, batch, NULL) == DESCANT_OK &&
           descant_ml_attach(&m->ml, how->name, WAIT_S) == DESCANT_OK;
}

static void module_close(struct module *m)
{
    descant_ml_detach(m->ml);
    work_destroy(m->work);
    memory_give(m->g);
    memory_give(m->inputs);
    memory_give(m->labels);
}

/* True until the segment has ended. */
static bool module_gives(struct module *m, const struct how *how, int number)
{
    struct descant_ml_model model;
    struct examples batch = {.n = (size_t)how->o->batch,
                             .labels = m->labels,
                             .dense = m->inputs,
                             .n_dense = model_shape(how->model)->n_dense};
    bool slowed = number == 0 &&
                  atomic_load_explicit(&how->stage->slowed, memory_order_relaxed) != 0;
    if (descant_ml_pin(m->ml, &model) != DESCANT_OK)
        return false;
    for (int64_t k = 0; k < (slowed ? how->o->slow : 1); k++)
        model_gradient(m->work, model.values, NULL, &batch, m->g, NULL);
    if (descant_ml_add(m->ml, m->g, batch.n) != DESCANT_OK)
        return false;
    atomic_fetch_add_explicit(&how->stage->modules[number].gradients, 1,
                              memory_order_relaxed);
    return true;
}

static bool be_module(struct bench *bench, const struct how *how, int number)
{
    struct module m = {0};
    nn_thread_init();
    bool good = module_open(&m, how);
    if (!good)
        fprintf(bench->err, "descant: module %d: %s\n", number, descant_last_error());
    good = bench_barrier(bench, (int)how->o->modules + 1) && good;
    while (good && module_gives(&m, how, number))
        continue;
    module_close(&m);
    return good;
}

/* --- control --- */

struct measuring {
    const struct how *how;
    struct control *control;
    struct result *result;
    uint64_t due_ns;
    uint64_t superstep_ns;
};

static void step(void *of, const struct control_piece *piece)
{
    static const struct optimizer sgd = {.kind = OPTIMIZER_SGD};
    (void)of;
    optimizer_step(&sgd, piece->w, piece->g, NULL, piece->n, 1e-6, piece->step);
}

/* Supersteps, or none, for so long. */
static bool pass_time(struct measuring *m, bool supersteps, double seconds)
{
    uint64_t until = clock_now_ns() + (uint64_t)(seconds * 1e9), now;
    uint64_t period = (uint64_t)(m->how->o->period_ms * 1e6);
    struct superstep s;
    while ((now = clock_now_ns()) < until) {
        if (!supersteps || m->due_ns > now) {
            clock_sleep_until(supersteps && m->due_ns < until ? m->due_ns : until);
            continue;
        }
        m->due_ns = now + period;
        if (control_superstep(m->control, &s) != DESCANT_OK)
            return false;
        m->superstep_ns += clock_now_ns() - now;
        m->result->supersteps++;
    }
    return true;
}

static void look(const struct how *how, uint64_t *gradients)
{
    for (int k = 0; k < how->o->modules; k++)
        gradients[k] = atomic_load_explicit(&how->stage->modules[k].gradients,
                                            memory_order_relaxed);
}

/* Gradients a second of each module. */
static bool one_run(struct measuring *m, bool supersteps, bool slowed, double *per_s)
{
    const struct modules_options *o = m->how->o;
    uint64_t before[MOST_MODULES], after[MOST_MODULES];
    atomic_store_explicit(&m->how->stage->slowed, slowed, memory_order_relaxed);
    if (!pass_time(m, supersteps, 0.2 * o->run_s))
        return false;
    look(m->how, before);
    uint64_t began = clock_now_ns();
    if (!pass_time(m, supersteps, o->run_s))
        return false;
    look(m->how, after);
    double seconds = (double)(clock_now_ns() - began) * 1e-9;
    for (int k = 0; k < o->modules; k++)
        per_s[k] = (double)(after[k] - before[k]) / seconds;
    return true;
}

static double sum(const double *x, int from, int to)
{
    double all = 0;
    for (int k = from; k < to; k++)
        all += x[k];
    return all;
}

static bool one_pair(struct measuring *m, size_t i)
{
    const struct modules_options *o = m->how->o;
    struct result *r = m->result;
    double changed[MOST_MODULES], plain[MOST_MODULES];
    int n = (int)o->modules, first = o->slow ? 1 : 0;
    for (size_t k = 0; k < 2; k++) {
        bool change = (k == 0) == (i % 2 == 0);
        bool supersteps = o->slow || change;
        if (!one_run(m, supersteps, o->slow && change, change ? changed : plain))
            return false;
    }
    double parts = sum(plain, 1, n) + plain[0] / (double)(o->slow ? o->slow : 1);
    r->ratio[i] = sum(changed, first, n) / sum(plain, first, n);
    r->of_parts[i] = sum(changed, 0, n) / parts;
    r->with[i] = sum(changed, 0, n);
    r->without[i] = sum(plain, 0, n);
    r->pairs = i + 1;
    return true;
}

static bool measure(struct measuring *m)
{
    double warm[MOST_MODULES];
    bool good = one_run(m, true, false, warm);
    m->superstep_ns = m->result->supersteps = 0;
    for (size_t i = 0; good && i < (size_t)m->how->o->pairs; i++)
        good = one_pair(m, i);
    if (m->result->supersteps)
        m->result->superstep_s =
            (double)m->superstep_ns * 1e-9 / (double)m->result->supersteps;
    return good;
}

static bool be_control(struct bench *bench, const struct how *how, struct result *result)
{
    struct log log = {.fn = cli_log, .user = bench->err, .rank = -1};
    size_t n = model_floats(how->model);
    float *w = memory_take_array(n, sizeof *w);
    const struct segment_part part = {.name = "w", .n = n};
    const struct segment_options segment = {.name = how->name,
                                            .slots = (int)how->o->modules,
                                            .bound = 1000000000,
                                            .parts = &part,
                                            .n_parts = 1,
                                            .model = w,
                                            .version = 1,
                                            .log = &log};
    struct local *local = NULL;
    struct measuring m = {.how = how, .result = result};
    bool good = w != NULL;
    if (good)
        model_init(how->model, w, 1);
    good = good && local_open(&local, &segment) == DESCANT_OK;
    const struct control_options control = {.locals = &local,
                                            .n_locals = 1,
                                            .n = n,
                                            .w = w,
                                            .version = 1,
                                            .bound = segment.bound,
                                            .step = step,
                                            .of = (void *)(uintptr_t)how,
                                            .log = &log};
    good = good && control_create(&m.control, &control) == DESCANT_OK;
    good = bench_barrier(bench, (int)how->o->modules + 1) && good && measure(&m);
    control_destroy(m.control);
    local_close(local);
    memory_give(w);
    return good;
}

static bool be(struct bench *bench, int rank, const void *how, void *result)
{
    return rank == 0 ? be_control(bench, how, result) : be_module(bench, how, rank - 1);
}

/* --- the benchmark --- */

static bool make_model(const struct modules_options *o, struct model **model,
                       const struct log *log)
{
    int k = (int)sqrt((double)o->bytes / sizeof(float));
    const struct model_shape shape = {
        .kind = MODEL_MLP, .n_dense = k, .n_classes = 1, .n_top = 1, .top = {k}};
    return model_create(model, &shape, log) == DESCANT_OK;
}

static void print(const struct cli *cli, const struct modules_options *o, size_t floats,
                  struct result *r)
{
    struct bench_ratio ratio = bench_pairs(r->ratio, r->pairs);
    struct bench_ratio parts = bench_pairs(r->of_parts, r->pairs);
    double with = bench_percentile(r->with, r->pairs, 0.5);
    double without = bench_percentile(r->without, r->pairs, 0.5);
    if (o->json) {
        struct json json;
        json_begin(&json, cli->out);
        json_text(&json, "bench", "modules");
        json_int(&json, "floats", (int64_t)floats);
        json_int(&json, "modules", o->modules);
        json_int(&json, "batch", o->batch);
        json_real(&json, "period_ms", o->period_ms);
        json_int(&json, "slow", o->slow);
        json_int(&json, "pairs", (int64_t)r->pairs);
        json_real(&json, o->slow ? "slowed_per_s" : "control_per_s", with);
        json_real(&json, "plain_per_s", without);
        json_real(&json, "ratio", ratio.middle);
        json_real(&json, "ratio_low", ratio.low);
        json_real(&json, "ratio_high", ratio.high);
        if (o->slow)
            json_real(&json, "of_parts", parts.middle);
        json_int(&json, "supersteps", (int64_t)r->supersteps);
        json_real(&json, "superstep_ms", r->superstep_s * 1e3);
        json_end(&json);
        return;
    }
    cli_say(cli->out, "model", "%zu floats, %d modules, batch %d", floats,
            (int)o->modules, (int)o->batch);
    cli_say(cli->out, "gradients/s", o->slow ? "%.1f, with one %g times slower %.1f"
                                             : "%.1f, with control every %g ms %.1f",
            without, o->slow ? (double)o->slow : o->period_ms, with);
    cli_say(cli->out, o->slow ? "the others" : "ratio", "%.3f (%.3f to %.3f)",
            ratio.middle, ratio.low, ratio.high);
    if (o->slow)
        cli_say(cli->out, "the job", "%.3f of the sum of its parts", parts.middle);
    cli_say(cli->out, "a superstep", "%.2f ms", r->superstep_s * 1e3);
}

static bool run(const struct cli *cli, struct how *how, struct result *results)
{
    struct bench bench = {.trainers = (int)how->o->modules + 1, .err = cli->err};
    snprintf(how->name, sizeof how->name, "bench-%d", (int)getpid());
    how->stage = mmap(NULL, sizeof *how->stage, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (how->stage == MAP_FAILED) {
        fprintf(cli->err, "descant: no memory: %s\n", strerror(errno));
        return false;
    }
    bool good = bench_run(&bench, be, how, results, sizeof *results);
    munmap(how->stage, sizeof *how->stage);
    return good;
}

int bench_modules(const struct cli *cli)
{
    struct modules_options o = {.bytes = 4000000, .modules = 1, .batch = 128, .pairs = 15,
                                .period_ms = 50, .run_s = 2};
    static struct result results[MOST_MODULES + 1];
    struct how how = {.o = &o};
    int status;
    if (!bench_options(cli, table, N_TABLE, &o, &status))
        return status;
    if (o.slow && o.modules < 2)
        return cli_bad_use(cli,
                           "--slow needs --modules 2 or more: the others are looked at");
    bool good = make_model(&o, &how.model, &cli->log) && run(cli, &how, results);
    if (good)
        print(cli, &o, model_floats(how.model), &results[0]);
    model_destroy(how.model);
    return good ? CLI_DONE : CLI_FAILED;
}
