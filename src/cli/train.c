/* SPDX-License-Identifier: MIT */
/* descant train: reads the command line and a config file by the one table of settings
 * (the command line counts more), checks all that can be checked before anything starts,
 * and hands over. */
#include "cli/cli.h"
#include "data/data.h"
#include "data/safetensors.h"
#include "files/files.h"
#include "link/mpi.h"
#include "link/tcp.h"
#include "sync/launcher.h"
#include "sync/plan.h"
#include "train/launch.h"
#include "run/saved.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The help's parts: where each begins in the table. */
static const struct {
    const char *title, *first;
} parts[] = {
    {"data", "data"},
    {"model", "model"},
    {"training", "batch"},
    {"trainers, and how they are kept together", "trainers"},
    {"evaluation", "eval-every"},
    {"output", "checkpoint"},
};
enum { N_PARTS = sizeof parts / sizeof *parts };

static size_t begin_of(int part)
{
    if (part == N_PARTS)
        return n_train_settings;
    const char *first = parts[part].first;
    return (size_t)(option_find(train_settings, n_train_settings, first, strlen(first)) -
                    train_settings);
}

static void help(FILE *out)
{
    struct train_options defaults = train_options_default();
    fputs("usage: descant train --data FILES [OPTIONS]\ntrains a click model or a "
          "network with several trainers, kept together as --sync says;\nin brackets are "
          "the default and the allowed values\n\n  --config            file of settings, "
          "one a line: name = value\n",
          out);
    for (int k = 0; k < N_PARTS; k++) {
        size_t from = begin_of(k);
        fprintf(out, "\n%s:\n", parts[k].title);
        settings_help(out, train_settings + from, begin_of(k + 1) - from, &defaults);
    }
}

/* Files that are not there are found before trainers are started. */
static bool files_there(const struct cli *cli, const char *option, const char *names)
{
    char name[4096];

    for (const char *at = names; at && *at;) {
        size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (*name && strcmp(name, "-") != 0 && access(name, R_OK) != 0) {
            cli_bad_use(cli, "--%s: %s: %m", option, name);
            return false;
        }
        at += n + (at[n] == ',');
    }
    return true;
}

/* The final version that is asked for must be one that the plan keeps. */
static bool final_good(const struct cli *cli, const struct train_options *o)
{
    struct plan plan;

    if (o->final != FINAL_CENTRAL || plan_parse(&plan, o->sync, NULL) != DESCANT_OK ||
        plan.what == PLAN_ELASTIC || plan.what == PLAN_BLOCK)
        return true;
    cli_bad_use(cli, "--final central: the plan %s keeps no central or global version",
                o->sync);
    return false;
}

static bool sizes_good(const struct cli *cli, const char *option, const char *text)
{
    int sizes[NN_MAX_LAYERS];

    if (config_sizes(text, sizes, TRAIN_LAYERS) >= 0)
        return true;
    cli_bad_use(cli, "--%s %s: allowed are up to %d sizes from 1 to %d, as 512,256",
                option, text, TRAIN_LAYERS, TRAIN_MOST_SIZE);
    return false;
}

/* How many trainers a launcher has started, this process among them; 0: there is none. A
 * Slurm job's script has the number of tasks, too, and is none of them. */
static int launched(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_NTASKS"};
    const char *size = getenv("WORLD_SIZE");
    bool mpi = mpi_module_launcher() != MPI_LAUNCHER_NONE;

    bool ranks = mpi || getenv("SLURM_STEP_ID");

    for (int k = 0; ranks && !size && k < 3; k++)
        size = getenv(sizes[k]);
    return size && atoi(size) > 1 ? atoi(size) : mpi;
}

/* Under a launcher each process is one trainer, and would else begin a job of its own. */
static bool trainers_good(const struct cli *cli, struct train_options *o)
{
    int n = launched();

    if (o->trainers > 1 && n > 1) {
        cli_bad_use(cli,
                    "--trainers %d under a launcher, which has started %d: each process "
                    "is one trainer of its job; leave it out, or give --trainers 0",
                    (int)o->trainers, n);
        return false;
    }
    const char *job = launcher_job(NULL);
    if (o->trainers > 1 && !o->job && job) {
        cli_bad_use(cli,
                    "--trainers %d while DESCANT_JOB is %s: this process is one trainer "
                    "of that job; leave --trainers out, or unset DESCANT_JOB",
                    (int)o->trainers, job);
        return false;
    }
    if (o->trainers == 1 && !o->job && (n || job))
        o->trainers = 0;
    return true;
}

/* Whether the settings that were given have a meaning, also for the format that the data
 * has. */
static bool settings_mean(const struct train_options *o, const bool *given, char *message,
                          size_t room)
{
    enum data_format found = DATA_AUTO;
    char path[4096];
    size_t n;

    snprintf(path, sizeof path, "%.*s", o->data ? (int)strcspn(o->data, ",") : 0,
             o->data ? o->data : "");
    if (*path && data_peek(path, NULL, 0, &n, &found, NULL) != DESCANT_OK)
        found = DATA_AUTO;
    return config_means(o, found, given, message, room);
}

