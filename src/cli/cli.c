/* SPDX-License-Identifier: MIT */
/* Which command was meant, and its options. Both are tables, so that --help shows exactly what
 * is understood. Options are "--name value" or "--name=value", in any order; each at most has
 * one meaning, the last one given counts. Nothing here exits: main does, with what is returned. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct command {
    const char *name, *help;
    int (*run)(const struct cli *cli);
};

static const struct command commands[] = {
    {"info", "version, build, fabrics and what this machine has", cli_info},
    {"plans", "the table of plans and their keys (--markdown)", cli_plans},
#ifdef DESCANT_TRAIN
    {"train", "train a click model or a network", cli_train},
    {"eval", "a trained model's figures on a held-out set", cli_eval},
    {"predict", "a trained model's scores", cli_predict},
    {"gen", "make a file of click logs to train with: ctr", cli_gen},
    {"report", "a page that compares runs of descant train, from their logs", cli_report},
#endif
    {"bench", "measure: step, exchange, overlap, train, parse (--json)", cli_bench},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

int cli_bad_use(const struct cli *cli, const char *format, ...)
{
    va_list list;
    const char *space = *cli->command ? " " : "";
    fprintf(cli->err, "descant%s%s: ", space, cli->command);
    va_start(list, format);
    vfprintf(cli->err, format, list);
    va_end(list);
    fprintf(cli->err, "\ntry: descant%s%s --help\n", space, cli->command);
    return CLI_BAD_USE;
}

static bool parse_number(const char *text, bool suffix, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text)
        return false;
    static const char suffixes[] = "KMG";
    const char *at = suffix && *end ? strchr(suffixes, *end) : NULL;
    if (at) {
        value *= (double)(1 << 10 * (at - suffixes + 1));
        end++;
    }
    *out = value;
    return *end == 0;
}

static int choice_number(const char *choices, const char *value)
{
    size_t length = strlen(value);
    for (int number = 0;; number++) {
        size_t n = strcspn(choices, "|");
        if (n == length && strncmp(choices, value, n) == 0)
            return number;
        if (!choices[n])
            return -1;
        choices += n + 1;
    }
}

static int set_number(const struct cli *cli, const struct cli_option *o, void *field,
                      const char *value)
{
    double number;
    if (!parse_number(value, o->type == CLI_BYTES, &number))
        return cli_bad_use(cli, "--%s %s: not a number%s", o->name, value,
                           o->type == CLI_BYTES ? " of bytes (64M, 64K)" : "");
    if (!(number >= o->low && number <= o->high))
        return cli_bad_use(cli, "--%s %s: allowed is %.12g to %.12g", o->name, value, o->low,
                           o->high);
    if (o->type == CLI_REAL) {
        *(double *)field = number;
        return CLI_DONE;
    }
    int64_t whole = (int64_t)number;
    if ((double)whole < number)
        return cli_bad_use(cli, "--%s %s: not a whole number", o->name, value);
    *(int64_t *)field = whole;
    return CLI_DONE;
}

static int set_option(const struct cli *cli, const struct cli_option *o, void *into,
                      const char *value)
{
    void *field = (char *)into + o->offset;
    if (o->type == CLI_TEXT) {
        *(const char **)field = value;
        return CLI_DONE;
    }
    if (o->type != CLI_CHOICE)
        return set_number(cli, o, field, value);
    int number = choice_number(o->choices, value);
    if (number < 0)
        return cli_bad_use(cli, "--%s %s: allowed is %s", o->name, value, o->choices);
    *(int *)field = number;
    return CLI_DONE;
}

static const struct cli_option *find_option(const struct cli_option *table, size_t n,
                                            const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

int cli_parse(const struct cli *cli, const struct cli_option *table, size_t n, void *into)
{
    for (int i = 0; i < cli->argc; i++) {
        const char *word = cli->argv[i];
        if (strncmp(word, "--", 2) != 0)
            return cli_bad_use(cli, "'%s' is not an option", word);
        size_t length = strcspn(word + 2, "=");
        const struct cli_option *o = find_option(table, n, word + 2, length);
        const char *value = word[2 + length] ? word + 3 + length : NULL;
        if (!o)
            return cli_bad_use(cli, "unknown option %s", word);
        if (o->type == CLI_FLAG) {
            if (value)
                return cli_bad_use(cli, "--%s takes no value", o->name);
            *(bool *)((char *)into + o->offset) = true;
            continue;
        }
        if (!value && ++i == cli->argc)
            return cli_bad_use(cli, "--%s needs a value", o->name);
        int status = set_option(cli, o, into, value ? value : cli->argv[i]);
        if (status != CLI_DONE)
            return status;
    }
    return CLI_DONE;
}

void cli_help_options(FILE *out, const struct cli_option *table, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct cli_option *o = &table[i];
        fprintf(out, "  --%-10s %s", o->name, o->help);
        if (o->choices)
            fprintf(out, ": %s", o->choices);
        fputc('\n', out);
    }
}

const char *cli_choice(const struct cli_option *option, int number, char *text, size_t room)
{
    const char *at = option->choices;
    for (; number > 0; number--)
        at = strchr(at, '|') + 1;
    snprintf(text, room, "%.*s", (int)strcspn(at, "|"), at);
    return text;
}

bool cli_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static void help(FILE *out)
{
    fputs("descant keeps the replicas of a model together while their training runs on\n\n"
          "usage: descant COMMAND [OPTIONS]\n\n", out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help     this, or a command's options after the command; -h is the same\n"
          "  --version  the version\n", out);
}

int cli_main(int argc, char **argv, FILE *out, FILE *err)
{
    struct cli cli = {.command = "", .argc = argc - 2, .argv = argv + 2, .out = out, .err = err};
    if (argc < 2)
        return cli_bad_use(&cli, "which command? allowed: info, plans, bench");
    const char *word = argv[1];
    if (cli_is_help(word) || strcmp(word, "help") == 0) {
        help(out);
        return CLI_DONE;
    }
    if (strcmp(word, "--version") == 0) {
        fprintf(out, "descant %s\n", descant_version());
        return CLI_DONE;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0) {
            cli.command = commands[i].name;
            return commands[i].run(&cli);
        }
    return cli_bad_use(&cli, "unknown command '%s'; allowed: info, plans, bench", word);
}
