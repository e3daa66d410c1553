/* SPDX-License-Identifier: MIT */
/* descant run: words become options, and src/hosts does the rest. The words behind "--"
 * are the command, which goes to the hosts as it is. */
#include "cli/cli.h"
#include "hosts/hosts.h"

#include <string.h>

/* The default of --ssh. ssh gets no terminal, and never asks for a password, since there
 * may be nobody to answer. A host that says nothing for a minute (4 times 15 s) is given
 * up: the rank counts as lost then, and restarts.c decides. */
#define SSH                                                                              \
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 "            \
    "-o ServerAliveCountMax=4"

#define AT(field) offsetof(struct hosts_options, field)
#include "base/option_rows.h"
static const struct option settings[] = {
    TEXT("hosts", hosts, "the hosts, as a,b or node[01-16]; without it, this host"),
    INT("per-host", each, 1, HOSTS_RANKS, "ranks on each host, -n for short"),
    INT("port", port, 0, 65535,
        "where rank 0 listens on the first host; 0: a random port, and none on one host"),
    TEXT("secret", secret,
         "the job's secret, a file that descant secret has made; without it, a new one"),
    FLAG("insecure", insecure, "no secret: any process that reaches the port may join"),
    /* a word may stand for a number here, and is kept as -1: RESTARTS_AUTO */
    {"restarts", OPTION_REAL, AT(restarts), 0, 1e5, "auto",
     "restarts of a rank in a row; auto: 3 after failures, no limit after signals"},
    TEXT("ssh", ssh,
         "a command in place of ssh, which gets a host, and a line for the shell there"),
    TEXT("env", env, "variables that ranks over ssh get, too: names with commas between"),
    FLAG("plain", plain, "print the ranks' lines without [RANK] before each"),
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static const char usage[] =
    "run [OPTIONS] -- COMMAND [ARGUMENTS]\nstarts COMMAND on hosts, by ssh on other "
    "hosts than this one, as the ranks of one job. A rank that dies\nis started again, "
    "alone. COMMAND gets the variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
    "and\nDESCANT_JOB, the job's address\n";

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
