/* SPDX-License-Identifier: MIT */
/* descant info FILE: the kind and the contents of a file. Of a checkpoint its texts are
 * shown, of a log its first and its last line; caches and data are read to their end, to
 * be counted. Texts of a file are shown without the bytes that would steer a terminal. */
#include "data/data.h"
#include "data/kind.h"
#include "data/safetensors.h"
#include "files/files.h"
#include "files/ids.h"
#include "files/say.h"
#include "report/report.h"
#include "run/config.h"
#include "run/shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* of libffm: a block has as many bags an example; of libsvm */
enum { MOST_FIELDS = 4096, CHUNK = 1 << 16, MOST_CLASSES = 1 << 20 };

/* --- checkpoints --- */

static const char *text_of(const struct safetensors *file, const char *key)
{
    const char *text = safetensors_text(file, key);
    return text && *text ? text : "?";
}

/* A checkpoint of descant train. Its texts "inputs" and "sums" begin with these numbers
 * (train/save.c); a text that is missing leaves zeros. */
static void say_run(FILE *out, const struct safetensors *file)
{
    struct data_shape s = {0};
    unsigned long long n = 0, positive, correct;
    double loss = 0;
    int plain, format = DATA_AUTO;

    sscanf(text_of(file, "inputs"), "%d %d %d %d %d", &s.n_dense, &s.n_fields,
           &s.n_classes, &plain, &format);
    sscanf(text_of(file, "sums"), "%llu %llu %llu %lg", &n, &positive, &correct, &loss);
    if (format < DATA_AUTO || format > DATA_CACHE)
        format = DATA_AUTO;
    say(out, "is", "a checkpoint of descant train %s", text_of(file, "descant"));
    say(out, "model", "%s: %d dense features, %d fields, %d class%s",
        text_of(file, "model"), s.n_dense, s.n_fields, s.n_classes,
        s.n_classes == 1 ? "" : "es");
    const char *size = safetensors_text(file, "size"), *hosts = text_of(file, "hosts"),
               *trainers = size ? size : text_of(file, "trainers"),
               *workers = text_of(file, "workers");
    say(out, "plan", "%s, %s trainer%s x %s worker%s on %s host%s", text_of(file, "sync"),
        trainers, many(atof(trainers)), workers, many(atof(workers)), hosts,
        many(atof(hosts)));
    say(out, "optimizer", "%s, lr %s; of tables %s", text_of(file, "optimizer"),
        text_of(file, "lr"), text_of(file, "table-optimizer"));
    say(out, "trained on", "%s, read as %s", text_of(file, "data"),
        data_format_names[format]);
    say(out, "examples", "%llu in %s s", n, text_of(file, "seconds"));
    if (n)
        say(out, "loss, training", "%.6f", loss / (double)n);
}

/* The shards of a checkpoint, and whether they are there, each whole and of this
 * checkpoint, which it returns. */
static bool say_shards(FILE *out, const struct safetensors *file, const char *path,
                       const struct shards *s)
{
    int bad = 0;
    char why[LOG_LINE] = "";
    struct shard shard;
    unsigned long long trained = 0;
    double window_s = 0;
    uint64_t rows = 0;

    sscanf(text_of(file, "window"), "%lf %llu", &window_s, &trained);
    for (int k = 0; k < s->n; k++) {
        rows += s->rows[k];
        if (shard_open(&shard, s, path, k, NULL, NULL) == DESCANT_OK)
            shard_close(&shard);
        else if (bad++ == 0)
            snprintf(why, sizeof why, "%s", descant_last_error());
    }
    say(out, "tables", "%llu trained rows in %d shard%s of generation %llu%s",
        (unsigned long long)rows, s->n, many(s->n), (unsigned long long)s->generation,
        strcmp(text_of(file, "rows"), "grow") == 0 ? ": a row for each id" : "");
    if (bad)
        say(out, "shards", "%d of %d cannot be used: %s", bad, s->n, why);
    else
        say(out, "shards", "all there");
    say(out, "written in", "%.3f s, in which %llu examples were trained", window_s,
        trained);
    return bad == 0;
}

/* A shard by itself. */
static void say_shard(FILE *out, const struct safetensors *file,
                      const struct shard_said *said)
{
    size_t n = 0;

    safetensors_list(file, "rows", SAFETENSORS_U64, &n);
    say(out, "is", "shard %d of %d of a checkpoint of descant train", said->k + 1,
        said->of.n);
    say(out, "checkpoint", "%s beside it, generation %llu, id %016llx", said->of.base,
        (unsigned long long)said->of.generation, (unsigned long long)said->of.id);
    if (said->grows)
        say(out, "tables", "%zu rows of %zu floats, a row for each id", n, said->width);
    else
        say(out, "tables", "%llu rows of %zu floats, of which it has %zu",
            said->table_rows, said->width, n);
    say(out, "optimizer", "of tables %s", said->optimizer);
}

