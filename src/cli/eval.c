/* SPDX-License-Identifier: MIT */
/* descant eval and descant predict: a checkpoint's model on files.
 *
 * predict gives a score for each line, in the lines' order, so that scores and lines can
 * be put side by side again: a line that cannot be read has the score nan, and labels are
 * not needed. A file that --out names is written as FILE.tmp and renamed when all scores
 * are in it: a run that is refused, or stopped, leaves the old file. A pipe or a device
 * is written directly. */
#include "base/option_rows.h"
#include "cli/output.h"
#include "data/kind.h"
#include "run/evaluate.h"
#include "train/saved.h"
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct options {
    const char *checkpoint, *data, *out;
    int format;                 /* 0: the checkpoint's; else enum data_format + 1 */
    int64_t workers, batch;
    double max_bad;
    bool json;
};

#define AT(field) offsetof(struct options, field)
static const struct option table[] = {
    FLAG("json", json, "one JSON object on one line"),
    INT("workers", workers, 1, 64, "threads"),
    TEXT("checkpoint", checkpoint, "the model, as descant train wrote it"),
    TEXT("data", data, "files, commas between them; - is stdin"),
    CHOICE("format", format, "saved|auto|criteo|libsvm|libffm|idx|cache",
           "of the files; saved is that of training, or a cache"),
    INT("batch", batch, 1, 1 << 20, "examples at a time"),
    REAL("max-bad", max_bad, 0, 1, "share of lines that may be bad"),
    TEXT("out", out, "where the scores go; - is stdout"),
};
/* The first ones are eval's alone, the last one is predict's. */
enum { N_TABLE = sizeof table / sizeof *table, N_EVAL_ONLY = 2, N_PREDICT_ONLY = 1 };

static const struct usage {
    const char *usage;
    const struct option *table;
    size_t n;
} eval_own =
    {
        "eval --checkpoint FILE --data FILES [OPTIONS]",
        table,
        N_TABLE - N_PREDICT_ONLY,
},
  predict_own = {
      "predict --checkpoint FILE --data FILES [--out FILE]\nprints a probability for "
      "each line, in their order; nan for one that cannot be read. Lines need no label",
      table + N_EVAL_ONLY,
      N_TABLE - N_EVAL_ONLY,
};

/* All that the two commands open. */
struct session {
    struct options options;
    struct log log;
    struct saved saved;
    struct path_list paths;
    struct data_options data;
    char out[PATH_MAX];         /* the target of a link that --out names */
    uint64_t lines, bad, nan;   /* of the input; bad ones; good ones without a number for
                                   a score */
};

/* Predict's output must be none of its inputs. The target of a link is replaced, and not
 * the link. */
static bool outputs_good(const struct cli *cli, struct session *s)
{
    struct options *o = &s->options;
    char previous[4096];

    if (!output_follow(cli, "out", &o->out, s->out))
        return false;
    snprintf(previous, sizeof previous, "%s.previous", o->checkpoint);
    const struct cli_file files[] = {
        {"out", o->out, CLI_MAKES},
        {"checkpoint", o->checkpoint, CLI_READS},
        {"checkpoint", previous, CLI_READS},
        {"data", o->data, CLI_READS},
    };

    return cli_files_apart(cli, files, sizeof files / sizeof *files);
}

static int session_open(struct session *s, const struct cli *cli, const struct usage *own)
{
    s->options =
        (struct options){.workers = 1, .batch = 512, .max_bad = 0.01, .out = "-"};
    s->log = (struct log){.fn = cli_log, .user = cli->err, .rank = -1};
    if (settings_wants_help(cli)) {
        fprintf(cli->out, "usage: descant %s\n\n", own->usage);
        settings_help(cli->out, own->table, own->n, &s->options);
        return -1;
    }
    int status = settings_parse(cli, own->table, own->n, &s->options);
    if (status != CLI_DONE)
        return status;
    if (!s->options.checkpoint || !s->options.data)
        return cli_bad_use(cli,
                           "give --checkpoint, the model, and --data, the examples");
    if (!outputs_good(cli, s))
        return CLI_BAD_USE;
    if (saved_open(&s->saved, s->options.checkpoint, &s->log) != DESCANT_OK ||
        path_list_init(&s->paths, s->options.data, &s->log) != DESCANT_OK)
        return CLI_FAILED;
    if (s->options.format)
        s->saved.options.format = s->options.format - 1;
    else if (file_kind_of(s->paths.paths[0]) == FILE_CACHE) /* it is surely none of the
                                                               others */
        s->saved.options.format = DATA_CACHE;
    s->saved.options.max_bad = s->options.max_bad;
    s->data = held_out_data(&s->saved.options, &s->paths, &s->log);
    s->data.shared = memory_take(data_shared_bytes());
    return s->data.shared ? CLI_DONE : CLI_FAILED;
}

