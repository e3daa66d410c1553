/* SPDX-License-Identifier: MIT */
/* The table of settings of `descant train`, a config file that uses the same names, and
 * the small conversions from the words of a person to the options of readers and
 * models. */
#include "run/config.h"

#include "base/option_rows.h"
#include "run/optimizer_rows.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct train_options, field)

/* To add a setting: its field in struct train_options, a row here, its default in
 * train_options_default, and a row of `uses` if it has a meaning only with some model,
 * optimizer or format. The command line, config files, --help, logs and checkpoints
 * follow from the row; the order of the rows is that of --help, whose titles are in
 * cli/train.c. Checkpoints keep every setting by its name, so a name that is changed
 * makes old ones lose the setting. */
const struct option train_settings[] = {
    TEXT("data", data,
         "files to train on, with commas between them; - is stdin, and needs --format"),
    TEXT("eval", eval, "files of the held-out set"),
    CHOICE("format", format, "auto|criteo|libsvm|libffm|idx|cache",
           "format of the files"),
    FLAG("plain-ids", plain_ids, "libsvm, libffm: take indexes as they are, do not hash"),
    INT("fields", fields, 1, 4096, "libffm: number of fields, which count from 0"),
    INT("epochs", epochs, 1, 1e6, "passes over the data"),
    INT("examples", examples, 0, 1e15,
        "examples of --data to train on, counting those before --resume; 0: all"),
    BYTES("chunk", chunk, 4096, 1 << 28,
          "bytes of text that a trainer takes at a time, a chunk"),
    INT("depth", depth, 2, 8, "chunks that a trainer holds at once"),
    REAL("max-bad", max_bad, 0, 1, "share of lines that may be bad"),
    CHOICE("model", model, "linear|fm|dlrm|mlp", "what to train"),
    {"rows", OPTION_INT, AT(rows), 1, 4294967296.0, "grow",
     "rows of each embedding table; linear, fm: of their one table; grow: as many as "
     "there are ids"},
    CHOICE("tables", tables, "replicate|shard|auto",
           "where rows of tables lie: a copy on each host, or each row on one trainer; "
           "auto: shard where copies do not fit into memory, or would be too late"),
    CHOICE("rows-wire", rows_wire, "plan|f32|bf16|q8",
           "shard: how rows and their gradients travel, in floats of 32, 16 or 8 bits; "
           "plan: as the plan's key wire says"),
    SECONDS("rows-age", rows_age, 0, 3600,
            "shard: copies of the hottest rows of others are used for so long; 0: each "
            "row is fetched for each batch"),
    INT("rows-ahead", rows_ahead, 0, 16,
        "shard: so many batches more, at most, whose rows are asked for early while rows "
        "come late; 0: the next batch's alone. More suit a longer link, and cost "
        "quality"),
    BYTES("table-memory", table_memory, 0, 1e15,
          "grow: bytes that the tables may take on each trainer, on one machine in all; "
          "when they are full, rows that are little used go; where rows move, a host "
          "that gets those of another one takes more for them"),
    REAL("rows-admit", rows_admit, OPTION_ABOVE_0, 1,
         "grow: the probability with which a gradient makes a row for a new id"),
    SECONDS("rows-unused", rows_unused, 0, 1e9,
            "grow: rows that nobody has used for so long may go; 0: none for that"),
    CHOICE("rows-move", rows_move, "auto|no|yes",
           "shard: rows go to hosts that come, and from those that leave, over tcp; auto: "
           "yes over tcp, with ranks=1024 at most"),
    SECONDS("rows-replica", rows_replica, 0, 1e6,
            "rows-move: another host has a copy of each row, at most so old, 0.1 s or "
            "more, and takes the rows of a host that dies; 0: its death ends the job"),
    TEXT("rows-shares", rows_shares,
         "shard: how the rows are parted among the ranks, as 2,1,1; equal parts where "
         "it is not given"),
    INT("width", width, 1, 1024, "floats of an embedding"),
    TEXT("bottom", bottom, "dlrm: hidden layers before the embeddings' width"),
    TEXT("top", top, "dlrm, mlp: hidden layers before the output"),
    INT("batch", batch, 1, 1 << 20,
        "examples of a worker's step\t1 where linear, fm train under a plan of "
        "when=shadow or when=never"),
    /* from here to "warmup": config_steps */
    CHOICE("optimizer", optimizer.kind, "sgd|adagrad|adam|adamw|ftrl",
           "optimizer of the dense part\tftrl where the model is linear or fm"),
    CHOICE("table-optimizer", optimizer.rows, "sgd|adagrad|rowwise-adagrad|ftrl",
           "optimizer of the tables\t"
           "as the dense part's where the model is linear or fm"),
    REAL("lr", lr, 0, 1e6, "learning rate\t0.7 where linear, fm have ftrl"),
    REAL("table-lr", table_lr, 0, 1e6, "learning rate of the tables; 0: that of --lr"),
    OPTIMIZER_ROWS,
    REAL("l2", optimizer.l2, 0, 1e3,
         "weight decay of the dense part; ftrl: of rows, too"),
    CHOICE("schedule", schedule, "constant|linear|cosine", "learning rate over the data"),
    REAL("warmup", warmup, 0, 1,
         "share of the data over which the rate rises, from a trainer's first batch on"),
    INT("seed", seed, 0, 9e15, "seed of the initial values and of the order of images"),
    INT("trainers", trainers, 0, 64,
        "trainers to start as processes; 0, or under a launcher: this process alone"),
    INT("workers", workers, 1, 64, "threads of each trainer"),
    TEXT("sync", sync, "the plan, as descant plans lists them; else $DESCANT_PLAN, or "
         "with --tables shard shadow-bmuf,scale=root"),
    TEXT("job", job, "the address of a job to join, with --trainers 0"),
    TEXT("link", link, "a link to emulate, as 1gbit,1ms; none: as fast as memory"),
    REAL("sync-cpu", sync_cpu, 0, 64,
         "the shadow's share of a core; 0: the library's choice"),
    RATE("sync-rate", sync_rate, 0, 1e15,
         "bytes a second that rounds may move; 0: no limit"),
    SECONDS("start-s", start_s, 0.1, 1e6, "seconds to wait for the other trainers"),
    CHOICE("on-term", on_term, "auto|leave|all",
           "SIGTERM to one trainer: it leaves and the others go on, or all end; auto: "
           "leave over tcp, but where rows of tables stay, else all"),
    CHOICE("final", final, "auto|local|mean|central", "which version is the final model"),
    INT("eval-every", eval_every, 0, 1e15,
        "examples between evaluations; 0: at the end only"),
    INT("patience", patience, 0, 1e6,
        "stop after so many evaluations without gain; the best model is kept as "
        "FILE.best beside --checkpoint FILE; 0: never"),
    TEXT("checkpoint", checkpoint, "file to keep the model in (safetensors)"),
    SECONDS("checkpoint-every", checkpoint_every, 0, 1e9,
            "seconds between checkpoints; 0: at the end only"),
    FLAG("resume", resume, "go on from the checkpoint, if there is one"),
    TEXT("log", log, "log to write: a file of JSON lines"),
    SECONDS("log-every", log_every, 0.01, 1e6, "seconds between lines of the log"),
    FLAG("quiet", quiet, "no progress line"),
};
const size_t n_train_settings = sizeof train_settings / sizeof *train_settings;

