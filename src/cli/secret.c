/* SPDX-License-Identifier: MIT */
/* descant secret: a new secret for a job (link/secret.h). A shell's > has made its file
 * readable for all, and such a file is refused when it is used, so the file is closed to
 * others before the secret is in it. */
#include "cli/cli.h"
#include "link/secret.h"

#include <errno.h>
#include <string.h>

int cli_secret(const struct cli *cli)
{
    char line[SECRET_LINE + 1];

    if (cli->argc > 0 && cli_is_help(cli->argv[0])) {
        fputs("usage: descant secret > FILE\nmakes a new secret for a job: add "
              ",secret=FILE to the job's address tcp:HOST:PORT. Each host of the job "
              "needs a copy\nof FILE that only its user can read (chmod 600)\n",
              cli->out);
        return CLI_DONE;
    }
    if (cli->argc > 0)
        return cli_bad_use(cli, "'%s': the command takes nothing, and writes to stdout",
                           cli->argv[0]);
    if (!shown_for_owner(cli->out)) {
        log_fail(&cli->log, DESCANT_SYSTEM,
                 "the file cannot be closed to others (chmod 600): %s; write to another "
                 "one", strerror(errno));
        return CLI_FAILED;
    }
    if (!secret_make(line)) {
        log_fail(&cli->log, DESCANT_SYSTEM, "the kernel gives no random bytes: %s",
                 strerror(errno));
        return CLI_FAILED;
    }
    fputs(line, cli->out);
    explicit_bzero(line, sizeof line);
    return CLI_DONE;
}
