/* SPDX-License-Identifier: MIT */
/* Reads a log while it is written; a last line that is not whole yet does not count. */
#include "harness/log.h"
#include "harness/processes.h"
#include "harness/wait.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

char log_file[96];

static FILE *open_log(void)
{
    return fopen(log_file, "re");
}

static bool next_line(FILE *in, char line[4096])
{
    return in && fgets(line, 4096, in) && strchr(line, '\n');
}

/* NaN: the line is of another kind, or has no such key. */
static double value_in(const char *line, const char *kind, const char *key)
{
    char text[80];
    snprintf(text, sizeof text, "\"kind\":\"%s\"", kind);
    if (!strstr(line, text))
        return NAN;
    snprintf(text, sizeof text, "\"%s\":", key);
    const char *at = strstr(line, text);
    return at ? strtod(at + strlen(text), NULL) : NAN;
}

static void close_log(FILE *in)
{
    if (in)
        fclose(in);
}

double logged(const char *kind, const char *key)
{
    char line[4096];
    double last = -1;
    FILE *in = open_log();
    while (next_line(in, line)) {
        double value = value_in(line, kind, key);
        last = isnan(value) ? last : value;
    }
    close_log(in);
    return last;
}

double summed(const char *kind, const char *key, int *lines)
{
    char line[4096];
    double sum = 0;
    FILE *in = open_log();
    for (*lines = 0; next_line(in, line);) {
        double value = value_in(line, kind, key);
        sum += isnan(value) ? 0 : value;
        *lines += !isnan(value);
    }
    close_log(in);
    return sum;
}

void wait_logged(const char *kind, const char *key, double least)
{
    WAIT_UNTIL(logged(kind, key) >= least, "%s of %s came to %g, not %g; said: %s", key,
               kind, logged(kind, key), least, (read_said(), said));
}

int lines_with(const char *path, const char *text)
{
    char line[4096];
    int n = 0;
    FILE *in = fopen(path, "re");
    while (next_line(in, line))
        n += strstr(line, text) != NULL;
    close_log(in);
    return n;
}
