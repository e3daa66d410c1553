/* SPDX-License-Identifier: MIT */
/* descant eval and descant predict: a checkpoint's model on files. The words become a
 * struct scoring here; reading and scoring are src/files/score.c's.
 *
 * Both commands have one table. Its middle rows belong to both, its first rows to eval
 * alone, and its last row to predict alone, so each command shows and reads a contiguous
 * part of it. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "files/files.h"

#include <math.h>
#include <string.h>

/* `how` goes to score.c; the other two fields are this file's. */
struct options {
    struct scoring how;
    const char *out;
    bool json;
};

#define AT(field) offsetof(struct options, field)
static const struct option table[] = {
    FLAG("json", json, "one JSON object on one line"),
    INT("workers", how.workers, 1, 64, "threads"),
    TEXT("checkpoint", how.checkpoint,
         "the model, a file that descant train has written"),
    TEXT("data", how.data, "files, with commas between them; - is stdin"),
    CHOICE("format", how.format, "saved|auto|criteo|libsvm|libffm|idx|cache",
           "format of the files; saved: that of training, or a cache"),
    INT("batch", how.batch, 1, 1 << 20, "examples at a time"),
    REAL("max-bad", how.max_bad, 0, 1, "share of lines that may be bad"),
    TEXT("out", out, "file for the scores; - is stdout"),
};
/* The first settings are only eval's, the last one is only predict's. */
enum { N_TABLE = sizeof table / sizeof *table, N_EVAL_ONLY = 2, N_PREDICT_ONLY = 1 };

/* Reads the words into *o, and checks that model and data are named. False: the command
 * returns *status. Predict's output must be none of its inputs, and not the checkpoint
 * before the one that is named, to which a run may have to go back. `target` is room for
 * the name of the output where that is a link; o->out may point into it. */
static bool take(const struct cli *cli, const char *usage, const struct option *own,
                 size_t n, struct options *o, char *target, int *status)
{
    char room[PATH_MAX];
    const char *previous = room;

    *o = (struct options){.how = {.workers = 1, .batch = EVALUATE_BATCH, .max_bad = 0.01},
                          .out = "-"};
    if (!settings_take(cli, usage, own, n, o, status))
        return false;
    if (!o->how.checkpoint || !o->how.data) {
        *status = cli_bad_use(
            cli, "--checkpoint and --data say which model and which examples");
        return false;
    }
    snprintf(room, sizeof room, "%s.previous", o->how.checkpoint);
    const struct named_file files[] = {{"out", &o->out, FILE_PUT},
                                       {"checkpoint", &o->how.checkpoint, FILE_READ},
                                       {"checkpoint", &previous, FILE_READ},
                                       {"data", &o->how.data, FILE_READ}};
    *status = cli_files(cli, files, sizeof files / sizeof *files, target);
    return *status == CLI_DONE;
}

/* Prints the figures, as lines or as one JSON object. A model with classes has no NE, AUC
 * or calibration: lines leave them out, JSON has null, so that its keys are always the
 * same. */
static void say(FILE *out, bool json, const struct held_out *h, bool classes,
                const struct feed_counts *counts)
{
    unsigned long long lines = atomic_load(&counts->lines),
                       bad = atomic_load(&counts->bad);
    struct json line;

    if (!json) {
        cli_say(out, "examples", "%llu", (unsigned long long)h->n);
        cli_say(out, "log loss", "%.6f", h->loss);
        if (!classes) {
            cli_say(out, "NE", "%.6f", h->entropy);
            cli_say(out, "AUC", "%.6f", h->auc);
            cli_say(out, "calibration", "%.4f", h->calibration);
        }
        cli_say(out, "accuracy", "%.4f", h->accuracy);
        if (bad)
            cli_say(out, "bad lines skipped", "%llu of %llu", bad, lines);
        return;
    }
    json_begin(&line, out);
    json_int(&line, "examples", (int64_t)h->n);
    json_real(&line, "loss", h->loss);
    json_real(&line, "ne", classes ? NAN : h->entropy);
    json_real(&line, "auc", h->auc);
    json_real(&line, "accuracy", h->accuracy);
    json_real(&line, "calibration", classes ? NAN : h->calibration);
    json_int(&line, "bad_lines", (int64_t)bad);
    json_end(&line);
}

int cli_eval(const struct cli *cli)
{
    struct options o;
    struct held_out figures;
    struct feed_counts counts = {0};
    char target[PATH_MAX];
    bool classes;
    int status;

    if (!take(cli, "eval --checkpoint FILE --data FILES [OPTIONS]\n", table,
              N_TABLE - N_PREDICT_ONLY, &o, target, &status))
        return status;
    if (score_evaluate(&o.how, &figures, &counts, &classes, &cli->log) != DESCANT_OK)
        return CLI_FAILED;
    say(cli->out, o.json, &figures, classes, &counts);
    return output_written(cli->out, "stdout", &cli->log) ? CLI_DONE : CLI_FAILED;
}

int cli_predict(const struct cli *cli)
{
    struct options o;
    char target[PATH_MAX];
    int status;

    if (!take(cli,
              "predict --checkpoint FILE --data FILES [--out FILE]\nprints a probability "
              "for each line, in their order; nan for one that cannot be read. Lines "
              "need no label\n",
              table + N_EVAL_ONLY, N_TABLE - N_EVAL_ONLY, &o, target, &status))
        return status;
    return score_predict(&o.how, o.out, cli->out, &cli->log) ? CLI_DONE : CLI_FAILED;
}