/* A checkpoint of descant bsp run, whose text "progress" has these numbers
 * (control/model.c). */
static void say_bsp(FILE *out, const struct safetensors *file)
{
    unsigned long long version = 0, steps = 0, gradients = 0, examples = 0;
    double seconds = 0;

    sscanf(text_of(file, "progress"), "%llu %llu %llu %llu %lf", &version, &steps,
           &gradients, &examples, &seconds);
    say(out, "is", "a checkpoint of descant bsp run %s", text_of(file, "descant"));
    say(out, "optimizer", "%s, lr %s", text_of(file, "optimizer"), text_of(file, "lr"));
    say(out, "version", "%llu, after %llu steps by %llu gradients", version, steps,
        gradients);
    say(out, "examples", "%llu in %.1f s", examples, seconds);
}

/* Whether a tensor is state of the run, by its name, and no parameter of the model. */
static bool is_of_run(const struct safetensor *t)
{
    return strncmp(t->name, "descant.", 8) == 0;
}

/* Counts the values other than 0, of which --l1 leaves few. */
static size_t count_non_zero(const struct safetensor *t)
{
    const float *x = t->data;
    size_t n = 0;
    for (size_t k = 0; t->type == SAFETENSORS_F32 && k < t->bytes / sizeof *x; k++)
        n += x[k] < 0 || x[k] > 0;
    return n;
}

/* The model's tensors, one by one; all others as one amount. */
static void say_tensors(FILE *out, const struct safetensors *file)
{
    static const char *const types[] = {"f32", "u8", "u64"};
    size_t floats = 0, kept = 0, n = 0, non_zero = 0;
    bool thinned = strtod(text_of(file, "l1"), NULL) > 0;
    char shape[64];

    for (size_t k = 0; k < safetensors_count(file); k++) {
        const struct safetensor *t = safetensors_at(file, k);
        floats += is_of_run(t) || t->type != SAFETENSORS_F32 ? 0
                                                             : t->bytes / sizeof(float);
        kept += is_of_run(t) ? t->bytes : 0;
        non_zero += thinned && !is_of_run(t) ? count_non_zero(t) : 0;
        n += !is_of_run(t);
    }
    say(out, "parameters", "%zu in %zu tensor%s", floats, n, many((double)n));
    if (thinned)
        say(out, "other than 0", "%zu of them", non_zero);
    if (kept)
        say(out, "for --resume",
            "%zu bytes: the optimizer's state and the place in the data", kept);
    for (size_t k = 0; k < safetensors_count(file); k++) {
        const struct safetensor *t = safetensors_at(file, k);
        if (is_of_run(t))
            continue;
        snprintf(shape, sizeof shape, t->n_dims > 1 ? "%zu x %zu" : "%zu",
                 t->n_dims ? t->dims[0] : 1, t->dims[1]);
        say(out, "", "%-28s %s, %s", t->name, shape, types[t->type]);
    }
}

static bool say_checkpoint(FILE *out, const char *path, const struct log *log)
{
    struct safetensors *file;
    struct shards shards;
    struct shard_said shard;
    bool good = true;

    if (safetensors_open(&file, path, log) != DESCANT_OK)
        return false;
    if (shard_said(file, &shard)) {
        say_shard(out, file, &shard);
        safetensors_close(file);
        return true;
    } else if (safetensors_text(file, "inputs")) {
        say_run(out, file);
        good = shards_of(file, path, &shards, log) == DESCANT_OK &&
               (!shards.n || say_shards(out, file, path, &shards));
        if (good)
            ids_say_trained(file, path, &shards, out);
    } else if (safetensors_text(file, "progress")) {
        say_bsp(out, file);
    } else {
        say(out, "is", "a safetensors file, not of descant");
    }
    say_tensors(out, file);
    safetensors_close(file);
    return good;
}

/* --- data and caches --- */

struct counts {
    uint64_t examples, lines, bad, positive, ids;
    size_t fields;              /* up to the last one that has ids */
    int classes;                /* up to the largest label */
    enum data_format format;
    char bad_line[512];
    struct ids_seen *seen;      /* the caller's; NULL: they are not looked at */
};

/* Adds a block to the counts. The highest field with ids is sought from the last field
 * down to the one known so far. */
