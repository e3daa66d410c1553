/* SPDX-License-Identifier: MIT */
/* descant bsp: its commands, and the options of a run. All faults that can be known
 * beforehand are found before a segment is made.
 *
 * run, control and local share one table of options and one course. parse reads the words
 * up to "--" into the options, and refuses those of the other half; check finds faults of
 * the values; take_part opens the link to the other ranks, if there are any; the rank
 * that has the model then checks its files, and the run begins (src/control). descant bsp
 * status has a file of its own. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "control/control.h"
#include "files/files.h"
#include "link/mpi.h"
#include "run/optimizer_rows.h"
#include "run/progress.h"
#include "sync/launcher.h"

#include <string.h>

#define AT(field) offsetof(struct bsp_options, field)

/* The options of run, control and local together. A row needs no other place: the run's
 * log and its checkpoint have every row as text (run/told.h), and an option that control
 * or local alone may have is known by check_role's lists. */
static const struct option bsp_settings[] = {
    TEXT("name", name, "name of the run; its segments are NAME-0, NAME-1, ..."),
    INT("modules", modules, 1, BSP_MODULES,
        "local modules, each with a segment and a COMMAND"),
    INT("locals", locals, 1, 63,
        "control: processes of local modules; under a launcher its ranks count instead"),
    INT("number", number, -1, 62,
        "local: number of this process among them, from 0; -1: the first free one"),
    INT("slots", slots, 1, SEGMENT_SLOTS, "ML modules that a segment has room for"),
    TEXT("params", params,
         "a model of zeros: its floats, or parts as weight=1000,bias=1"),
    TEXT("model", model, "safetensors file to begin with"),
    TEXT("period", period, "time between two supersteps, as 50ms, the default"),
    INT("every-gradients", every_gradients, 0, 1e9,
        "instead of --period: gradients between two supersteps"),
    INT("min-gradients", min_gradients, 0, 1e9,
        "the fewest gradients of a step, which waits for them"),
    INT("bound", bound, 0, 1e9, "versions that a gradient may be behind"),
    CHOICE("optimizer", optimizer.kind, "sgd|adagrad|adam|adamw|ftrl",
           "optimizer of the model"),
    REAL("lr", lr, 0, 1e6, "learning rate"),
    OPTIMIZER_ROWS,
    REAL("l2", optimizer.l2, 0, 1e3, "weight decay"),
    REAL("clip", clip, 0, 1e12, "longest mean gradient of a step; 0: any"),
    INT("supersteps", supersteps, 0, 1e15,
        "supersteps at which the run stops, with those before --resume; 0: no limit"),
    INT("examples", examples, 0, 1e15,
        "examples at which the run stops, with those before --resume; 0: no limit"),
    REAL("minutes", minutes, 0, 1e6, "minutes after which the run stops; 0: no limit"),
    INT("restarts", restarts, 0, 1e6, "times that a COMMAND which dies is started again"),
    SECONDS("grace", grace, 0, 3600, "seconds that modules have to leave at the end"),
    TEXT("eval", eval,
         "files of a held-out set, where --model is a checkpoint of descant train"),
    INT("eval-every", eval_every, 0, 1e15,
        "examples between evaluations; 0: at the end only"),
    INT("patience", patience, 0, 1e6,
        "stop after so many evaluations without gain; 0: never"),
    TEXT("checkpoint", checkpoint, "file to keep the model in (safetensors)"),
    SECONDS("checkpoint-every", checkpoint_every, 0, 1e9,
            "seconds between checkpoints; 0: at the end only"),
    FLAG("resume", resume, "go on from the checkpoint, if there is one"),
    TEXT("log", log, "log to write: a file of JSON lines, one a superstep"),
    FLAG("quiet", quiet, "no progress line"),
};
static const size_t bsp_n_settings = sizeof bsp_settings / sizeof *bsp_settings;

/* Not in defaults(): a period that was given, and none, must differ beside
 * --every-gradients. */
#define DEFAULT_PERIOD "50ms"

/* Fields that are not named are 0 or NULL: no limit, no file. */
static struct bsp_options defaults(void)
{
    return (struct bsp_options){
        .name = "bsp", .modules = 1, .locals = 1, .number = -1, .slots = 1, .bound = 16,
        .lr = 0.1,
        .optimizer = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .beta = 0.3},
        .restarts = 3, .grace = 5,
        .checkpoint_every = 60,
    };
}

