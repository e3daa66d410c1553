/* SPDX-License-Identifier: MIT */
/* The command line by a table of settings, and its help with the defaults. */
#include "cli/settings.h"

#include <string.h>

static bool is_config(const char *word)
{
    return strcmp(word, "--config") == 0 || strncmp(word, "--config=", 9) == 0;
}

const char *settings_config(const struct cli *cli)
{
    for (int i = 0; i < cli->argc; i++)
        if (is_config(cli->argv[i]))
            return cli->argv[i][8] ? cli->argv[i] + 9 : i + 1 < cli->argc ? cli->argv[i + 1] : NULL;
    return NULL;
}

bool settings_wants_help(const struct cli *cli)
{
    for (int i = 0; i < cli->argc; i++)
        if (cli_is_help(cli->argv[i]))
            return true;
    return false;
}

int settings_parse(const struct cli *cli, const struct setting *table, size_t n, void *into)
{
    char message[256];

    for (int i = 0; i < cli->argc; i++) {
        const char *word = cli->argv[i];
        if (is_config(word)) {
            i += !word[8];
            continue;
        }
        if (strncmp(word, "--", 2) != 0)
            return cli_bad_use(cli, "'%s' is not an option", word);
        size_t length = strcspn(word + 2, "=");
        const struct setting *s = setting_find(table, n, word + 2, length);
        const char *value = word[2 + length] ? word + 3 + length : NULL;
        if (!s)
            return cli_bad_use(cli, "unknown option %s", word);
        if (!value && s->type != SETTING_FLAG && i + 1 < cli->argc)
            value = cli->argv[++i];
        if (!setting_set(s, into, value, message, sizeof message))
            return cli_bad_use(cli, "%s", message);
    }
    return CLI_DONE;
}

void settings_help(FILE *out, const struct setting *table, size_t n, const void *defaults)
{
    char text[128];

    for (size_t i = 0; i < n; i++) {
        const struct setting *s = &table[i];
        fprintf(out, "  --%-17s %s", s->name, s->help);
        if (s->choices)
            fprintf(out, ": %s", s->choices);
        setting_text(s, defaults, text, sizeof text);
        if (s->type != SETTING_FLAG && *text)
            fprintf(out, " (%s)", text);
        fputc('\n', out);
    }
}