static void count_block(struct counts *c, const struct block *block)
{
    const struct examples *e = &block->examples;
    size_t bags = e->n * (size_t)e->n_fields;

    c->examples += e->n;
    c->lines += block->lines;
    if (c->seen)
        ids_add(c->seen, e);
    c->bad += block->bad;
    for (size_t i = 0; i < e->n; i++)
        c->positive += e->labels[i] > 0;
    for (size_t i = 0; i < e->n; i++)
        c->classes =
            e->labels[i] >= (float)c->classes ? (int)e->labels[i] + 1 : c->classes;
    if (e->n && e->ids)
        c->ids += e->offsets ? e->offsets[bags] - e->offsets[0] : bags;
    for (size_t i = 0; e->offsets && i < e->n; i++) {
        const uint32_t *bag = e->offsets + i * (size_t)e->n_fields;
        for (size_t f = (size_t)e->n_fields; f > c->fields; f--)
            if (bag[f] > bag[f - 1])
                c->fields = f;
    }
}

static descant_status count_all(const struct data_options *options, struct counts *c,
                                struct data_shape *shape)
{
    struct block block = {0};
    struct data *data;
    enum data_got got = DATA_BLOCK;
    descant_status status = data_open(&data, options);

    *c = (struct counts){.seen = c->seen};
    if (status != DESCANT_OK)
        return status;
    *shape = *data_shape(data);
    c->format = data_format(data);
    for (uint64_t k = 0; got == DATA_BLOCK; k++)
        if ((got = data_read(data, k, &block)) == DATA_BLOCK)
            count_block(c, &block);
    status = data_status(data);
    snprintf(c->bad_line, sizeof c->bad_line, "%s", data_bad_line(data));
    block_fini(&block);
    data_close(data);
    return status;
}

/* labelled: the examples were read with their labels. */
static void say_counts(FILE *out, const struct counts *c, const struct data_shape *s,
                       bool labelled)
{
    say(out, "shape", "%d dense feature%s, %d field%s, %d class%s", s->n_dense,
        many(s->n_dense), s->n_fields, many(s->n_fields), s->n_classes,
        s->n_classes == 1 ? "" : "es");
    say(out, "examples", "%llu", (unsigned long long)c->examples);
    if (c->bad) {
        say(out, "bad lines", "%llu of %llu", (unsigned long long)c->bad,
            (unsigned long long)c->lines);
        say(out, "one of them", "%s", c->bad_line);
    }
    if (!labelled)
        say(out, "labels", "none: it can be scored, not trained on");
    else if (c->examples && s->n_classes == 1)
        say(out, "clicks", "%llu, %.2f %%", (unsigned long long)c->positive,
            100 * (double)c->positive / (double)c->examples);
    if (c->examples && s->bags)
        say(out, "pairs", "%.1f an example", (double)c->ids / (double)c->examples);
}

/* libsvm's labels may be numbers of classes: if they are taken as such, most lines are
 * good. */
static descant_status count_classes(const struct data_options *options, struct counts *c,
                                    struct data_shape *shape)
{
    struct data_options o = *options;
    struct data_shape classes;
    struct counts more = {.seen = c->seen};

    o.n_classes = MOST_CLASSES;
    descant_status status = count_all(&o, &more, &classes);
    if (status == DESCANT_OK && more.bad < c->bad) {
        *c = more;
        *shape = classes;
        shape->n_classes = more.classes;
    }
    return status;
}

/* If no line has a label, the lines are read again as lines to score; so are images
 * without a file of labels. */
static bool say_data(FILE *out, const char *path, enum file_kind kind,
                     const struct log *log)
{
    /* With max_bad 1 the data is read to its end, however many of its lines are bad. */
    struct data_options o = {.paths = &path, .n_paths = 1, .hash = true, .max_bad = 1,
                             .n_fields = MOST_FIELDS, .chunk_bytes = CHUNK};
    struct counts c = {.seen = ids_create()};
    struct data_shape shape;

    descant_status status = count_all(&o, &c, &shape);
    if (status == DESCANT_OK && c.bad && c.format == DATA_LIBSVM)
        status = count_classes(&o, &c, &shape);
    o.scoring = status == DESCANT_SYSTEM || status == DESCANT_INVALID ||
                (status == DESCANT_OK && c.examples == 0);
    if (o.scoring)
        status = count_all(&o, &c, &shape);
    if (status != DESCANT_OK) {
        ids_destroy(c.seen);
        log_fail(log, status, "%s", descant_last_error());
        return false;
    }
    c.examples -= o.scoring ? c.bad : 0;
    bool labelled = !o.scoring || c.examples == 0;
    if (kind == FILE_CACHE)
        say(out, "is", "a cache of descant gen cache: ids %s",
            shape.plain_ids ? "as they were" : "hashed");
    else
        say(out, "is", "data of the format %s", data_format_names[c.format]);
    if (c.format == DATA_LIBFFM)
        shape.n_fields = (int)c.fields;
    say_counts(out, &c, &shape, labelled);
    if (c.seen)
        ids_say(c.seen, &shape, out);
    ids_destroy(c.seen);
    if (c.format == DATA_LIBFFM && c.fields)
        say(out, "to train on", "--fields %zu or more, %lld without it", c.fields,
            (long long)train_options_default().fields);
    return true;
}

