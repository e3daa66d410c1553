/* SPDX-License-Identifier: MIT */
/* The held-out set through a model: several threads share the set by batches. While
 * training runs, one thread beside the workers evaluates, and no worker waits for it: it
 * reads a copy of the dense part, and the tables as they move. At the end the final model
 * is at rest. Scores are kept for the exact AUC, 8 bytes an example. */
#include "run/evaluate.h"

#include "data/paths.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

descant_status evaluate_fits(const struct model *model, const struct data_shape *have,
                             const struct data_options *data)
{
    const struct model_shape *want = model_shape(model);
    char what[INPUTS_ROOM];

    if (have->n_fields && want->n_fields && have->plain_ids != want->plain_ids)
        return log_fail(data->log, DESCANT_MISMATCH,
                        "%s: its ids are %s, the model takes %s ones", data->paths[0],
                        have->plain_ids ? "plain" : "hashed",
                        want->plain_ids ? "plain" : "hashed");
    if (have->n_dense == want->n_dense && have->n_fields == want->n_fields &&
        have->n_classes <= want->n_classes)
        return DESCANT_OK;
    return log_fail(data->log, DESCANT_MISMATCH, "%s; the model takes %d, %d and %d",
                    inputs_text(data, have, what, sizeof what), want->n_dense,
                    want->n_fields, want->n_classes);
}

static descant_status no_example(const struct data_options *data)
{
    return log_fail(data->log, DESCANT_INVALID, "there is no example in %s%s",
                    data->paths[0], data->n_paths > 1 ? " and the files after it" : "");
}

/* Reads up to the first example. Bad lines on the way are counted when the set is
 * evaluated. */
static descant_status look_for_example(const struct data_options *options)
{
    struct data_options silent = *options;
    struct block block = {0};
    struct data *data;

    silent.log = NULL;
    descant_status status = data_open(&data, &silent);
    if (status != DESCANT_OK)
        return log_fail(options->log, status, "%s", descant_last_error());
    enum data_got got = DATA_BLOCK;
    for (uint64_t k = 0; got == DATA_BLOCK && block.examples.n == 0; k++)
        got = data_read(data, k, &block);
    if (got == DATA_FAILED)
        status = log_fail(options->log, data_status(data), "%s", descant_last_error());
    else if (got == DATA_END)
        status = no_example(options);
    block_fini(&block);
    data_close(data);
    return status;
}

descant_status evaluate_look(const struct model *model,
                             const struct data_options *options)
{
    struct data *data;
    descant_status status = data_open(&data, options);

    if (status != DESCANT_OK)
        return status;
    struct data_options found = *options;
    found.format = data_format(data);
    bool lasts = data_lasts(data);
    status = evaluate_fits(model, data_shape(data), &found);
    data_close(data);
    return status == DESCANT_OK && lasts ? look_for_example(&found) : status;
}

/* One thread of an evaluation: its own sums, which are merged when it has ended; no lock
 * is needed. */
struct examiner {
    const struct evaluation *e;
    struct feed *feed;
    struct work *work;
    struct ahead ahead;
    float *scores;
    struct metrics sum;
    struct auc auc;
    descant_status status;
    char why[256];                  /* of status, where the thread met it */
    pthread_t thread;
    bool started;
};

/* Takes batches until there are none. A failure ends this thread alone; the feed's other
 * batches go to the others. */
static void *examine(void *of)
{
    struct examiner *me = of;
    const struct evaluation *e = me->e;
    struct feed_batch batch;
    const float *tables;
    int outputs = model_outputs(e->model);

    nn_thread_init();
    while (me->status == DESCANT_OK && ahead_next(&me->ahead, &batch, &tables)) {
        model_scores(me->work, e->w, tables, &batch.examples, me->scores);
        metrics_add(&me->sum, me->scores, batch.examples.labels, batch.examples.n,
                    outputs);
        if (outputs == 1)
            me->status =
                auc_add(&me->auc, me->scores, batch.examples.labels, batch.examples.n);
        feed_done(me->feed, &batch);
    }
    if (me->status == DESCANT_OK)
        me->status = me->ahead.status;
    ahead_fini(&me->ahead);
    if (me->status != DESCANT_OK) {
        log_fail(e->log, me->status, "%s", descant_last_error());
        snprintf(me->why, sizeof me->why, "%s", descant_last_error());
    }
    return NULL;
}

/* A failure that another thread has logged becomes this thread's last error, without a
 * second log line. */
static descant_status repeat(descant_status status, const char *why)
{
    return status == DESCANT_OK ? status : log_fail(NULL, status, "%s", why);
}