static int check(const struct cli *cli, struct train_options *o, char *target)
{
    const char *config = settings_config(cli);
    const struct named_file files[] = {{"checkpoint", &o->checkpoint, FILE_KEPT},
                                       {"log", &o->log, FILE_LOGGED},
                                       {"data", &o->data, FILE_READ},
                                       {"eval", &o->eval, FILE_READ},
                                       {"config", &config, FILE_READ}};

    if (!o->data)
        return cli_bad_use(cli, "give --data, the files to train on");
    if (strcmp(o->data, "-") == 0 && o->format == DATA_AUTO)
        return cli_bad_use(cli, "--data -: stdin is read only once, so its format cannot "
                                "be looked at before: give --format");
    if (!sizes_good(cli, "bottom", o->bottom) || !sizes_good(cli, "top", o->top))
        return CLI_BAD_USE;
    if (!files_there(cli, "data", o->data) ||
        (o->eval && !files_there(cli, "eval", o->eval)))
        return CLI_BAD_USE;
    bool told = o->sync == getenv("DESCANT_PLAN");
    if (!cli_plan_ok(cli, told ? "sync from DESCANT_PLAN" : "sync", o->sync) ||
        !final_good(cli, o) ||
        cli_files(cli, files, sizeof files / sizeof *files, target) != CLI_DONE)
        return CLI_BAD_USE;
    char suffix[128];
    double rate, rtt;
    if (!cli_link_ok(cli, o->link, suffix, sizeof suffix, &rate, &rtt))
        return CLI_BAD_USE;
    if (o->trainers < 2 && strcmp(o->link, "none") != 0)
        return cli_bad_use(cli, "--link needs --trainers 2 or more: %s",
                           o->trainers ? "one trainer has no link"
                                       : "a job's address, --job, has its own");
    if (o->resume && !o->checkpoint)
        return cli_bad_use(cli, "--resume needs --checkpoint");
    if (o->job && o->trainers)
        return cli_bad_use(cli,
                           "--job needs --trainers 0: it joins a job as one trainer");
    if (o->eval_every && !o->eval)
        return cli_bad_use(cli, "--eval-every needs --eval");
    if (o->patience && (!o->eval || !o->eval_every))
        return cli_bad_use(cli, "--patience needs --eval and --eval-every");
    return CLI_DONE;
}

/* This rank's own address. If rank 0's has another `ranks=`, the start refuses what does
 * not fit. */
static void know_address(struct train_options *o, const char *job)
{
    struct tcp_options at;

    o->over_tcp = o->trainers == 0 && job && strncmp(job, "tcp:", 4) == 0;
    if (o->over_tcp && tcp_options_read(&at, job + 4, NULL) == DESCANT_OK)
        o->job_ranks = at.most;
}

int cli_train(const struct cli *cli)
{
    struct train_options o = train_options_default();
    struct train_result result = {.rank = -1};
    char *text = NULL, *resumed = NULL, message[PATH_MAX + 512], checkpoint[PATH_MAX];
    bool given[MOST_SETTINGS] = {false}, by_config[MOST_SETTINGS] = {false};
    bool known[MOST_SETTINGS];
    const char *config = settings_config(cli), *plan = getenv("DESCANT_PLAN");
    int status = CLI_DONE;

    if (settings_wants_help(cli)) {
        help(cli->out);
        return CLI_DONE;
    }
    if (plan && *plan)
        o.sync = plan;
    if (config && !config_read(config, &o, by_config, &text, message, sizeof message))
        status = cli_bad_use(cli, "%s", message);
    if (status == CLI_DONE)
        status = settings_parse(cli, train_settings, n_train_settings, &o, given);
    for (size_t k = 0; k < n_train_settings; k++)
        given[k] |= by_config[k];
    train_know_plan(&o);
    memcpy(known, given, sizeof known);
    if (status == CLI_DONE && o.resume && o.checkpoint &&
        !saved_settings(o.checkpoint, &o, known, &resumed, message, sizeof message))
        status = cli_bad_use(cli, "%s", message);
    config_suit(&o, known);
    if (status == CLI_DONE && !settings_mean(&o, given, message, sizeof message))
        status = cli_bad_use(cli, "%s", message);
    if (status == CLI_DONE && !trainers_good(cli, &o))
        status = CLI_BAD_USE;
    o.watched = o.trainers == 0 && mpi_module_launcher() != MPI_LAUNCHER_NONE &&
                launcher_may_be_mpi(o.job);
    const char *job = launcher_job(o.job);
    know_address(&o, job);
    if (status == CLI_DONE)
        status = check(cli, &o, checkpoint);
    if (status == CLI_DONE)
        status = train_run(&o, cli->out, cli->err, &result);
    if (status != CLI_DONE && result.rank < 0 && launcher_may_be_mpi(o.job))
        mpi_module_abort(status);
    free(resumed);
    free(text);
    return status;
}