static void session_close(struct session *s)
{
    memory_give(s->data.shared);
    path_list_fini(&s->paths);
    saved_close(&s->saved);
}

static void say(const struct session *s, const struct cli *cli, const struct metrics *m,
                double auc, const struct feed_counts *counts)
{
    unsigned long long lines = atomic_load(&counts->lines),
                       bad = atomic_load(&counts->bad);
    struct json json;
    bool classes = model_outputs(s->saved.model) > 1;

    if (!s->options.json) {
        cli_say(cli->out, "examples", "%llu", (unsigned long long)m->n);
        cli_say(cli->out, "log loss", "%.6f", metrics_logloss(m));
        if (!classes) {
            cli_say(cli->out, "NE", "%.6f", metrics_entropy(m));
            cli_say(cli->out, "AUC", "%.6f", auc);
            cli_say(cli->out, "calibration", "%.4f", metrics_calibration(m));
        }
        cli_say(cli->out, "accuracy", "%.4f", metrics_accuracy(m));
        if (bad)
            cli_say(cli->out, "bad lines skipped", "%llu of %llu", bad, lines);
        return;
    }
    json_begin(&json, cli->out);
    json_int(&json, "examples", (int64_t)m->n);
    json_real(&json, "loss", metrics_logloss(m));
    json_real(&json, "ne", classes ? NAN : metrics_entropy(m));
    json_real(&json, "auc", auc);
    json_real(&json, "accuracy", metrics_accuracy(m));
    json_real(&json, "calibration", classes ? NAN : metrics_calibration(m));
    json_int(&json, "bad_lines", (int64_t)bad);
    json_end(&json);
}

int cli_eval(const struct cli *cli)
{
    struct session s = {0};
    struct metrics sum;
    struct feed_counts counts = {0};
    double auc;
    int status = session_open(&s, cli, &eval_own);

    if (status == CLI_DONE) {
        struct evaluation e = {
            .model = s.saved.model,
            .w = s.saved.w,
            .tables = s.saved.tables,
            .data = s.data,
            .batch = (size_t)s.options.batch,
            .threads = (int)s.options.workers,
            .counts = &counts,
            .log = &s.log,
        };
        bool good = evaluate_look(e.model, &e.data) == DESCANT_OK &&
                    evaluate(&e, &sum, &auc) == DESCANT_OK;
        status = good ? CLI_DONE : CLI_FAILED;
    }
    if (status == CLI_DONE) {
        say(&s, cli, &sum, auc, &counts);
        status = output_written(cli->out, "stdout", &s.log) ? CLI_DONE : CLI_FAILED;
    }
    session_close(&s);
    return status < 0 ? CLI_DONE : status;
}

/* --- predict --- */

/* Probabilities of one example, on a line: of a click, or of each class. False: they are
 * none. */
static bool put_score(FILE *out, const float *scores, int outputs)
{
    double top = (double)scores[0], sum = 0;
    bool good = true;

    for (int k = 1; k < outputs; k++)
        top = (double)scores[k] > top ? (double)scores[k] : top;
    for (int k = 0; k < outputs; k++)
        sum += exp((double)scores[k] - top);
    for (int k = 0; k < outputs; k++) {
        double p = outputs == 1 ? 1 / (1 + exp(-(double)scores[0]))
                                : exp((double)scores[k] - top) / sum;
        good &= !isnan(p);
        if (isnan(p))           /* printf may give it a sign */
            fputs("nan", out);
        else
            fprintf(out, "%.6g", p);
        fputc(k + 1 < outputs ? ' ' : '\n', out);
    }
    return good;
}

