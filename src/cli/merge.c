/* SPDX-License-Identifier: MIT */
/* descant merge FILE OUT: a checkpoint in shards becomes one file (files/merge.c). */
#include "cli/cli.h"
#include "files/files.h"

enum { N_WORDS = 2 };

int cli_merge(const struct cli *cli)
{
    char target[PATH_MAX];

    if (cli->argc > 0 && cli_is_help(cli->argv[0])) {
        fputs("usage: descant merge FILE OUT\nwrites the checkpoint FILE, whose tables "
              "are in shards beside it, as the one file OUT,\nwhich needs memory for the "
              "tables and their optimizer's state; where tables grow,\nfor 20 to 32 "
              "bytes a row\n",
              cli->out);
        return CLI_DONE;
    }
    for (int k = 0; k < cli->argc; k++)
        if (cli->argv[k][0] == '-')
            return cli_bad_use(cli, "'%s': merge takes two files, and no options",
                               cli->argv[k]);
    if (cli->argc != N_WORDS)
        return cli_bad_use(cli, "merge takes a checkpoint, and the file to make of it");
    const char *from = cli->argv[0], *to = cli->argv[1];
    const struct named_file files[] = {{NULL, &to, FILE_MADE}, {NULL, &from, FILE_READ}};
    int status = cli_files(cli, files, N_WORDS, target);
    if (status != CLI_DONE)
        return status;
    return file_merge(from, to, cli->out, &cli->log) ? CLI_DONE : CLI_FAILED;
}