/* Settings that have a meaning only with some values of another setting. Where several
 * lines are for one setting, one of them is enough. */
static const struct use {
    const char *name, *of, *values;
} uses[] = {
    {"fields", "format", "libffm"},
    {"plain-ids", "format", "libsvm|libffm"},
    {"rows", "model", "linear|fm|dlrm"},
    {"tables", "model", "linear|fm|dlrm"},
    {"rows-wire", "tables", "shard"},
    {"rows-age", "tables", "shard"},
    {"rows-ahead", "tables", "shard"},
    {"rows-shares", "tables", "shard"},
    {"rows-move", "tables", "shard"},
    {"rows-replica", "rows-move", "auto|yes"},
    {"table-memory", "rows", "grow"},
    {"rows-admit", "rows", "grow"},
    {"rows-unused", "rows", "grow"},
    {"width", "model", "fm|dlrm"},
    {"bottom", "model", "dlrm"},
    {"top", "model", "dlrm|mlp"},
    {"table-optimizer", "model", "linear|fm|dlrm"},
    {"table-lr", "model", "linear|fm|dlrm"},
    {"momentum", "optimizer", "sgd"},
    {"beta1", "optimizer", "adam|adamw"},
    {"beta2", "optimizer", "adam|adamw"},
    {"epsilon", "optimizer", "adagrad|adam|adamw"},
    {"epsilon", "table-optimizer", "adagrad|rowwise-adagrad"},
    {"beta", "optimizer", "ftrl"},
    {"beta", "table-optimizer", "ftrl"},
    {"l1", "optimizer", "ftrl"},
    {"l1", "table-optimizer", "ftrl"},
};
enum { N_USES = sizeof uses / sizeof *uses };

