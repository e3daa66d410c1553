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
    FLAG("insecure", insecure, "no secret: whoever reaches the port may come"),
    {"restarts", OPTION_REAL, AT(restarts), 0, 1e5, "auto",
     "of a rank that dies, in a row; auto, 3 after failures, without end after signals"},
    TEXT("ssh", ssh, "the command that gets a host, and a line for its shell"),
    TEXT("env", env, "variables to hand to ranks over ssh: names, with commas"),
    FLAG("plain", plain, "lines as ranks print them, without [RANK] before each"),
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static void help(FILE *out, const struct hosts_options *o)
{
    fputs("usage: descant run [OPTIONS] -- COMMAND [ARGUMENTS]\nstarts COMMAND on "
          "hosts, over ssh where that is not this one, as ranks of one job, and a rank "
          "that dies again, alone. COMMAND finds RANK, WORLD_SIZE, LOCAL_RANK, "
          "LOCAL_WORLD_SIZE and DESCANT_JOB, the job's address\n\n",
          out);
    settings_help(out, settings, N_SETTINGS, o);
}

/* -n is --per-host. */
static void lengthen(char **words, int n)
{
    static char per_host[] = "--per-host";
    for (int k = 0; k < n; k++)
        if (strcmp(words[k], "-n") == 0)
            words[k] = per_host;
}

/* The options end at "--". */
static int parse(const struct cli *cli, struct hosts_options *o)
{
    struct cli own = *cli;
    own.argc = 0;
    while (own.argc < cli->argc && strcmp(cli->argv[own.argc], "--") != 0)
        own.argc++;
    if (settings_wants_help(&own)) {
        help(cli->out, o);
        return -1;
    }
    lengthen(own.argv, own.argc);
    int status = settings_parse(&own, settings, N_SETTINGS, o);
    if (status == CLI_DONE && own.argc + 1 >= cli->argc)
        status = cli_bad_use(cli, "there is no COMMAND after --");
    o->command = cli->argv + own.argc + 1;
    return status;
}

int cli_run(const struct cli *cli)
{
    struct hosts_options o = {.each = 1, .restarts = RESTARTS_AUTO, .ssh = SSH};
    int status = parse(cli, &o);
    return status == CLI_DONE ? hosts_run(&o, cli->out, cli->err)
           : status < 0 ? CLI_DONE : status;
}