/* A bad line's label is NaN. */
static bool predict_block(struct session *s, struct work *work,
                          const struct examples *all, float *scores, FILE *out)
{
    size_t batch = (size_t)s->options.batch;
    int outputs = model_outputs(s->saved.model);

    for (size_t at = 0; at < all->n; at += batch) {
        size_t n = all->n - at < batch ? all->n - at : batch;
        struct examples part = examples_slice(all, at, n);
        model_scores(work, s->saved.w, s->saved.tables, &part, scores);
        for (size_t i = 0; i < n; i++) {
            float *own = scores + i * (size_t)outputs;
            bool bad = isnan(part.labels[i]);
            own[0] = bad ? NAN : own[0];
            s->nan += !put_score(out, own, outputs) && !bad;
        }
    }
    return !ferror(out);
}

static void say_nan(const struct session *s)
{
    if (s->bad)
        log_say(&s->log, DESCANT_WARNING,
                "%llu of %llu lines could not be read: their score is nan",
                (unsigned long long)s->bad, (unsigned long long)s->lines);
    if (s->nan)
        log_say(&s->log, DESCANT_WARNING,
                "%llu of %llu lines have the score nan, for the model's sums overflow: "
                "values of these lines, or weights, are too large",
                (unsigned long long)s->nan, (unsigned long long)s->lines);
}

static bool predict_all(struct session *s, struct data *data, struct work *work,
                        float *scores, const struct output *out)
{
    struct block block = {0};
    enum data_got got = DATA_BLOCK;
    bool ok = true;

    for (uint64_t chunk = 0; ok && got == DATA_BLOCK; chunk++) {
        got = data_read(data, chunk, &block);
        errno = 0;
        if (got == DATA_BLOCK)
            ok = predict_block(s, work, &block.examples, scores, out->file);
        s->lines += got == DATA_BLOCK ? block.examples.n : 0;
        s->bad += got == DATA_BLOCK ? block.bad : 0;
    }
    if (!ok)
        output_written(out->file, out->name, &s->log);
    else if (got == DATA_END && s->lines == 0)
        log_fail(&s->log, DESCANT_INVALID, "there is no example in %s", s->options.data);
    block_fini(&block);
    return ok && got == DATA_END && s->lines > 0;
}

/* The output is opened when there is something to put there. */
static bool predict_into(struct session *s, const struct cli *cli, struct data *data,
                         struct work *work, float *scores)
{
    struct output out;
    bool good = output_open(&out, cli, s->options.out, &s->log) &&
                predict_all(s, data, work, scores, &out);

    good = output_close(&out, cli, good);
    if (good)
        say_nan(s);
    return good;
}

static bool predict(struct session *s, const struct cli *cli)
{
    struct data *data;
    struct work *work = NULL;
    size_t batch = (size_t)s->options.batch;
    bool ok = false;

    if (data_open(&data, &s->data) != DESCANT_OK)
        return false;
    size_t outputs = (size_t)model_outputs(s->saved.model);
    float *scores = memory_take_array(batch * outputs, sizeof *scores);
    struct data_options found = s->data;
    found.format = data_format(data);
    if (scores && evaluate_fits(s->saved.model, data_shape(data), &found) == DESCANT_OK &&
        work_create(&work, s->saved.model, batch, &s->log) == DESCANT_OK)
        ok = predict_into(s, cli, data, work, scores);
    work_destroy(work);
    memory_give(scores);
    data_close(data);
    return ok;
}

int cli_predict(const struct cli *cli)
{
    struct session s = {0};
    int status = session_open(&s, cli, &predict_own);

    s.data.scoring = true;
    if (status == CLI_DONE)
        status = predict(&s, cli) ? CLI_DONE : CLI_FAILED;
    session_close(&s);
    return status < 0 ? CLI_DONE : status;
}
