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
 * "--name=value" in any order, none twice. CLI_DONE, or CLI_BAD_USE after saying
 * why. */
int settings_parse(const struct cli *cli, const struct option *table, size_t n,
                   void *into);
/* The same of a command that has --config, which is passed over with its value. given[k],
 * of n, says whether setting k was there. */
enum { MOST_SETTINGS = 64 };
int settings_parse_config(const struct cli *cli, const struct option *table, size_t n,
                          void *into, bool *given);
/* Prints help of settings, with the ranges and with the defaults, which may be NULL. */
void settings_help(FILE *out, const struct option *table, size_t n, const void *defaults);
/* the value of --config, or NULL */
const char *settings_config(const struct cli *cli);
bool settings_wants_help(const struct cli *cli);

/* A file that an option names. While it is written there is a NAME.lock; CLI_MAKES and
 * CLI_REPLACES also write NAME.tmp, CLI_WRITES and the latter NAME.old, and the latter
 * NAME.previous, NAME.best, NAME.best.tmp and NAME.best.old. */
enum cli_file_kind { CLI_READS, CLI_WRITES, CLI_MAKES, CLI_REPLACES };
struct cli_file {
    const char *option, *name;  /* NULL: a word of no option; not given. Commas between
                                   several */
    enum cli_file_kind kind;
};

/* Checks that no file that is written is another one of them, and prints which one is.
 * Files that are replaced come first. */
bool cli_files_apart(const struct cli *cli, const struct cli_file *files, int n);
/* For a file that is replaced: a *path that is a symbolic link becomes the path that it
 * leads to, in `target`, which has room for PATH_MAX. False after saying why not. */
bool cli_file_follow(const struct cli *cli, const char *option, const char **path,
                     char *target);
/* Checks that a log can be written there: no file, or a plain one, or no regular file.
 * Else as below. */
bool cli_log_good(const struct cli *cli, const char *path);
/* Checks that the file can be replaced: it is a regular file, or there is none. False
 * after saying why not. */
bool cli_file_good(const struct cli *cli, const char *option, const char *path);

bool cli_is_help(const char *word);      /* --help or -h */

/* Turns "1gbit,1ms" or "none" into the suffix of a job's name that emulates the link;
 * false if the text is neither. */
bool cli_link(const char *link, char *suffix, size_t room, double *rate, double *rtt);

/* False after saying why not, naming the option. */
bool cli_plan_ok(const struct cli *cli, const char *option, const char *plan);
descant_log cli_log;                                          /* user: a FILE */

/* A line of readable text: the name, aligned, and the value. */
void cli_say(FILE *out, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The commands. */
int cli_info(const struct cli *cli);
int cli_plans(const struct cli *cli);
#ifdef DESCANT_TRAIN
int cli_train(const struct cli *cli);
struct train_options;
/* sets the fields that follow from its plan, which is good */
void train_know_plan(struct train_options *o);
int cli_eval(const struct cli *cli);
int cli_predict(const struct cli *cli);
int cli_info_files(const struct cli *cli);      /* info's */
int cli_bsp(const struct cli *cli);
int cli_gen(const struct cli *cli);
int cli_gen_cache(const struct cli *cli);       /* gen's */
int cli_report(const struct cli *cli);
#endif

#endif