static void help(FILE *out)
{
    fputs(
        "usage: descant bsp run --params COUNT [OPTIONS] -- COMMAND [ARGUMENTS]\n"
        "       descant bsp control [ADDRESS] --params COUNT [OPTIONS]\n"
        "       descant bsp local [ADDRESS] [OPTIONS] -- COMMAND [ARGUMENTS]\n"
        "       descant bsp status NAME [--over SECONDS] [--json]\nbsp run trains a "
        "model by gradients that other programs compute, in any language. It starts a "
        "COMMAND for\neach segment of shared memory; the COMMAND, a module, finds its "
        "segment by the variable DESCANT_SEGMENT.\nWithout COMMAND the run waits for "
        "modules that others start. bsp control and bsp local are the two halves\nof "
        "bsp run: one process has the model, and --locals processes have segments and "
        "modules. They meet at the\nADDRESS shm:NAME on one machine; under mpirun they "
        "are ranks of one job, and so are those of bsp run.\nbsp status shows the state "
        "of a run, whose default NAME is bsp\n\n",
        out);
}

static void run_help(FILE *out)
{
    struct bsp_options o = defaults();
    help(out);
    settings_help(out, bsp_settings, bsp_n_settings, &o);
}

/* --- checks --- */

/* Reads --period, or the default, into period_s. A period beside --every-gradients is
 * refused. */
static bool period_good(const struct cli *cli, struct bsp_options *o)
{
    static const struct option period = {"period", OPTION_TIME, AT(period_s), 0.001, 3600,
                                         NULL, NULL};
    const char *text = o->period ? o->period : DEFAULT_PERIOD;
    char message[256];
    if (o->period && o->every_gradients) {
        cli_bad_use(cli,
                    "--period and --every-gradients: one of them says when to read out");
        return false;
    }
    if (option_parse(&period, text, o, message, sizeof message))
        return true;
    cli_bad_use(cli, "--%s", message);
    return false;
}

/* The name begins the names of the run's segments, which have these characters alone
 * (bsp/object.c). */
static bool name_good(const struct cli *cli, const char *name)
{
    size_t n = strlen(name);
    size_t good =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (n > 0 && n <= BSP_NAME && good == n)
        return true;
    cli_bad_use(cli, "--name '%s': it has 1 to %d letters, digits, '.', '_' or '-'", name,
                BSP_NAME);
    return false;
}

/* For run and control, which have the model. local has none: only its name is checked. */
static int check(const struct cli *cli, struct bsp_options *o)
{
    if (!name_good(cli, o->name) || !period_good(cli, o))
        return CLI_BAD_USE;
    if (o->params && o->model)
        return cli_bad_use(cli, "give --params or --model, not both");
    if (!o->params && !o->model && !o->resume)
        return cli_bad_use(cli, "give --params or --model for the model to train");
    if (o->resume && !o->checkpoint)
        return cli_bad_use(cli, "--resume needs --checkpoint");
    if (o->eval && !o->model)
        return cli_bad_use(cli, "--eval needs --model, a checkpoint of descant train, "
                                "which has the model's kind");
    if (o->eval_every && !o->eval)
        return cli_bad_use(cli, "--eval-every needs --eval");
    if (o->patience && !o->eval_every)
        return cli_bad_use(cli, "--patience needs --eval-every");
    return CLI_DONE;
}

/* --- the commands --- */

/* The part of the rank that has the model, to its end; closes the link. Only rank 0 uses
 * the files: other hosts need not have their folders. */
static int lead(const struct cli *cli, struct bsp_options *o, struct bsp_link *link)
{
    const struct named_file files[] = {{"checkpoint", &o->checkpoint, FILE_KEPT},
                                       {"log", &o->log, FILE_LOGGED},
                                       {"model", &o->model, FILE_READ},
                                       {"eval", &o->eval, FILE_READ}};
    char target[PATH_MAX];
    int status = cli_files(cli, files, sizeof files / sizeof *files, target);

    if (status == CLI_DONE)
        return bsp_run(o, link, cli->out, cli->err);
    bsp_link_close(link, false);
    return status;
}

/* Rank 0 has the run; another rank has local modules. Opens the link, finds this
 * process's part, and returns that part's exit status with the link closed. Under a
 * launcher every rank has --modules of its own. A rank that a launcher has given the
 * wrong command fails here: two ranks may not have control, and one must. */
