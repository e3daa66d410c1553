/* SPDX-License-Identifier: MIT */
/* descant bench train: examples a second of the real trainer, beside what matrix products
 * allow.
 *
 * Clicks are generated once into a temporary folder, and read from the cache or as text.
 * Then come rounds, each of one run of training and one look at sgemm, so that both see
 * the same machine; medians are told. The look multiplies the model's own layers at the
 * model's own sizes (forward, by weights, by inputs), in as many processes as there are
 * cores at work, so that the bound
 *
 *     bound_examples_per_s = sgemm_gflops · 1e9 ÷ model_flops
 *
 * is what a trainer would reach that did nothing else. of_bound is a run's share of the
 * bound of its own round: median and quartiles. With a plan, each round also has a run
 * under `none`, in changing order; efficiency is the median of the ratios. */
#include "bench.h"
#include "data/data.h"
#include "train/launch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ROUNDS = BENCH_MAX_PAIRS };

struct bench_train_options {
    struct train_options train;
    int input;
    int64_t rows, rounds;
    double run_s;
    bool json;
};

#define OWN(field) offsetof(struct bench_train_options, field)
#define TRAIN(field) offsetof(struct bench_train_options, train.field)
static const struct option table[] = {
    {"model", OPTION_CHOICE, TRAIN(model), 0, 0, "linear|fm|dlrm|mlp", "what to train"},
    {"batch", OPTION_INT, TRAIN(batch), 1, 1 << 20, NULL, "examples of a worker's step"},
    {"trainers", OPTION_INT, TRAIN(trainers), 1, 64, NULL, "processes"},
    {"workers", OPTION_INT, TRAIN(workers), 1, 64, NULL, "threads of each"},
    {"sync", OPTION_TEXT, TRAIN(sync), 0, 0, NULL, "the plan"},
    {"link", OPTION_TEXT, TRAIN(link), 0, 0, NULL, "emulated link, as 100mbit,1ms"},
    {"table-rows", OPTION_INT, TRAIN(rows), 1, 4294967296.0, NULL,
     "rows of each embedding table; linear, fm: of the one"},
    {"optimizer", OPTION_CHOICE, TRAIN(optimizer.kind), 0, 0, "sgd|adagrad|adam|adamw",
     "of the dense part"},
    {"table-optimizer", OPTION_CHOICE, TRAIN(optimizer.rows), 0, 0,
     "sgd|adagrad|rowwise-adagrad", "of the tables"},
    {"input", OPTION_CHOICE, OWN(input), 0, 0, "cache|text", "the trainers' input"},
    {"rows", OPTION_INT, OWN(rows), 1000, 1e9, NULL, "examples generated"},
    {"rounds", OPTION_INT, OWN(rounds), 0, MAX_ROUNDS, NULL,
     "of which the median is told; 0: 5, or 15 pairs against none"},
    {"run-s", OPTION_SECONDS, OWN(run_s), 0.1, 600, NULL, "seconds of a run, about"},
    {"json", OPTION_BOOL, OWN(json), 0, 0, NULL, "one JSON object on one line"},
};
enum { N_TABLE = sizeof table / sizeof *table };

/* --- the input --- */

struct bench_input {
    char folder[64], text[96], cache[96];
};

static bool write_text(const struct bench_input *in, int64_t rows, const struct log *log)
{
    struct ctr_options ctr = ctr_options_default();
    struct ctr_summary sum;
    FILE *out = fopen(in->text, "we");

    if (!out) {
        log_fail(log, DESCANT_SYSTEM, "%s: %s", in->text, strerror(errno));
        return false;
    }
    ctr.rows = (uint64_t)rows;
    bool good = ctr_generate(out, &ctr, &sum, log) == DESCANT_OK;
    return fclose(out) == 0 && good;
}

static bool write_cache(const struct bench_input *in, const struct log *log)
{
    const char *path = in->text;
    struct data_options d = {
        .paths = &path, .n_paths = 1, .format = DATA_CRITEO, .log = log};
    uint64_t n;
    FILE *out = fopen(in->cache, "we");

    if (!out) {
        log_fail(log, DESCANT_SYSTEM, "%s: %s", in->cache, strerror(errno));
        return false;
    }
    bool good = cache_write(out, in->cache, &d, &n) == DESCANT_OK;
    return fclose(out) == 0 && good;
}

