/* SPDX-License-Identifier: MIT */
/* Calls the program with a line of words. */
#include "harness/program.h"
#include "harness/processes.h"
#include "programs.h"

#include <check.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *out_text, *err_text;

static char line[8192];

#define WRITE_LINE(format)                                                              \
    do {                                                                                \
        va_list list;                                                                   \
        va_start(list, format);                                                         \
        ck_assert_int_lt(vsnprintf(line, sizeof line, format, list), (int)sizeof line); \
        va_end(list);                                                                   \
    } while (0)

static int call(FILE *out, FILE *err)
{
    static char name[] = "descant";
    char *argv[64] = {name};
    int argc = 1;
    for (char *word = strtok(line, " "); word && argc < 63; word = strtok(NULL, " "))
        argv[argc++] = word;
    return call_program(argc, argv, out, err);
}

static FILE *open_text(void)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    setvbuf(file, NULL, _IOLBF, 0);
    return file;
}

/* Closes the file, in which the words of forked trainers are, too. */
static char *take_text(FILE *from)
{
    long n = fseek(from, 0, SEEK_END) == 0 ? ftell(from) : -1;
    ck_assert_int_ge(n, 0);
    rewind(from);
    char *text = calloc(1, (size_t)n + 1);
    ck_assert_uint_eq(fread(text, 1, (size_t)n, from), (size_t)n);
    fclose(from);
    return text;
}

int program(const char *format, ...)
{
    WRITE_LINE(format);
    FILE *out = open_text(), *err = open_text();
    int status = call(out, err);
    free(out_text);
    free(err_text);
    out_text = take_text(out);
    err_text = take_text(err);
    return status;
}

int ask(const char *format, ...)
{
    WRITE_LINE(format);
    FILE *out = open_text();
    int status = call(out, out);
    char *text = take_text(out);
    snprintf(said, sizeof said, "%s", text);
    free(text);
    return status;
}

pid_t program_aside(const char *format, ...)
{
    FILE *out;
    WRITE_LINE(format);
    pid_t pid = fork_saying(&out, SIGKILL);
    if (pid)
        return pid;
    int status = call(out, out);
    fclose(out);
    _exit(status);
}
