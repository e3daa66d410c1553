/* SPDX-License-Identifier: MIT */
/* Shared by the programs descant and descant-bench, as settings.c is: their output, and
 * the refusal of words, links and plans. No function here exits: main does, with the
 * status returned. */
#include "cli/cli.h"
#include "sync/plan.h"
#ifdef DESCANT_TRAIN
#include "files/files.h"
#include "run/config.h"
#endif

#include <signal.h>
#include <string.h>
#include <sys/resource.h>

int cli_bad_use(const struct cli *cli, const char *format, ...)
{
    va_list list;
    const char *space = *cli->command ? " " : "";
    fprintf(cli->err, "descant%s%s: ", space, cli->command);
    va_start(list, format);
    vfprintf(cli->err, format, list);
    va_end(list);
    fprintf(cli->err, "\ntry: descant%s%s --help\n", space, cli->command);
    return CLI_BAD_USE;
}

bool cli_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int cli_unknown(const struct cli *cli, const char *what, const char *word,
                const char *const *names)
{
    char all[256] = "";
    struct guess guess = {.wrong = word, .length = strlen(word)};
    for (size_t n = 0; *names && n < sizeof all; names++) {
        guess_try(&guess, *names, strlen(*names));
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", *names);
    }
    return *word ? cli_bad_use(cli, "unknown %s '%s'%s; allowed: %s", what, word,
                               guess_text(&guess, ""), all)
                 : cli_bad_use(cli, "which one? allowed: %s", all);
}

/* Both values are read by rows of options, so that they have the units of an address. The
 * round trip may be left out, and is 0 then. The suffix repeats the user's own words, not
 * the numbers, so that a job's address shows what was asked for. */
bool cli_link_ok(const struct cli *cli, const char *text, char *suffix, size_t room,
                 double *rate, double *rtt)
{
    struct {
        double rate, rtt;
    } into = {0, 0};
    const struct option table[] = {
        {.name = "rate", .type = OPTION_RATE, .offset = 0, .high = 1e15},
        {.name = "rtt", .type = OPTION_TIME, .offset = sizeof(double), .high = 3600},
    };
    char message[256];
    size_t first = strcspn(text, ",");
    const char *second = text[first] ? text + first + 1 : "0ms";
    const struct option_text texts[] = {{text, "rate", text, 4, first},
                                        {text, "rtt", second, 3, strlen(second)}};
    const struct option_table both = {table, 2};
    bool none = strcmp(text, "none") == 0;

    *suffix = 0;
    if (!none && (!option_set(both, &texts[0], &into, message, sizeof message) ||
                  !option_set(both, &texts[1], &into, message, sizeof message))) {
        cli_bad_use(cli, "--link %s: allowed is none or RATE,RTT as 1gbit,1ms", text);
        return false;
    }
    *rate = into.rate;
    *rtt = into.rtt;
    if (!none)
        snprintf(suffix, room, ",rate=%.*s,rtt=%s", (int)first, text, second);
    return true;
}

/* The reason is the parser's, which has it as the last error and does not log it here. */
bool cli_plan_ok(const struct cli *cli, const char *option, const char *text)
{
    struct plan plan;
    if (plan_parse(&plan, text, NULL) == DESCANT_OK)
        return true;
    cli_bad_use(cli, "--%s: %s", option, descant_last_error());
    return false;
}

#ifdef DESCANT_TRAIN
int cli_files(const struct cli *cli, const struct named_file *files, int n, char *target)
{
    char message[3 * PATH_MAX];
    return files_good(files, n, target, message, sizeof message)
               ? CLI_DONE
               : cli_bad_use(cli, "%s", message);
}

void train_know_plan(struct train_options *o)
{
    struct plan plan;
    if (plan_parse(&plan, o->sync, NULL) != DESCANT_OK)
        return;
    o->plan_gathers = plan.what == PLAN_GRADIENT;
    o->plan_controls = plan.when == PLAN_CONTROL;
    o->plan_frees = plan.when == PLAN_SHADOW || plan.when == PLAN_NEVER;
    o->plan_rests = plan.when == PLAN_NEVER || o->plan_controls;
    o->plan_wire = plan.wire;       /* its names are those of rows (owned.c) */
    o->plan_period_s = plan.period;
    o->plan_every = o->plan_controls ? plan.every : 0;
    o->plan_bound = plan.bound;
}
#endif

/* Warnings and errors are shown; lines of lower levels are for programs that watch a job,
 * and a command's own output says what it does. */
void cli_log(void *user, enum descant_level level, const char *line)
{
    if (level >= DESCANT_WARNING)
        fprintf(user, "descant: %s\n", line);
}

void cli_say(FILE *out, const char *name, const char *format, ...)
{
    va_list list;
    fprintf(out, "%-18s ", name);
    va_start(list, format);
    vfprintf(out, format, list);
    va_end(list);
    fputc('\n', out);
}

/* bytes */
enum { LEAST_STACK = 256 << 10 };

/* Paths, copies and BLAS lie on stacks, and a thread's stack is as large as the limit:
 * with a smaller one a run would end with SIGSEGV. */
static bool stack_good(FILE *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK)
        return true;
    fprintf(err, "descant: the stack may have %llu KiB, %d are needed: ulimit -s %d\n",
            (unsigned long long)limit.rlim_cur >> 10, LEAST_STACK >> 10,
            LEAST_STACK >> 10);
    return false;
}

/* All output goes through two shown streams. Output that could not be written is a
 * failure; a file at the limit of its size is an error with a message, and not a signal
 * that ends the program. err is closed last, for the failure of out is written there. */
int cli_program(cli_command *program, int argc, char **argv, FILE *out, FILE *err)
{
    struct cli cli = {.command = "", .argc = argc - 1, .argv = argv + 1,
                      .out = shown_open(out, true), .err = shown_open(err, false)};
    int status = CLI_FAILED, error = 0;

    cli.log = (struct log){.fn = cli_log, .user = cli.err, .rank = -1};
    signal(SIGXFSZ, SIG_IGN);
    if (cli.out && cli.err)
        status = stack_good(cli.err) ? program(&cli) : CLI_FAILED;
    else
        fputs("descant: no memory for the output\n", err);
    if (cli.out)
        error = shown_close(cli.out);
    if (error && status == CLI_DONE) {
        fprintf(cli.err, "descant: the output could not be written: %s\n",
                strerror(error));
        status = CLI_FAILED;
    }
    if (cli.err)
        shown_close(cli.err);
    return status;
}
