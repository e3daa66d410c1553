/* SPDX-License-Identifier: MIT */
/* descant bsp status: its options. The NAME of the run stands before them, and is no
 * option; what is found under that name, and how it is printed, is
 * src/control/status.c's. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "control/control.h"

#include <string.h>

struct status_options {
    double over;                /* seconds */
    bool json;
};

#define AT(field) offsetof(struct status_options, field)
static const struct option table[] = {
    SECONDS("over", over, 0.01, 3600, "seconds over which rates are taken"),
    FLAG("json", json, "one JSON object a slot, each on a line"),
};
enum { N_TABLE = sizeof table / sizeof *table };

int cli_bsp_status(const struct cli *cli)
{
    struct status_options o = {.over = 1};
    struct cli own = *cli;
    int named = cli->argc > 0 && strncmp(cli->argv[0], "--", 2) != 0, status;

    own.argc -= named;
    own.argv += named;
    if (!settings_take(&own,
                       "bsp status NAME [OPTIONS]\nshows for each segment of a run the "
                       "modules that are attached, their pace, and how many versions\n"
                       "behind their model is; status 1 where the run is dead\n",
                       table, N_TABLE, &o, &status))
        return status;
    if (!named)
        return cli_bad_use(cli, "the NAME of a run comes first");
    if (strlen(cli->argv[0]) > BSP_NAME)
        return cli_bad_use(cli, "'%s' is no name of a run", cli->argv[0]);
    return bsp_status(cli->argv[0], o.over, o.json, cli->out, cli->err) ? CLI_DONE
                                                                        : CLI_FAILED;
}