/* --- logs --- */

/* Numbers of the dense part and of the tables, as in a checkpoint; NaN: the log has
 * none. */
static double parameters(const struct report_run *run)
{
    const json_t *dense = json_object_get(run->header, "parameters");
    const json_t *tables = json_object_get(run->header, "table_parameters");
    return json_is_number(dense) ? json_number_value(dense) + json_number_value(tables)
                                 : (double)NAN;
}

static bool say_log(FILE *out, const char *path, FILE *err)
{
    /* A row has the name that is shown, then the header's key or, of figures, the
     * summary's. Without a summary a figure is that of the last interval; REPORT_FIELDS:
     * none. */
    static const char *const texts[][2] = {{"begun", "time"}, {"model", "model"},
                                           {"plan", "sync"},  {"data", "data"},
                                           {"held out", "eval"}};
    static const struct {
        const char *name, *key;
        enum report_field field;
        int decimals;
    } figures[] = {
        {"examples", "examples", REPORT_EXAMPLES, 0},
        {"seconds", "seconds", REPORT_SECONDS, 1},
        {"loss", "loss", REPORT_LOSS, 6},
        {"loss of its start", "start_loss", REPORT_FIELDS, 6},
        {"held-out loss", "eval_loss", REPORT_EVAL_LOSS, 6},
        {"AUC", "auc", REPORT_AUC, 6},
        {"accuracy", "eval_accuracy", REPORT_ACCURACY, 6},
        {"rows of tables", "rows_live", REPORT_FIELDS, 0},
        {"rows evicted", "rows_evicted", REPORT_FIELDS, 0},
        {"rows moved", "rows_moved", REPORT_FIELDS, 0},
    };
    struct report_run run;
    bool good = report_read(&run, path, err), bsp = good && report_of_bsp(&run);

    if (good) {
        const char *unfinished = report_unfinished(&run);
        say(out, "is", "a log of descant %s%s%s", bsp ? "bsp run" : "train",
            unfinished ? ", " : "", unfinished ? unfinished : "");
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            const json_t *value = json_object_get(run.header, texts[k][1]);
            if (json_string_length(value) > 0)
                say(out, texts[k][0], "%s", json_string_value(value));
        }
        if (isfinite(parameters(&run)))
            say(out, "parameters", "%.0f", parameters(&run));
        size_t n = 0;
        for (size_t k = 0; k < run.n; k++)
            n += !run.points[k].apart;
        say(out, bsp ? "supersteps" : "intervals", "%zu", n);
        if (run.n_failed)
            say(out, "not written", "%d checkpoint%s: %s", run.n_failed,
                many(run.n_failed),
                json_is_string(run.failed) ? json_string_value(run.failed) : "?");
        for (size_t k = 0; k < sizeof figures / sizeof *figures; k++) {
            double value = report_figure(&run, figures[k].key, figures[k].field);
            if (isfinite(value))
                say(out, figures[k].name, "%.*f", figures[k].decimals, value);
        }
    }
    report_run_fini(&run);
    return good;
}

bool file_tell(const char *path, FILE *out, FILE *err, const struct log *log)
{
    struct stat of;
    size_t n;
    enum data_format format;
    enum file_kind kind = file_kind_of(path);

    if (stat(path, &of) != 0 || !S_ISREG(of.st_mode)) {
        log_fail(log, DESCANT_SYSTEM,
                 stat(path, &of) != 0 ? "%s: %m" : "%s: no regular file", path);
        return false;
    }
    say(out, "file", "%s, %lld bytes", path, (long long)of.st_size);
    switch (kind) {
    case FILE_SAFETENSORS:
        return say_checkpoint(out, path, log);
    case FILE_CACHE:
    case FILE_DATA:
        return say_data(out, path, kind, log);
    case FILE_LOG:
        return say_log(out, path, err);
    case FILE_OTHER:            /* or it cannot be read */
        if (data_peek(path, NULL, 0, &n, &format, log) != DESCANT_OK)
            return false;
        /* fall through */
    default:
        say(out, "is", "%s", file_kind_text(kind));
        return true;
    }
}