/* The setting of that name; NULL: there is none. */
static const struct option *named(const char *name)
{
    return option_find(train_settings, n_train_settings, name, strlen(name));
}

/* The first line of the table by which the setting has no meaning; NULL: it has one. A
 * format that is not known yet meets every condition. */
static const struct use *against(const char *name, const struct train_options *o)
{
    const struct use *found = NULL;
    char value[TOLD_TEXT];

    for (const struct use *use = uses; use < uses + N_USES; use++) {
        if (strcmp(use->name, name) != 0)
            continue;
        option_write(named(use->of), o, value, sizeof value);
        if (strcmp(value, "auto") == 0 || option_choice(use->values, value) >= 0)
            return NULL;
        found = found ? found : use;
    }
    return found;
}

bool config_matters(const struct train_options *o, const char *name)
{
    return !against(name, o);
}

static bool is_given(const bool *given, const char *name)
{
    return given[named(name) - train_settings];
}

static const char usual_plan[] = "shadow-easgd";

/* The plan where none was asked for. Rows that have owners make the steps of all
 * trainers; the rest of the model would fall behind them if it made those of the mean
 * alone (docs/decisions.md). */
static void suit_plan(struct train_options *o, const bool *given)
{
    bool owned = o->tables == TABLES_SHARD || o->rows < 0;

    if (owned && o->sync == usual_plan && !is_given(given, "sync"))
        o->sync = "shadow-bmuf,scale=root";
}

static void suit_model(struct train_options *o, const bool *given)
{
    static const enum row_optimizer_kind rows[] = {
        [OPTIMIZER_SGD] = ROWS_SGD, [OPTIMIZER_ADAGRAD] = ROWS_ADAGRAD,
        [OPTIMIZER_ADAM] = ROWS_ADAGRAD, [OPTIMIZER_ADAMW] = ROWS_ADAGRAD,
        [OPTIMIZER_FTRL] = ROWS_FTRL};
    static const enum optimizer_kind dense[] = {
        [ROWS_SGD] = OPTIMIZER_SGD, [ROWS_ADAGRAD] = OPTIMIZER_ADAGRAD,
        [ROWS_ROWWISE_ADAGRAD] = OPTIMIZER_ADAGRAD, [ROWS_FTRL] = OPTIMIZER_FTRL};
    bool one = is_given(given, "optimizer"), other = is_given(given, "table-optimizer");

    if (o->model != MODEL_LINEAR && o->model != MODEL_FM)
        return;
    if (!one)       /* the other part's optimizer, or the one nearest to it */
        o->optimizer.kind = other ? dense[o->optimizer.rows] : OPTIMIZER_FTRL;
    if (!other)
        o->optimizer.rows = rows[o->optimizer.kind];
    if (o->plan_frees && !is_given(given, "batch"))
        o->batch = 1;
    if (o->optimizer.kind == OPTIMIZER_FTRL && !is_given(given, "lr"))
        o->lr = 0.7;
}

void config_suit(struct train_options *o, const bool *given)
{
    suit_model(o, given);
    suit_plan(o, given);
}

/* Goes through the settings in the table's order; the first without a meaning is the one
 * that is told. Defaults never are: they were not given. */
