/* SPDX-License-Identifier: MIT */
/* The program "descant": a table of commands, and a table of options for each.
 * descant-bench (bench/program) has program.c and settings.c, too. Exit status 0: done;
 * 1: failed; 2: called wrongly. */
#ifndef CLI_H
#define CLI_H

#include "base/base.h"

struct cli {
    const char *command;        /* "bench step", for messages; "": no command yet */
    int argc;                   /* words after the command */
    char **argv;                /* of the program; a command may change the pointers */
    FILE *out, *err;            /* shown streams (base.h), which cli_program closes */
    struct log log;             /* onto err: warnings and failures */
};

/* The same numbers as RUN_DONE and so on (run/run.h): a command returns the status of its
 * run as it is. */
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

/* The same for a word that is not among the names, which end with NULL; `what`: their
 * noun. */
int cli_unknown(const struct cli *cli, const char *what, const char *word,
                const char *const *names);

/* Reads all of cli->argv into the struct, which has the defaults: "--name value" or
 * "--name=value" in any order, none twice. CLI_DONE, or CLI_BAD_USE after printing the
 * reason. With `given`, which is NULL or has room for n, given[k] becomes whether setting
 * k was there; then --config is allowed, too, and is passed over with its value. */
enum { MOST_SETTINGS = 64 };
int settings_parse(const struct cli *cli, const struct option *table, size_t n,
                   void *into, bool *given);
/* The same at the beginning of a command: also prints its help, if that is asked for.
 * usage: the words behind "usage: descant". False: the command returns *status. */
bool settings_take(const struct cli *cli, const char *usage, const struct option *table,
                   size_t n, void *into, int *status);
/* Prints help of settings, with the ranges and with the defaults, which may be NULL. */
void settings_help(FILE *out, const struct option *table, size_t n, const void *defaults);
/* the value of --config, or NULL */
const char *settings_config(const struct cli *cli);
bool settings_wants_help(const struct cli *cli);

bool cli_is_help(const char *word);      /* --help or -h */

/* Turns --link, "1gbit,1ms" or "none", into the suffix of a job's name that emulates the
 * link. False after printing that the text is neither. */
bool cli_link_ok(const struct cli *cli, const char *link, char *suffix, size_t room,
                 double *rate, double *rtt);
/* False after printing the option and the reason. */
bool cli_plan_ok(const struct cli *cli, const char *option, const char *plan);
descant_log cli_log;                                          /* user: a FILE */

/* A line of readable text: the name, aligned, and the value. */
void cli_say(FILE *out, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The commands: each gets the words behind its name, prints its own help where that is
 * asked for, and returns the exit status. */
int cli_info(const struct cli *cli);
int cli_plans(const struct cli *cli);
int cli_run(const struct cli *cli);
int cli_hub(const struct cli *cli);
int cli_secret(const struct cli *cli);
#ifdef DESCANT_TRAIN
int cli_train(const struct cli *cli);
struct train_options;
/* Sets the fields that follow from its plan. A bad plan sets nothing; cli_plan_ok refuses
 * it later. */
void train_know_plan(struct train_options *o);
struct named_file;
/* CLI_DONE, or CLI_BAD_USE after printing the file at fault (files.h). */
int cli_files(const struct cli *cli, const struct named_file *files, int n, char *target);
int cli_eval(const struct cli *cli);
int cli_predict(const struct cli *cli);
int cli_merge(const struct cli *cli);
int cli_bsp(const struct cli *cli);
int cli_bsp_status(const struct cli *cli);      /* bsp's */
int cli_gen(const struct cli *cli);
int cli_gen_cache(const struct cli *cli);       /* gen's */
int cli_report(const struct cli *cli);
#endif

#endif