static int take_part(const struct cli *cli, enum bsp_role role, struct bsp_options *o)
{
    struct progress progress;
    const struct log log = {.fn = progress_log, .user = &progress, .rank = -1};
    struct bsp_link *link = NULL;
    progress_open(&progress, cli->err, true);
    descant_status status = bsp_link_open(&link, role, o, &log);
    if (status != DESCANT_OK)
        return status == DESCANT_BAD_ADDRESS ? CLI_BAD_USE : CLI_FAILED;
    bool first = !link || link->f->rank == 0;
    o->all_modules = (int)o->modules * (link ? link->ranks : 1);
    if (role == BSP_RUN || first == (role == BSP_CONTROL))
        return first ? lead(cli, o, link) : bsp_local(o, link, cli->err);
    log_fail(&log, DESCANT_BAD_RANK,
             "rank %d: rank 0 is descant bsp control, and no other one is",
             link->f->rank);
    bsp_link_close(link, false);
    return CLI_FAILED;
}

/* names ends with NULL */
static bool among(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* Refuses an option of control that is given to local, and the other way round. */
static int check_role(const struct cli *cli, enum bsp_role role)
{
    static const char *const locals[] = {"modules", "number", "slots", "restarts", NULL};
    static const char *const both[] = {"name", "grace", "quiet", NULL};
    for (int i = 0; i < cli->argc && role != BSP_RUN; i++) {
        const char *word = cli->argv[i] + 2;
        size_t length = strcspn(word, "=");
        const struct option *s = option_find(bsp_settings, bsp_n_settings, word, length);
        i += !word[length] && s->type != OPTION_BOOL;
        enum bsp_role of = among(locals, s->name) ? BSP_LOCAL : BSP_CONTROL;
        if (of != role && !among(both, s->name))
            return cli_bad_use(cli, "--%s belongs to descant bsp %s", s->name,
                               of == BSP_LOCAL ? "local" : "control");
    }
    return CLI_DONE;
}

/* The options end at "--"; the words behind it, at least one, are the command. A first
 * word without a dash is the ADDRESS of control and local. Returns an exit status, or -1
 * after the help. */
static int parse(const struct cli *cli, enum bsp_role role, struct bsp_options *o)
{
    struct cli own = *cli;
    own.argc = 0;
    while (own.argc < cli->argc && strcmp(cli->argv[own.argc], "--") != 0)
        own.argc++;
    if (settings_wants_help(&own)) {
        run_help(cli->out);
        return -1;
    }
    if (own.argc + 1 == cli->argc)
        return cli_bad_use(cli, "there is no COMMAND after --");
    if (own.argc < cli->argc)
        o->command = cli->argv + own.argc + 1;
    if (role != BSP_RUN && own.argc > 0 && own.argv[0][0] != '-') {
        o->address = own.argv[0];
        own.argc--;
        own.argv++;
    }
    int status = settings_parse(&own, bsp_settings, bsp_n_settings, o, NULL);
    return status == CLI_DONE ? check_role(&own, role) : status;
}

/* A command from its words to its exit status. control has no modules, so its default is
 * 0, not the table's 1. */
static int begin(const struct cli *cli, enum bsp_role role, struct bsp_options *o)
{
    if (role == BSP_CONTROL)
        o->modules = 0;
    int status = parse(cli, role, o);
    if (status != CLI_DONE)
        return status < 0 ? CLI_DONE : status;
    if (role == BSP_CONTROL && o->command)
        return cli_bad_use(
            cli, "control has no modules: COMMAND belongs to descant bsp local");
    if (role == BSP_LOCAL)
        status = name_good(cli, o->name) ? CLI_DONE : CLI_BAD_USE;
    else
        status = check(cli, o);
    return status == CLI_DONE ? take_part(cli, role, o) : status;
}

int cli_bsp(const struct cli *cli)
{
    static const char *const names[] = {"run", "control", "local", "status", NULL};
    static const char *const commands[] = {"bsp run", "bsp control", "bsp local"};
    struct cli own = *cli;
    const char *word = cli->argc > 0 ? cli->argv[0] : "";
    own.argc--;
    own.argv++;
    if (cli_is_help(word)) {
        run_help(cli->out);
        return CLI_DONE;
    }
    for (enum bsp_role role = BSP_RUN; role <= BSP_LOCAL; role++)
        if (strcmp(word, names[role]) == 0) {
            own.command = commands[role];
            struct bsp_options o = defaults();
            o.told = (struct told){bsp_settings, bsp_n_settings, &o};
            int status = begin(&own, role, &o);
            /* other ranks would wait in MPI for one that ends before it comes there */
            if (status != CLI_DONE && launcher_may_be_mpi(o.address))
                mpi_module_abort(status);
            return status;
        }
    if (strcmp(word, "status") == 0) {
        own.command = "bsp status";
        return cli_bsp_status(&own);
    }
    return cli_unknown(cli, "command", word, names);
}
