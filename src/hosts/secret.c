/* SPDX-License-Identifier: MIT */
/* The secret by which ranks of one job know each other over TCP (link/secret.h). It
 * reaches ranks through their shells' standard input, since all users of a host can read
 * the words of its processes. */
#include "hosts/hosts.h"

#include <errno.h>
#include <string.h>

descant_status secret_line(char line[SECRET_LINE + 1], const char *file,
                           const struct log *log)
{
    unsigned char bytes[SECRET_BYTES];

    if (!file)
        return secret_make(line) ? DESCANT_OK
                                 : log_fail(log, DESCANT_SYSTEM, "no new secret: %s",
                                            strerror(errno));
    descant_status status = secret_read(bytes, file, log);
    explicit_bzero(bytes, sizeof bytes);
    if (status != DESCANT_OK)
        return status;
    FILE *in = fopen(file, "re");
    bool whole = in && fgets(line, SECRET_LINE + 1, in);
    if (in)
        fclose(in);
    return whole ? DESCANT_OK
                 : log_fail(log, DESCANT_INVALID, "--secret %s cannot be read: %s", file,
                            strerror(errno));
}
