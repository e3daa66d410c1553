/* SPDX-License-Identifier: MIT */
/* Finds a command in a table, so that --help shows exactly the commands that there are.
 * Benchmarks are a program of their own, descant-bench (bench/program).
 *
 * To add a command, write its function in a file of its own, declare it in cli.h, and
 * give it a row of `commands`; options are a table that the command itself has
 * (settings.c). A command that needs training stands between the #ifdefs, and in
 * left_out, so that a build without training can say why the command is not there. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A row: the word behind "descant", its line of the help, and the function that gets the
 * words after it. */
struct command {
    const char *name, *help;
    cli_command *run;
};

#ifdef DESCANT_TRAIN
#define BENCHES "step, exchange, overlap, segment, train, parse"
#else
#define BENCHES "step, exchange, overlap, segment"
static const char *const left_out[] = {"train", "eval", "predict", "merge",
                                       "bsp",   "gen",  "report"};
#endif

/* This process becomes the descant-bench beside the program, else the one that PATH
 * finds. Returns if there is none. */
static int bench(const struct cli *cli)
{
    char name[] = "descant-bench", path[PATH_MAX + sizeof name];

    if (!realpath("/proc/self/exe", path))
        *path = 0;
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, name);
    errno = ENOMEM;
    char **words = memory_take_array((size_t)cli->argc + 2, sizeof *words);
    if (words) {
        words[0] = name;
        memcpy(words + 1, cli->argv, (size_t)cli->argc * sizeof *words);    /* and NULL */
        execv(path, words);
        if (errno == ENOENT)
            execvp(name, words);
    }
    fprintf(cli->err,
            "descant: cannot run %s: %s; make install puts it beside descant, else it "
            "must be in a folder of PATH\n",
            path, strerror(errno));
    memory_give(words);
    return CLI_FAILED;
}

static const struct command commands[] = {
    {"info", "show version, build and machine; or what files contain", cli_info},
    {"plans", "print the table of plans and their keys (--markdown)", cli_plans},
    {"run", "start a command on hosts, and restart ranks that die", cli_run},
    {"hub", "connect trainers that cannot reach each other", cli_hub},
    {"secret", "make a secret for a job between hosts: descant secret > FILE",
     cli_secret},
#ifdef DESCANT_TRAIN
    {"train", "train a click model or a network", cli_train},
    {"eval", "evaluate a trained model on a held-out set", cli_eval},
    {"predict", "score data with a trained model", cli_predict},
    {"merge", "make one file of a checkpoint in shards", cli_merge},
    {"bsp", "train by the gradients of other programs, through shared memory",
     cli_bsp},
    {"gen", "make files to train with: ctr, click logs; cache, of other files", cli_gen},
    {"report", "make a page that compares runs, from their logs", cli_report},
#endif
    {"bench", "measure: " BENCHES " (--json)", bench},
};
/* MOST_WORDS: of descant help COMMAND and so on, at most. */
enum { N_COMMANDS = sizeof commands / sizeof *commands, MOST_WORDS = 8 };

/* The refusal of a word that names no command: it says which are near, or that this build
 * has been made without the command. */
static int unknown(const struct cli *cli, const char *wrong)
{
    const char *names[N_COMMANDS + 1] = {NULL};
#ifndef DESCANT_TRAIN
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(wrong, left_out[i]) == 0)
            return cli_bad_use(cli, "no '%s': this build is " DESCANT_WITHOUT, wrong);
#endif
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return cli_unknown(cli, "command", wrong, names);
}

static void help(FILE *out)
{
    fputs("descant keeps the replicas of a model together while their training runs "
          "on\n\nusage: descant COMMAND [OPTIONS]\n\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help     this, or a command's options after the command; -h and help "
          "are the same\n  --version  the version\n",
          out);
}

static int run(const struct cli *cli, const char *word)
{
    struct cli one = *cli;
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0) {
            one.command = commands[i].name;
            return commands[i].run(&one);
        }
    return unknown(cli, word);
}

/* The words after "help": "help bench step" is "bench step --help". */
static int help_on(struct cli *cli)
{
    static char option[] = "--help";
    char *words[MOST_WORDS + 1];
    const char *command = cli->argv[0];

    if (cli->argc > MOST_WORDS)
        return cli_bad_use(cli, "help takes a command");
    memcpy(words, cli->argv + 1, (size_t)(cli->argc - 1) * sizeof *words);
    words[cli->argc - 1] = option;
    cli->argv = words;
    return run(cli, command);
}

/* The program: cli->argv has the words behind "descant". Help that was asked for goes to
 * out, with status 0; the help after a call without any word goes to err. */
static int command(const struct cli *cli)
{
    if (cli->argc < 1) {
        help(cli->err);
        return CLI_BAD_USE;
    }
    const char *word = cli->argv[0];
    struct cli rest = *cli;
    rest.argc--;
    rest.argv++;
    if (strcmp(word, "help") == 0 && rest.argc > 0)
        return help_on(&rest);
    if (cli_is_help(word) || strcmp(word, "help") == 0) {
        help(cli->out);
        return CLI_DONE;
    }
    if (strcmp(word, "--version") == 0) {
        fprintf(cli->out, "descant %s\n", descant_version());
        return CLI_DONE;
    }
    return run(&rest, word);
}

int cli_main(int argc, char **argv, FILE *out, FILE *err)
{
    return cli_program(command, argc, argv, out, err);
}