static bool make_input(struct bench_input *in, const struct bench_train_options *o,
                       const struct log *log)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(in->folder, sizeof in->folder, "%.40s/descant-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(in->folder)) {
        log_fail(log, DESCANT_SYSTEM, "%s: %s", in->folder, strerror(errno));
        return false;
    }
    snprintf(in->text, sizeof in->text, "%s/clicks.tsv", in->folder);
    snprintf(in->cache, sizeof in->cache, "%s/clicks.cache", in->folder);
    return write_text(in, o->rows, log) && (o->input == 1 || write_cache(in, log));
}

static void remove_input(const struct bench_input *in)
{
    unlink(in->text);
    unlink(in->cache);
    rmdir(in->folder);
}

/* --- what sgemm does at the model's sizes --- */

struct products {
    const struct model *model;
    int batch;
    float *a, *b, *c;           /* large enough for any layer */
};

static double layer_flops(const struct tensor *w, int batch)
{
    return 2.0 * batch * (double)w->dims[0] * (double)w->dims[1];
}

static double multiply(const struct products *p, const struct tensor *w, bool by_inputs)
{
    int n = p->batch, out = (int)w->dims[0], in = (int)w->dims[1];

    nn_multiply(false, true, n, out, in, p->a, p->b, p->c);
    nn_multiply(true, false, out, in, n, p->c, p->a, p->b);
    if (by_inputs)
        nn_multiply(false, false, n, in, out, p->c, p->b, p->a);
    return layer_flops(w, n) * (by_inputs ? 3 : 2);
}

/* GFLOP/s over about `seconds` of whole batches. */
static double look(const struct products *p, double seconds)
{
    size_t n;
    const struct tensor *tensors = model_tensors(p->model, &n);
    uint64_t from = clock_now_ns(), until = from + (uint64_t)(seconds * 1e9);
    double flops = 0;

    do {
        bool first = true;
        for (size_t k = 0; k < n; k++)
            if (tensors[k].n_dims == 2) {
                flops += multiply(p, &tensors[k], !first);
                first = false;
            }
    } while (clock_now_ns() < until && flops > 0);
    return flops / (double)(clock_now_ns() - from);
}

static bool make_products(struct products *p, const struct model *model, int batch)
{
    size_t n, widest = 1;
    const struct tensor *tensors = model_tensors(model, &n);

    for (size_t k = 0; k < n; k++) {
        widest = tensors[k].dims[0] > widest ? tensors[k].dims[0] : widest;
        widest = tensors[k].n_dims > 1 && tensors[k].dims[1] > widest ? tensors[k].dims[1]
                                                                      : widest;
    }
    size_t room = widest * (widest > (size_t)batch ? widest : (size_t)batch);
    *p = (struct products){.model = model, .batch = batch};
    p->a = memory_take_array(room, sizeof(float));
    p->b = memory_take_array(room, sizeof(float));
    p->c = memory_take_array(room, sizeof(float));
    for (size_t i = 0; p->a && p->b && i < room; i++) {
        p->a[i] = (float)(i % 13) * 0.01F - 0.06F;
        p->b[i] = (float)(i % 7) * 0.001F - 0.003F;
    }
    return p->a && p->b && p->c;
}

/* One of the processes that multiply, in memory that all of them share. */
struct multiplier {
    pid_t pid;                  /* the parent's; 0: not started */
    double gflops;              /* its own; read by the parent when it has ended */
};

static bool start_multipliers(const struct products *p, struct multiplier *all, int n,
                              double seconds, FILE *err)
{
    for (int k = 0; k < n; k++) {
        pid_t pid = fork();
        if (pid == 0) {
            nn_thread_init();
            all[k].gflops = look(p, seconds);
            _exit(0);
        }
        if (pid < 0) {
            fprintf(err, "descant bench train: no process to multiply in: %s\n",
                    strerror(errno));
            return false;
        }
        all[k].pid = pid;
    }
    return true;
}

/* The sum over as many processes as cores are at work: forked, since this one must stay
 * without threads. False if one could not be started, or failed. */
static bool sgemm_gflops(const struct products *p, int processes, double seconds,
                         double *sum, FILE *err)
{
    size_t bytes = (size_t)processes * sizeof(struct multiplier);
    struct multiplier *all =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status;

    if (all == MAP_FAILED)
        return false;
    bool good = start_multipliers(p, all, processes, seconds, err);
    *sum = 0;
    for (int k = 0; k < processes && all[k].pid > 0; k++) {
        good &= waitpid(all[k].pid, &status, 0) > 0 && status == 0;
        *sum += all[k].gflops;
    }
    munmap(all, bytes);
    return good;
}