/* A failure leaves what evaluate releases. */
static descant_status examiner_start(struct examiner *me, const struct evaluation *e,
                                     struct feed *feed)
{
    me->e = e;
    me->feed = feed;
    me->scores =
        memory_take_array(e->batch * (size_t)model_outputs(e->model), sizeof(float));
    if (!me->scores)
        return log_fail(e->log, DESCANT_MEMORY, "no memory to evaluate");
    descant_status status = work_create(&me->work, e->model, e->batch, e->log);
    if (status != DESCANT_OK)
        return status;
    ahead_init(&me->ahead, &e->tables, feed, me->work);
    if (pthread_create(&me->thread, NULL, examine, me) != 0)
        return log_fail(e->log, DESCANT_SYSTEM, "no thread to evaluate");
    me->started = true;
    return DESCANT_OK;
}

/* Every thread that was started is joined, also after a failure, before anything is
 * released; the first failure counts. After a failure the figures in h are of a part of
 * the set, and the AUC is NaN. */
descant_status evaluate(const struct evaluation *e, struct held_out *h)
{
    struct examiner all[EVALUATE_THREADS] = {{0}};
    struct feed_options options = {.data = e->data, .depth = 3, .batch = e->batch,
                                   .stopped = e->stopped, .of = e->of,
                                   .counts = e->counts, .log = e->log};
    const char *why;
    struct feed *feed = NULL;
    struct metrics sum = {0};
    descant_status status = feed_start(&feed, &options);

    if (status == DESCANT_OK)
        status = evaluate_fits(e->model, feed_shape(feed), &options.data);
    if (status == DESCANT_OK)
        status = model_reserve(e->model, e->threads, e->log);
    for (int k = 0; k < e->threads && status == DESCANT_OK; k++)
        status = examiner_start(&all[k], e, feed);
    for (int k = 0; k < e->threads; k++) {
        if (all[k].started)
            pthread_join(all[k].thread, NULL);
        status = status == DESCANT_OK ? repeat(all[k].status, all[k].why) : status;
        metrics_merge(&sum, &all[k].sum);
        if (k > 0 && status == DESCANT_OK &&
            (status = auc_merge(&all[0].auc, &all[k].auc)) != DESCANT_OK)
            log_fail(e->log, status, "%s", descant_last_error());
    }
    if (status == DESCANT_OK && (status = feed_status(feed, &why)) != DESCANT_OK)
        repeat(status, why);
    if (status == DESCANT_OK && sum.n == 0 && !(e->stopped && e->stopped(e->of)))
        status = no_example(&e->data);
    h->n = sum.n;
    h->positive = sum.positive;
    h->loss = metrics_logloss(&sum);
    h->entropy = metrics_entropy(&sum);
    h->accuracy = metrics_accuracy(&sum);
    h->calibration = metrics_calibration(&sum);
    h->auc = status == DESCANT_OK ? auc_value(&all[0].auc) : NAN;
    for (int k = 0; k < e->threads; k++) {
        work_destroy(all[k].work);
        memory_give(all[k].scores);
        auc_fini(&all[k].auc);
    }
    feed_stop(feed);
    return status;
}

/* --- points of a curve --- */

/* The keys that src/report/log.c reads from an evaluation and from the summary. */
void held_out_json(struct json *json, const struct held_out *h)
{
    json_real(json, "eval_loss", h->loss);
    json_real(json, "eval_ne", h->entropy);
    json_real(json, "auc", h->auc);
    json_real(json, "eval_calibration", h->calibration);
    json_real(json, "eval_accuracy", h->accuracy);
}

void held_out_log(struct run_log *log, const struct held_out *h)
{
    struct json json;

    if (!log->file)
        return;
    json_begin(&json, log->file);
    json_text(&json, "kind", "eval");
    json_int(&json, "examples", (int64_t)h->at);
    json_real(&json, "seconds", h->seconds);
    json_int(&json, "eval_examples", (int64_t)h->n);
    json_int(&json, "eval_clicks", (int64_t)h->positive);
    held_out_json(&json, h);
    run_log_written(log, json_end(&json), true);
}

const char *held_out_text(const struct held_out *h, char *text, size_t room)
{
    char count[32];
    int used = snprintf(text, room, "held out at %s: loss %.5f",
                        count_text((double)h->at, count, sizeof count), h->loss);

    if (used > 0 && (size_t)used < room && isfinite(h->auc))
        snprintf(text + used, room - (size_t)used,
                 "  NE %.4f  AUC %.4f  calibration %.3f", h->entropy, h->auc,
                 h->calibration);
    else if (used > 0 && (size_t)used < room)
        snprintf(text + used, room - (size_t)used, "  accuracy %.4f", h->accuracy);
    return text;
}

void held_out_show(const struct progress *p, const struct held_out *h)
{
    char text[160];

    progress_end_line(p);
    if (!p->quiet)
        fprintf(p->err, "%s\n", held_out_text(h, text, sizeof text));
}