bool config_means(const struct train_options *o, enum data_format found,
                  const bool *given, char *message, size_t room)
{
    char value[TOLD_TEXT];
    struct train_options known = *o;

    if (o->format == DATA_AUTO)
        known.format = (int)found;
    for (size_t k = 0; k < n_train_settings; k++) {
        const struct use *use = given[k] ? against(train_settings[k].name, &known) : NULL;
        if (!use)
            continue;
        bool seen = o->format == DATA_AUTO && strcmp(use->of, "format") == 0;
        snprintf(message, room, "--%s means nothing with %s%s %s: it is for --%s %s",
                 use->name, seen ? "data found to be of the " : "--", use->of,
                 option_write(named(use->of), &known, value, sizeof value), use->of,
                 use->values);
        return false;
    }
    return true;
}

struct told train_told(const struct train_options *o)
{
    return (struct told){train_settings, n_train_settings, o};
}

/* Fields that are not named are 0, false or NULL: no limit, no file, the first of the
 * choices. */
struct train_options train_options_default(void)
{
    return (struct train_options){
        .fields = 32,
        .epochs = 1,
        .chunk = 256 << 10,
        .depth = 3,
        .max_bad = 0.01,
        .model = MODEL_DLRM,
        .rows = 100000,
        .rows_ahead = 2,
        .rows_admit = 1,
        .width = 16,
        .bottom = "512,256,64",
        .top = "512,256",
        .batch = 128,
        .lr = 0.1,
        .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .beta = 0.3},
        .seed = 1,
        .trainers = 1,
        .workers = 1,
        .sync = usual_plan,
        .link = "none",
        .start_s = 60,
        .checkpoint_every = 60,
        .log_every = 1,
    };
}

/* A whole file as one text, which the caller frees: the delimiter is NUL, which no text
 * has. NULL: *why has the reason. */
static char *read_all(const char *path, const char **why)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;
    ssize_t n = file ? getdelim(&text, &room, 0, file) : -1;
    bool failed = !file || !text || ferror(file), torn = n > 0 && !text[n - 1];

    *why = failed ? strerror(errno) : "it has a NUL byte, and is no text";
    if (file)
        fclose(file);
    if (failed || torn) {
        free(text);
        return NULL;
    }
    if (n < 0)
        *text = 0;
    return text;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        text[--n] = 0;
    return text;
}

/* A config file while it is read. */
struct config {
    struct train_options *options;
    bool *given;                /* (n_train_settings) */
    char *message;              /* the line's error */
    size_t room;
};

static bool wrong(const struct config *c, const char *before, const char *word,
                  const char *after)
{
    snprintf(c->message, c->room, "%s%s%s", before, word, after);
    return false;
}

/* One line, which is changed: name and value become texts of their own. An empty line is
 * good. A flag may stand without a value, as on the command line. */
static bool config_line(const struct config *c, char *line)
{
    for (char *hash = line; (hash = strchr(hash, '#')); hash++)
        if (hash == line || isspace((unsigned char)hash[-1])) {
            *hash = 0;
            break;
        }
    char *name = trim(line), *equals = strchr(name, '=');
    if (!*name)
        return true;
    char *value = NULL;
    if (equals) {
        *equals = 0;
        value = trim(equals + 1);
        name = trim(name);
    }
    const struct option *s = named(name);
    if (!s && !value)
        return wrong(c, "'", name, "' is not name = value");
    if (!s && *name == '-')
        return wrong(c, "'", name, "': names are without dashes here");
    if (!s) {
        struct guess guess =
            option_guess(train_settings, n_train_settings, name, strlen(name));
        snprintf(c->message, c->room, "unknown setting '%s'%s", name,
                 guess_text(&guess, ""));
        return false;
    }
    if (c->given[s - train_settings])
        return wrong(c, "", name, " is given twice");
    c->given[s - train_settings] = true;
    return option_parse(s, value, c->options, c->message, c->room);
}

