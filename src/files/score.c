/* SPDX-License-Identifier: MIT */
/* A checkpoint's model on files: figures, for which the lines need labels, and scores,
 * for which they need none. */
#include "data/kind.h"
#include "files/files.h"
#include "run/saved.h"
#include "run/saved_rows.h"

#include <errno.h>
#include <math.h>

struct session {
    const struct scoring *how;
    const struct log *log;
    struct saved saved;
    struct path_list paths;
    struct data_options data;
    struct saved_block block;   /* of tables that grow */
    descant_status failed;      /* OK: but for the output, nothing has */
    uint64_t lines, bad, nan;   /* of the input; bad ones; good ones without a number for
                                   a score */
};

/* Opens the model, and settles how the data is read: as the checkpoint's was, unless
 * `how` or the file itself says otherwise. session_close follows after a failure, too. */
static descant_status session_open(struct session *s, const struct scoring *how,
                                   const struct log *log)
{
    *s = (struct session){.how = how, .log = log};
    descant_status status = saved_open(&s->saved, how->checkpoint, log);
    if (status == DESCANT_OK)
        status = path_list_init(&s->paths, how->data, log);
    if (status != DESCANT_OK)
        return status;
    if (how->format)
        s->saved.options.format = how->format - 1;
    else if (file_kind_of(s->paths.paths[0]) == FILE_CACHE) /* it is surely none of the
                                                               others */
        s->saved.options.format = DATA_CACHE;
    s->saved.options.max_bad = how->max_bad;
    s->data = config_held_out(&s->saved.options, &s->paths, log);
    s->data.shared = memory_take(data_shared_bytes());
    return s->data.shared ? DESCANT_OK
                          : log_fail(log, DESCANT_MEMORY, "no memory to read with");
}

static void session_close(struct session *s)
{
    saved_block_fini(&s->block);
    memory_give(s->data.shared);
    path_list_fini(&s->paths);
    saved_close(&s->saved);
}

/* The data is compared with the model before all of it is read. */
descant_status score_evaluate(const struct scoring *how, struct held_out *figures,
                              struct feed_counts *counts, bool *classes,
                              const struct log *log)
{
    struct session s;
    descant_status status = session_open(&s, how, log);
    struct evaluation e = {
        .model = s.saved.model,
        .w = s.saved.w,
        .tables = {.memory = s.saved.tables, .saved = s.saved.rows},
        .data = s.data,
        .batch = (size_t)how->batch,
        .threads = (int)how->workers,
        .counts = counts,
        .log = log,
    };

    if (status == DESCANT_OK)
        status = evaluate_look(e.model, &e.data);
    if (status == DESCANT_OK)
        status = evaluate(&e, figures);
    if (status == DESCANT_OK)
        *classes = model_outputs(e.model) > 1;
    session_close(&s);
    return status;
}

/* --- scores --- */

/* Prints the probabilities of one example on a line: of a click, or of each class. False:
 * a score is no number. */
static bool put_score(FILE *out, const float *scores, int outputs)
{
    double top = (double)scores[0], sum = 0;
    bool good = true;

    /* Scores are taken less the largest one: exp overflows for none of them then. */
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

/* False: no memory. */
static bool make_scores(struct session *s, struct work *work,
                        const struct examples *batch, float *scores)
{
    const float *tables = s->saved.tables;

    if (s->saved.rows && !(tables = saved_block_fill(&s->block, work, batch))) {
        s->failed = log_fail(s->log, DESCANT_MEMORY, "no memory for a batch's rows");
        return false;
    }
    model_scores(work, s->saved.w, tables, batch, scores);
    return true;
}

/* Prints the scores of a block's lines, batch by batch. A bad line's label is NaN, and so
 * is its score; s->nan counts other lines without a number. */
static bool predict_block(struct session *s, struct work *work,
                          const struct examples *all, float *scores, FILE *out)
{
    size_t batch = (size_t)s->how->batch;
    int outputs = model_outputs(s->saved.model);

    for (size_t at = 0; at < all->n; at += batch) {
        size_t n = all->n - at < batch ? all->n - at : batch;
        struct examples part = examples_slice(all, at, n);
        if (!make_scores(s, work, &part, scores))
            return false;
        for (size_t i = 0; i < n; i++) {
            float *own = scores + i * (size_t)outputs;
            bool bad = isnan(part.labels[i]);
            own[0] = bad ? NAN : own[0];
            s->nan += !put_score(out, own, outputs) && !bad;
        }
    }
    return !ferror(out);
}

/* Reads chunk after chunk, in order, and prints their scores. False, after logging why: a
 * chunk could not be read, a score not printed, or there was no line. */
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
    if (!ok && s->failed == DESCANT_OK)
        output_written(out->file, out->name, s->log);
    else if (got == DATA_END && s->lines == 0)
        log_fail(s->log, DESCANT_INVALID, "there is no example in %s", s->how->data);
    block_fini(&block);
    return ok && got == DATA_END && s->lines > 0;
}

/* The output is opened once the model and the data are there: if one of them is bad, the
 * output has not been touched. */
static bool predict_into(struct session *s, const char *name, FILE *standard,
                         struct data *data, struct work *work, float *scores)
{
    struct output out;
    bool good = output_open(&out, name, NULL, standard, s->log) &&
                predict_all(s, data, work, scores, &out);

    good = output_close(&out, good);
    if (good && s->bad)
        log_say(s->log, DESCANT_WARNING,
                "%llu of %llu lines could not be read: their score is nan",
                (unsigned long long)s->bad, (unsigned long long)s->lines);
    if (good && s->nan)
        log_say(s->log, DESCANT_WARNING,
                "%llu of %llu lines have the score nan, for the model's sums overflow: "
                "values of these lines, or weights, are too large",
                (unsigned long long)s->nan, (unsigned long long)s->lines);
    return good;
}

bool score_predict(const struct scoring *how, const char *name, FILE *standard,
                   const struct log *log)
{
    struct session s;
    struct data *data = NULL;
    struct work *work = NULL;
    float *scores = NULL;
    size_t batch = (size_t)how->batch;
    descant_status status = session_open(&s, how, log);

    s.data.scoring = true;
    if (status == DESCANT_OK)
        status = data_open(&data, &s.data);
    if (status == DESCANT_OK) {
        struct data_options found = s.data;
        found.format = data_format(data);
        status = evaluate_fits(s.saved.model, data_shape(data), &found);
    }
    if (status == DESCANT_OK)
        status = work_create(&work, s.saved.model, batch, log);
    s.block.of = s.saved.rows;
    if (status == DESCANT_OK && s.saved.rows)
        work_on_blocks(work, NULL);
    if (status == DESCANT_OK)
        scores = memory_take_array(batch * (size_t)model_outputs(s.saved.model),
                                   sizeof *scores);
    if (status == DESCANT_OK && !scores)
        log_fail(log, DESCANT_MEMORY, "no memory for the scores");
    bool good = scores && predict_into(&s, name, standard, data, work, scores);
    memory_give(scores);
    work_destroy(work);
    data_close(data);
    session_close(&s);
    return good;
}
