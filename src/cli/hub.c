/* SPDX-License-Identifier: MIT */
/* descant hub: its options. The ADDRESS stands before them, and is no option. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "hub/hub.h"

#include <string.h>

struct hub_words {
    struct hub_options hub;
    bool status;
};

#define AT(field) offsetof(struct hub_words, field)
static const struct option table[] = {
    INT("trainers", hub.trainers, 1, 4095,
        "trainers for which the job's beginning waits"),
    TEXT("state", hub.state,
         "FILE for what the hub knows: a job that begins here begins with it"),
    SECONDS("state-every", hub.state_every, 0.1, 86400, "between two writes of it"),
    FLAG("status", status, "show the trainers of the hub that runs here at ADDRESS"),
};
enum { N_TABLE = sizeof table / sizeof *table };

int cli_hub(const struct cli *cli)
{
    struct hub_words words = {.hub = {.trainers = 1, .state_every = 30}};
    struct cli own = *cli;
    int named = cli->argc > 0 && strncmp(cli->argv[0], "-", 1) != 0, status;

    own.argc -= named;
    own.argv += named;
    if (!settings_take(&own,
                       "hub ADDRESS [OPTIONS]\nis the hub of a star: "
                       "trainers with the job address tcp:HOST:PORT,star connect to it "
                       "alone. It does not\ntrain, needs no options about the model, and "
                       "ends when all trainers have finished. ADDRESS is\n"
                       "tcp:HOST:PORT with keys behind it, such as secret=FILE; HOST "
                       "0.0.0.0: all addresses of this machine\n",
                       table, N_TABLE, &words, &status))
        return status;
    if (!named || strncmp(cli->argv[0], "tcp:", 4) != 0)
        return cli_bad_use(cli, "the ADDRESS, tcp:HOST:PORT, comes first");
    words.hub.address = cli->argv[0];
    return words.status ? hub_status(words.hub.address, cli->out, cli->err)
                        : hub_run(&words.hub, cli->err);
}
