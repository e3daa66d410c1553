/* SPDX-License-Identifier: MIT */
/* descant plans: the tables of presets and keys as the parser has them, aligned or as
 * Markdown. Both print sync/plan.h's own rows, so a new preset or key needs no change
 * here. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "sync/plan.h"

#include <string.h>

struct choice {
    bool markdown;
};

#define AT(field) offsetof(struct choice, field)
static const struct option options[] = {
    FLAG("markdown", markdown, "as Markdown tables"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* A | between choices would end the cell, so commas stand between them. */
static void markdown(FILE *out)
{
    char text[128];
    fputs("| preset | is | published as |\n|---|---|---|\n", out);
    for (const struct plan_preset *row = plan_presets; row->name; row++)
        fprintf(out, "| `%s` | `%s` | %s |\n", row->name, row->changes, row->help);
    fputs("\n| key | allowed | meaning |\n|---|---|---|\n", out);
    for (size_t i = 0; i < plan_n_options; i++) {
        option_range(&plan_options[i], text, sizeof text);
        fprintf(out, "| `%s` | ", plan_options[i].name);
        for (const char *p = text; *p; p++)
            fprintf(out, *p == '|' ? ", " : "%c", *p);
        fprintf(out, " | %s |\n", plan_options[i].help);
    }
}

/* The presets' column is as wide as its longest text. */
static void plain(FILE *out)
{
    char text[128];
    int width = 0;
    for (const struct plan_preset *row = plan_presets; row->name; row++)
        width = (int)strlen(row->changes) > width ? (int)strlen(row->changes) : width;
    for (const struct plan_preset *row = plan_presets; row->name; row++)
        fprintf(out, "%-13s %-*s  %s\n", row->name, width, row->changes, row->help);
    fputs("\nA plan is a preset and changes to it, \"dasgd,every=8,delay=2\":\n\n", out);
    for (size_t i = 0; i < plan_n_options; i++) {
        option_range(&plan_options[i], text, sizeof text);
        fprintf(out, "%-9s %-35s %s\n", plan_options[i].name, text, plan_options[i].help);
    }
}

int cli_plans(const struct cli *cli)
{
    struct choice choice = {false};
    int status;
    if (!settings_take(cli, "plans [--markdown]", options, N_OPTIONS, &choice, &status))
        return status;
    if (choice.markdown)
        markdown(cli->out);
    else
        plain(cli->out);
    return CLI_DONE;
}
