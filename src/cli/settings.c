/* SPDX-License-Identifier: MIT */
/* The command line by a table of settings, and its help with the defaults.
 *
 * A table has one row for each setting (base.h, options.c): its name without the dashes,
 * its type, the field that it fills, the allowed values, and its help. settings_parse
 * goes through the words once, and writes each value into its field as it comes; a word
 * at fault ends it, and the fields set before stay set, since the command ends then, too.
 * A setting that is not given keeps what the caller has put into the struct: that is its
 * default, which settings_help prints. */
#include "cli/cli.h"

#include <assert.h>
#include <string.h>

static bool is_config(const char *word)
{
    return strcmp(word, "--config") == 0 || strncmp(word, "--config=", 9) == 0;
}

/* The first --config counts. One without a value is NULL here, and refused by
 * settings_parse. */
const char *settings_config(const struct cli *cli)
{
    for (int i = 0; i < cli->argc; i++)
        if (is_config(cli->argv[i]))
            return cli->argv[i][8]     ? cli->argv[i] + 9
                   : i + 1 < cli->argc ? cli->argv[i + 1]
                                       : NULL;
    return NULL;
}

/* --help counts wherever it stands, even where a value is expected: a user who is lost
 * types it at the end. */
bool settings_wants_help(const struct cli *cli)
{
    for (int i = 0; i < cli->argc; i++)
        if (cli_is_help(cli->argv[i]))
            return true;
    return false;
}

/* Options whose value may be several files. A shell turns * into several words, without
 * commas, so the refusal of the second one says what to write. */
static bool has_files(const struct option *s)
{
    return strcmp(s->name, "data") == 0 || strcmp(s->name, "eval") == 0;
}

int settings_parse(const struct cli *cli, const struct option *table, size_t n,
                   void *into, bool *given)
{
    char message[256];
    bool config = given != NULL, config_given = false, seen[MOST_SETTINGS];
    const struct option *last = NULL;       /* its value was the word before */

    assert(n <= MOST_SETTINGS);             /* callers have room for as many */
    given = given ? given : seen;
    memset(given, 0, n * sizeof *given);
    for (int i = 0; i < cli->argc; i++) {
        const char *word = cli->argv[i];
        if (config && is_config(word)) {
            if (!word[8] && ++i == cli->argc)
                return cli_bad_use(cli, "--config needs a value");
            if (config_given)
                return cli_bad_use(cli, "--config is given twice");
            config_given = true;
            continue;
        }
        if (strncmp(word, "--", 2) != 0 && last && has_files(last))
            return cli_bad_use(
                cli,
                "'%s' is not an option: several files of --%s have commas between them",
                word, last->name);
        if (strncmp(word, "--", 2) != 0)
            return cli_bad_use(cli, "'%s' is not an option", word);
        size_t length = strcspn(word + 2, "=");
        const struct option *s = option_find(table, n, word + 2, length);
        const char *value = word[2 + length] ? word + 3 + length : NULL;
        if (!s) {
            struct guess guess = option_guess(table, n, word + 2, length);
            return cli_bad_use(cli, "unknown option %s%s", word,
                               guess_text(&guess, "--"));
        }
        if (given[s - table])
            return cli_bad_use(cli, "--%s is given twice", s->name);
        given[s - table] = true;
        if (value && s->type == OPTION_BOOL)
            return cli_bad_use(cli, "--%s takes no value", s->name);
        if (!value && s->type != OPTION_BOOL && i + 1 < cli->argc)
            value = cli->argv[++i];
        last = s;
        if (!option_parse(s, value, into, message, sizeof message))
            return cli_bad_use(cli, "--%s", message);
    }
    return CLI_DONE;
}

bool settings_take(const struct cli *cli, const char *usage, const struct option *table,
                   size_t n, void *into, int *status)
{
    bool help = settings_wants_help(cli);

    if (help) {
        fprintf(cli->out, "usage: descant %s\n", usage);
        settings_help(cli->out, table, n, into);
    }
    *status = help ? CLI_DONE : settings_parse(cli, table, n, into, NULL);
    return !help && *status == CLI_DONE;
}

/* Shows the allowed values. Limits of a million and more are against slips, and left
 * out. */
static void range_text(const struct option *s, char *text, size_t room)
{
    *text = 0;
    if (s->type <= OPTION_NUMBERS && s->high < 1e6)
        option_range(s, text, room);
    else if (s->type <= OPTION_NUMBERS && s->low > 0)
        snprintf(text, room, "%.12g or more", s->low);
}

/* A line: "--batch examples of a worker's step (128; 1 where ...; 1 to 1048576)". In the
 * brackets are the default, the exception to it that follows a tab in the row's help, and
 * the range. */
void settings_help(FILE *out, const struct option *table, size_t n, const void *defaults)
{
    char text[128], range[64];

    for (size_t i = 0; i < n; i++) {
        const struct option *s = &table[i];
        bool shown = defaults && s->type != OPTION_BOOL &&
                     *option_write(s, defaults, text, sizeof text);
        const char *but = shown ? strchr(s->help, '\t') : NULL;
        range_text(s, range, sizeof range);
        fprintf(out, "  --%-17s %.*s", s->name, (int)strcspn(s->help, "\t"), s->help);
        if (s->choices)
            fprintf(out, ": %s", s->choices);
        if (shown || *range)
            fprintf(out, " (%s%s%s%s%s)", shown ? text : "", but ? "; " : "",
                    but ? but + 1 : "", shown && *range ? "; " : "", range);
        fputc('\n', out);
    }
}
