/* SPDX-License-Identifier: MIT */
/* descant run: words become options, and src/hosts does the rest. */
#include "cli/cli.h"
#include "hosts/hosts.h"

#include <string.h>

#define SSH                                                                              \
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 "            \
    "-o ServerAliveCountMax=4"

#define AT(field) offsetof(struct hosts_options, field)
#include "base/option_rows.h"
static const struct option settings[] = {
    TEXT("hosts", hosts, "where, as a,b or node[01-16]; without it, on this host"),
    INT("per-host", each, 1, HOSTS_RANKS, "ranks on each host, -n for short"),
    INT("port", port, 0, 65535,
        "where rank 0 listens on the first host; 0: by chance, and none on one host"),
    TEXT("secret", secret, "a file that descant secret has made; else the run makes one"),
    FLAG("insecure", insecure, "no secret: any process that reaches the port may come"),
    {"restarts", OPTION_REAL, AT(restarts), 0, 1e5, "auto",
     "of a rank that dies, in a row; auto, 3 after failures, without end after signals"},
    TEXT("ssh", ssh, "the command that gets a host, and a line for its shell"),
    TEXT("env", env, "variables to hand to ranks over ssh: names, with commas"),
    FLAG("plain", plain, "lines as ranks print them, without [RANK] before each"),
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static const char usage[] =
    "run [OPTIONS] -- COMMAND [ARGUMENTS]\nstarts COMMAND on hosts, over ssh where that "
    "is not this one, as ranks of one job, and a rank\nthat dies again, alone. COMMAND "
    "finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and DESCANT_JOB, the\njob's "
    "address\n";

int cli_run(const struct cli *cli)
{
    static char per_host[] = "--per-host";
    struct hosts_options o = {.each = 1, .restarts = RESTARTS_AUTO, .ssh = SSH};
    struct cli own = *cli;
    int status;

    for (own.argc = 0; own.argc < cli->argc; own.argc++) {
        if (strcmp(own.argv[own.argc], "--") == 0)
            break;
        if (strcmp(own.argv[own.argc], "-n") == 0)
            own.argv[own.argc] = per_host;
    }
    if (!settings_take(&own, usage, settings, N_SETTINGS, &o, &status))
        return status;
    if (own.argc + 1 >= cli->argc)
        return cli_bad_use(cli, "there is no COMMAND after --");
    o.command = cli->argv + own.argc + 1;
    return hosts_run(&o, cli->out, cli->err);
}