bool config_read(const char *path, struct train_options *o, bool *given, char **text,
                 char *message, size_t room)
{
    char what[256], *next;
    const struct config c = {o, given, what, sizeof what};
    const char *why;
    int number = 1;

    *text = read_all(path, &why);
    if (!*text) {
        snprintf(message, room, "--config %s: %s", path, why);
        return false;
    }
    for (char *line = *text; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (!config_line(&c, line)) {
            snprintf(message, room, "%s:%d: %s", path, number, what);
            return false;
        }
    }
    return true;
}

/* NULL and "" are no layers, 0. */
int config_sizes(const char *text, int *sizes, int most)
{
    int n = 0;

    while (text && *text) {
        char *end;
        long size = strtol(text, &end, 10);
        bool bad_end = *end && (*end != ',' || !end[1]);
        if (end == text || size < 1 || size > TRAIN_MOST_SIZE || n == most || bad_end)
            return -1;
        sizes[n++] = (int)size;
        text = *end ? end + 1 : end;
    }
    return n;
}

struct data_options config_data(const struct train_options *o,
                                const struct path_list *list, const struct log *log)
{
    return (struct data_options){
        .paths = list->paths,
        .n_paths = list->n,
        .format = (enum data_format)o->format,
        .hash = !o->plain_ids,
        .n_fields = (int)o->fields,
        .chunk_bytes = (size_t)o->chunk,
        .epochs = (int)o->epochs,
        .seed = (uint64_t)o->seed,
        .max_bad = o->max_bad,
        .log = log,
    };
}

struct data_options config_held_out(const struct train_options *o,
                                    const struct path_list *list, const struct log *log)
{
    struct data_options data = config_data(o, list, log);
    data.epochs = 1;
    data.seed = 0;
    return data;
}

descant_status config_shape(const struct train_options *o, const struct data_shape *shape,
                            struct model_shape *out, const struct log *log)
{
    *out = (struct model_shape){
        .kind = (enum model_kind)o->model,
        .n_dense = shape->n_dense,
        .n_fields = shape->n_fields,
        .n_classes = shape->n_classes,
        .rows = o->rows < 0 ? 0 : (size_t)o->rows,
        .grows = o->rows < 0,
        .plain_ids = shape->plain_ids,
        .width = (int)o->width,
    };
    out->n_bottom = config_sizes(o->bottom, out->bottom, TRAIN_LAYERS);
    out->n_top = config_sizes(o->top, out->top, TRAIN_LAYERS);
    if (out->n_bottom < 0)
        return log_fail(log, DESCANT_INVALID, "--bottom %s: sizes, as 512,256,64",
                        o->bottom);
    if (out->n_top < 0)
        return log_fail(log, DESCANT_INVALID, "--top %s: sizes, as 512,256", o->top);
    return DESCANT_OK;
}

/* Rises as a line while `own` is below `warmup`, and falls to 0 over the part of the data
 * behind the first `warmup` of it: as a line, or as half a cosine. */
double config_rate(const struct train_options *o, double place, double own)
{
    double rise = own >= 0 && own < o->warmup ? own / o->warmup : 1;
    double left = place <= o->warmup ? 1 : place > 1 ? 0 : (1 - place) / (1 - o->warmup);

    if (o->schedule == SCHEDULE_CONSTANT)
        return rise;
    return rise * (o->schedule == SCHEDULE_LINEAR ? left : 0.5 - 0.5 * cos(M_PI * left));
}

const char *config_steps(const struct train_options *o, char text[CONFIG_STEPS])
{
    double rate = o->table_lr > 0 ? o->table_lr : o->lr;
    bool tables_as_lr = !(rate < o->lr || rate > o->lr);
    char value[TOLD_TEXT];
    size_t at = 0;

    *text = '\0';
    for (const struct option *s = named("optimizer"); s <= named("warmup"); s++) {
        if ((tables_as_lr && strcmp(s->name, "table-lr") == 0) ||
            !config_matters(o, s->name))
            continue;
        option_write(s, o, value, sizeof value);
        int n = snprintf(text + at, CONFIG_STEPS - at, "%s--%s %s", at ? " " : "",
                         s->name, value);
        at += n > 0 && (size_t)n < CONFIG_STEPS - at ? (size_t)n : 0;
    }
    return text;
}