/* --- the runs --- */

struct bench_figures {
    double per_s[MAX_ROUNDS], gflops[MAX_ROUNDS], none_per_s[MAX_ROUNDS],
        ratio[MAX_ROUNDS];
    double stall[MAX_ROUNDS], gap[MAX_ROUNDS], shadow[MAX_ROUNDS], of_bound[MAX_ROUNDS];
    double loss, flops;
    size_t n;
};

static bool one_run(const struct bench_train_options *o, const char *sync,
                    uint64_t examples, FILE *err, struct train_result *result)
{
    struct train_options t = o->train;
    FILE *nowhere = fopen("/dev/null", "we");

    t.sync = sync;
    train_know_plan(&t);
    t.examples = (int64_t)examples;
    memset(result, 0, sizeof *result);
    int status = nowhere ? train_run(&t, nowhere, err, result) : 1;
    if (nowhere)
        fclose(nowhere);
    return status == 0 && result->seconds > 0;
}

static double per_s(const struct train_result *r)
{
    return (double)r->own.n / r->seconds;
}

/* How many examples fill a run. */
static uint64_t calibrate(const struct bench_train_options *o, FILE *err)
{
    struct train_result r;
    uint64_t examples =
        (uint64_t)(o->train.batch * o->train.workers * o->train.trainers) * 8;

    for (;;) {
        if (!one_run(o, "none", examples, err, &r))
            return 0;
        if (r.seconds > 0.2 * o->run_s)
            return (uint64_t)(per_s(&r) * o->run_s) + 1;
        examples *= 4;
    }
}

static bool round_of(const struct bench_train_options *o, const struct products *p,
                     uint64_t examples, struct bench_figures *f, FILE *err)
{
    bool alone = strcmp(o->train.sync, "none") == 0, none_first = f->n % 2;
    int at_work = (int)(o->train.trainers * o->train.workers);
    int cores = (int)ceil(machine_cores());
    struct train_result with, none = {0};

    if (p && !sgemm_gflops(p, at_work < cores ? at_work : cores, 0.2 * o->run_s,
                           &f->gflops[f->n], err))
        return false;
    if (!alone && none_first && !one_run(o, "none", examples, err, &none))
        return false;
    if (!one_run(o, o->train.sync, examples, err, &with))
        return false;
    if (!alone && !none_first && !one_run(o, "none", examples, err, &none))
        return false;
    f->per_s[f->n] = per_s(&with);
    f->of_bound[f->n] = p ? per_s(&with) * f->flops / (f->gflops[f->n] * 1e9) : NAN;
    f->none_per_s[f->n] = alone ? NAN : per_s(&none);
    f->ratio[f->n] = per_s(&with) / f->none_per_s[f->n];
    f->stall[f->n] = with.figures.stall_share;
    f->gap[f->n] = with.figures.gap;
    f->shadow[f->n] = with.figures.shadow_share;
    f->loss = metrics_logloss(&with.seen);
    f->n++;
    return true;
}

static bool measure(const struct bench_train_options *o, const struct model *model,
                    struct bench_figures *f, FILE *err)
{
    struct products p;
    bool dense = model_flops(model) > 1000;
    bool good = make_products(&p, model, (int)o->train.batch);
    uint64_t examples = good ? calibrate(o, err) : 0;

    f->flops = model_flops(model);
    good = good && examples;
    while (good && f->n < (size_t)o->rounds)
        good = round_of(o, dense ? &p : NULL, examples, f, err);
    memory_give(p.a);
    memory_give(p.b);
    memory_give(p.c);
    return good;
}

static double median(double *values, size_t n)
{
    return bench_percentile(values, n, 0.5);
}

static void say(const struct cli *cli, const struct bench_train_options *o,
                struct bench_figures *f)
{
    struct json json;
    char model[16];
    double rate = median(f->per_s, f->n), gflops = median(f->gflops, f->n);
    double bound = gflops > 0 ? gflops * 1e9 / f->flops : NAN;
    bool alone = strcmp(o->train.sync, "none") == 0;
    struct bench_ratio ratio = {NAN, NAN, NAN}, share = {NAN, NAN, NAN};

