/* SPDX-License-Identifier: MIT */
/* The secret by which ranks of one job know each other over TCP: one line, as `descant
 * secret` makes it and secret=FILE in an address names it. It reaches ranks through their
 * shells' standard input, since all users of a host can read the words of its
 * processes. */
#include "hosts/hosts.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum { BYTES = 32 };

static descant_status make(char line[HOSTS_SECRET], const struct log *log)
{
    static const char head[] = "descant-secret-1:";
    unsigned char bytes[BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return log_fail(log, DESCANT_SYSTEM, "the kernel gives no chance: %s",
                        strerror(errno));
    int n = sprintf(line, "%s", head);
    for (int i = 0; i < BYTES; i++)
        n += sprintf(line + n, "%02x", bytes[i]);
    explicit_bzero(bytes, sizeof bytes);
    return DESCANT_OK;
}

descant_status secret_line(char line[HOSTS_SECRET], const char *file,
                           const struct log *log)
{
    if (!file)
        return make(line, log);
    FILE *in = fopen(file, "re");
    if (!in)
        return log_fail(log, DESCANT_INVALID, "--secret %s cannot be read: %s", file,
                        strerror(errno));
    char *got = fgets(line, HOSTS_SECRET, in);
    size_t n = got ? strcspn(line, "\n") : 0;
    bool whole = n > 0 && line[n] == '\n' && fgetc(in) == EOF;
    fclose(in);
    if (!whole || strpbrk(line, "'\\"))
        return log_fail(log, DESCANT_INVALID,
                        "--secret %s is not one line of up to %d characters; make one "
                        "with: descant secret > %s",
                        file, HOSTS_SECRET - 2, file);
    line[n] = 0;
    return DESCANT_OK;
}
