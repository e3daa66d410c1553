/* SPDX-License-Identifier: MIT */
/* The program "descant": a table of commands, and a table of options for each.
 * descant-bench (bench/program) has program.c and settings.c, too. Exit status 0: done;
 * 1: failed; 2: called wrongly. */
#ifndef CLI_H
#define CLI_H

#include "base/base.h"

struct cli {
    const char *command;        /* "bench step", for messages */
    int argc;                   /* words after the command */
    char **argv;
    FILE *out, *err;
    struct log log;             /* onto err: warnings and failures */
};

enum { CLI_DONE, CLI_FAILED, CLI_BAD_USE };

typedef int cli_command(const struct cli *cli);     /* its exit status */

/* Runs a program on the words argv[1] and so on. Its cli->out and cli->err are
 * shown_open's, over out and err. */
int cli_program(cli_command *program, int argc, char **argv, FILE *out, FILE *err);
/* The program descant; argv as main has it. */
int cli_main(int argc, char **argv, FILE *out, FILE *err);

/* Prints the message and where help is; returns CLI_BAD_USE. */
int cli_bad_use(const struct cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same of a word that is not among the names, which end with NULL: `what` says what
 * they name. */
int cli_unknown(const struct cli *cli, const char *what, const char *word,
                const char *const *names);

/* Reads all of cli->argv into the struct, which has the defaults: "--name value" or
 * "--name=value" in any order, none twice. `given`, where it is not NULL, has room for n
 * and gets which there were; then there may be --config, too, which is passed over with
 * its value. CLI_DONE, or CLI_BAD_USE after saying why. */
enum { MOST_SETTINGS = 64 };
int settings_parse(const struct cli *cli, const struct option *table, size_t n,
                   void *into, bool *given);
/* The same where a command begins: its help, for which the usage is the words behind
 * "usage: descant", is put where it is asked for. False: *status is to be returned. */
bool settings_take(const struct cli *cli, const char *usage, const struct option *table,
                   size_t n, void *into, int *status);
/* With the defaults, which may be NULL, and the ranges. */
void settings_help(FILE *out, const struct option *table, size_t n, const void *defaults);
/* the value of --config, or NULL */
const char *settings_config(const struct cli *cli);
bool settings_wants_help(const struct cli *cli);

bool cli_is_help(const char *word);      /* --help or -h */

/* --link as "1gbit,1ms" or "none": the suffix of a job's name that emulates it. False
 * after saying that it is neither. */
bool cli_link_ok(const struct cli *cli, const char *link, char *suffix, size_t room,
                 double *rate, double *rtt);
/* False after saying why not, naming the option. */
bool cli_plan_ok(const struct cli *cli, const char *option, const char *plan);
descant_log cli_log;                                          /* user: a FILE */

/* A line of readable text: the name, aligned, and the value. */
void cli_say(FILE *out, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The commands. */
int cli_info(const struct cli *cli);
int cli_plans(const struct cli *cli);
int cli_run(const struct cli *cli);
int cli_secret(const struct cli *cli);
#ifdef DESCANT_TRAIN
int cli_train(const struct cli *cli);
struct train_options;
/* sets the fields that follow from its plan, which is good */
void train_know_plan(struct train_options *o);
struct named_file;
/* CLI_DONE, or CLI_BAD_USE after saying which of the files is not good (files.h). */
int cli_files(const struct cli *cli, const struct named_file *files, int n, char *target);
int cli_eval(const struct cli *cli);
int cli_predict(const struct cli *cli);
int cli_bsp(const struct cli *cli);
int cli_bsp_status(const struct cli *cli);      /* bsp's */
int cli_gen(const struct cli *cli);
int cli_gen_cache(const struct cli *cli);       /* gen's */
int cli_report(const struct cli *cli);
#endif

#endif
