/* SPDX-License-Identifier: MIT */
/* Faults of a run's options that can be known before anything starts: of pipes,
 * schedules and folders. The command line has been read and each option is good by
 * itself; these are faults of options together, or with the files that are there. They
 * are found before the run starts its trainers, so that one message stands for all of
 * them. */
#include "train/bsp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARES_MOST = 1024 };    /* ranks that may own rows */

/* Two readers would tear a pipe's lines; stdin has a reader that several trainers can
 * share. */
static bool is_pipe(const char *path)
{
    struct stat of;
    return strcmp(path, "-") != 0 && stat(path, &of) == 0 && !S_ISREG(of.st_mode) &&
           !S_ISDIR(of.st_mode);
}

/* A pipe has one reader. A schedule needs the end of the data, which only files with a
 * size tell, or --examples. */
static descant_status check_data(const struct train_options *o, const struct log *log)
{
    struct path_list list;
    bool known =
        o->examples > 0 || (o->schedule == SCHEDULE_CONSTANT && !(o->warmup > 0));
    descant_status status = path_list_init(&list, o->data, log);

    for (size_t k = 0; status == DESCANT_OK && k < list.n; k++) {
        if (is_pipe(list.paths[k]) && o->trainers != 1)
            status = log_fail(log, DESCANT_INVALID,
                              "%s is a pipe, which one trainer alone can read: give it "
                              "as stdin, --data -, or --trainers 1",
                              list.paths[k]);
        else if (!known && (is_pipe(list.paths[k]) || strcmp(list.paths[k], "-") == 0))
            status = log_fail(
                log, DESCANT_INVALID,
                "--schedule and --warmup need to know where %s ends: give --examples",
                list.paths[k]);
    }
    path_list_fini(&list);
    return status;
}

/* A pipe can be read, and so evaluated, only once; stdin is either the data or the
 * held-out set. */
static descant_status check_eval(const struct train_options *o, const struct log *log)
{
    struct path_list list;

    if (!o->eval)
        return DESCANT_OK;
    descant_status status = path_list_init(&list, o->eval, log);
    for (size_t k = 0; status == DESCANT_OK && k < list.n; k++) {
        bool is_stdin = strcmp(list.paths[k], "-") == 0;
        if (is_stdin && strcmp(o->data, "-") == 0)
            status = log_fail(log, DESCANT_INVALID,
                              "stdin cannot be both --data and --eval");
        else if (o->eval_every && (is_stdin || is_pipe(list.paths[k])))
            status =
                log_fail(log, DESCANT_INVALID, "--eval-every: %s can be read only once",
                         is_stdin ? "stdin" : list.paths[k]);
    }
    path_list_fini(&list);
    return status;
}

/* A file that is to be written must be writable. If it is replaced, or is not there yet,
 * its folder must be. */
static descant_status check_folder(const char *path, bool replaced, const struct log *log)
{
    char folder[4096];
    const char *slash = path ? strrchr(path, '/') : NULL;

    if (!path)
        return DESCANT_OK;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    if (access(!replaced && access(path, F_OK) == 0 ? path : folder, W_OK) == 0)
        return DESCANT_OK;
    return log_fail(log, DESCANT_SYSTEM, "%s cannot be written: %s", path,
                    strerror(errno));
}

/* As descant_options.owned_shares: numbers with commas, one above 0. */
bool train_shares_good(const char *text)
{
    double share;
    bool some = false;
    int n = 0;

    for (const char *end;; text = end + 1, n++) {
        if (n == SHARES_MOST || !real_read(text, &share, &end) ||
            !(share >= 0 && share <= 1e6))
            return false;
        some |= share > 0;
        if (*end != ',')
            return *end == 0 && some;
    }
}

double train_share(const char *text, int rank)
{
    double share;
    const char *end = ",";

    if (!text)
        return 1;
    for (; *end == ',' && real_read(text, &share, &end); text = end + 1)
        if (rank-- == 0)
            return share;
    return 0;
}

/* Rows that have owners. */
static descant_status check_tables(const struct train_options *o, const struct log *log)
{
    if (o->rows_shares && !train_shares_good(o->rows_shares))
        return log_fail(log, DESCANT_INVALID,
                        "--rows-shares %s: give a number for each of the first ranks, as "
                        "2,1,1, and one above 0", o->rows_shares);
    if ((o->tables == TABLES_SHARD || o->rows < 0) && o->optimizer.rows == ROWS_FTRL &&
        o->model != MODEL_MLP)
        return log_fail(log, DESCANT_INVALID,
                        "--tables shard: owners do not step rows by ftrl; "
                        "--table-optimizer can be sgd, adagrad and rowwise-adagrad");
    if (o->rows < 0 && o->model != MODEL_MLP && o->tables == TABLES_REPLICATE)
        return log_fail(log, DESCANT_INVALID,
                        "--rows grow needs --tables shard, or auto");
    if (o->rows < 0 && o->model != MODEL_MLP && o->table_memory == 0)
        return log_fail(log, DESCANT_INVALID,
                        "--rows grow needs --table-memory: the bytes that tables may "
                        "take");
    if (o->rows_replica > 0 && !owned_moves(o))
        return log_fail(log, DESCANT_INVALID,
                        "--rows-replica: rows do not move here; it needs a job over tcp "
                        "with ranks=1024 at most, --tables shard or auto, and not "
                        "--rows-move no");
    if (o->rows_replica > 0 && o->rows_replica < 0.1)
        return log_fail(log, DESCANT_INVALID,
                        "--rows-replica is 0, or 0.1 seconds or more");
    if (o->tables != TABLES_REPLICATE && o->on_term == ON_TERM_LEAVE && !owned_moves(o))
        return log_fail(log, DESCANT_INVALID,
                        "--on-term leave needs --tables replicate, or rows that move "
                        "(--rows-move yes): a rank that owns rows of tables cannot leave "
                        "before the end");
    return DESCANT_OK;
}

descant_status train_check(const struct train_options *o, const struct log *log)
{
    /* the trainers of the plan bsp are on one machine, and know how many they are */
    if (o->plan_controls && o->trainers == 0)
        return log_fail(log, DESCANT_INVALID,
                        "--sync bsp is for one machine, and starts its own trainers: "
                        "--trainers says how many, without a launcher or --job");
    if (o->plan_controls && o->trainers * o->workers > BSP_WORKERS)
        return log_fail(
            log, DESCANT_INVALID,
            "--sync bsp has room for %d workers, --trainers %d x --workers %d are more",
            BSP_WORKERS, (int)o->trainers, (int)o->workers);
    descant_status status = check_tables(o, log);
    if (status == DESCANT_OK)
        status = check_data(o, log);
    if (status == DESCANT_OK)
        status = check_eval(o, log);
    if (status == DESCANT_OK)
        status = check_folder(o->checkpoint, true, log);
    return status == DESCANT_OK ? check_folder(o->log, false, log) : status;
}