    if (!alone)
        ratio = bench_pairs(f->ratio, f->n);
    if (bound > 0)
        share = (struct bench_ratio){.middle = median(f->of_bound, f->n),
                                     .low = bench_percentile(f->of_bound, f->n, 0.25),
                                     .high = bench_percentile(f->of_bound, f->n, 0.75)};

    option_write(&table[0], o, model, sizeof model);
    if (!o->json) {
        cli_say(cli->out, "model", "%s, batch %d", model, (int)o->train.batch);
        cli_say(cli->out, "examples/s", "%.0f", rate);
        if (bound > 0)
            cli_say(cli->out, "sgemm's bound",
                    "%.0f examples/s (%.1f GFLOP/s): %.1f %% (quartiles %.1f to %.1f)",
                    bound, gflops, 100 * share.middle, 100 * share.low, 100 * share.high);
        if (!alone)
            cli_say(cli->out, "against none", "%.4f (quartiles %.4f to %.4f)",
                    ratio.middle, ratio.low, ratio.high);
        cli_say(cli->out, "stall", "%.3f %%", 100 * median(f->stall, f->n));
        return;
    }
    json_begin(&json, cli->out);
    json_text(&json, "bench", "train");
    json_text(&json, "model", model);
    json_int(&json, "batch", o->train.batch);
    json_int(&json, "trainers", o->train.trainers);
    json_int(&json, "workers", o->train.workers);
    json_text(&json, "sync", o->train.sync);
    json_real(&json, "examples_per_s", rate);
    json_real(&json, "sgemm_gflops", gflops > 0 ? gflops : NAN);
    json_real(&json, "bound_examples_per_s", bound);
    json_real(&json, "of_bound", share.middle);
    json_real(&json, "of_bound_low", share.low);
    json_real(&json, "of_bound_high", share.high);
    json_real(&json, "loss", f->loss);
    json_real(&json, "stall_share", median(f->stall, f->n));
    json_real(&json, "gap_mean", median(f->gap, f->n));
    json_text(&json, "link", o->train.link);
    json_real(&json, "none_examples_per_s", alone ? NAN : median(f->none_per_s, f->n));
    json_real(&json, "efficiency", ratio.middle);
    json_real(&json, "efficiency_low", ratio.low);
    json_real(&json, "efficiency_high", ratio.high);
    json_real(&json, "shadow_cpu_share", median(f->shadow, f->n));
    json_end(&json);
}

static bool bench_model(const struct bench_train_options *o, struct model **model,
                        const struct log *log)
{
    struct data_shape data = {.n_dense = 13, .n_fields = 26, .n_classes = 1};
    struct model_shape shape;
    return config_shape(&o->train, &data, &shape, log) == DESCANT_OK &&
           model_create(model, &shape, log) == DESCANT_OK;
}

static int check(const struct cli *cli, const struct bench_train_options *o)
{
    char suffix[128];
    double rate, rtt;

    if (!cli_plan_ok(cli, "sync", o->train.sync))
        return CLI_BAD_USE;
    if (!cli_link_ok(cli, o->train.link, suffix, sizeof suffix, &rate, &rtt))
        return CLI_BAD_USE;
    return CLI_DONE;
}

int bench_train(const struct cli *cli)
{
    struct bench_train_options o = {.train = train_options_default(), .rows = 200000, .run_s = 2};
    struct bench_figures f = {.n = 0};
    struct bench_input in = {.folder = ""};
    struct model *model = NULL;

    o.train.sync = "none";
    o.train.quiet = true;
    o.train.epochs = 1000000;
    int status;
    if (!bench_options(cli, table, N_TABLE, &o, &status) ||
        (status = check(cli, &o)) != CLI_DONE)
        return status;
    if (o.rounds == 0)
        o.rounds = strcmp(o.train.sync, "none") == 0 ? 5 : 15;
    if (o.train.model == MODEL_LINEAR && o.train.rows == train_options_default().rows)
        o.train.rows = 1 << 22;
    o.train.data = o.input ? in.text : in.cache;
    bool good = bench_model(&o, &model, &cli->log) && make_input(&in, &o, &cli->log) &&
                measure(&o, model, &f, cli->err);
    if (good)
        say(cli, &o, &f);
    if (*in.folder)
        remove_input(&in);
    model_destroy(model);
    return good ? CLI_DONE : CLI_FAILED;
}
