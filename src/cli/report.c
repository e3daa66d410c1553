/* SPDX-License-Identifier: MIT */
/* descant report: logs of descant train become one page that compares the runs.
 *
 * All logs are read before anything is written, and the page is made in memory: a bad
 * log, lack of memory or a full disk leaves an older page as it was. The page is never
 * written over one of the logs. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "report/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct report_options {
    const char *out;
};

#define AT(field) offsetof(struct report_options, field)
static const struct option options[] = {
    TEXT("out", out, "the page, -o for short; - is the standard output"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

struct report {
    const char *paths[REPORT_MAX_RUNS];
    int n;
    struct report_run runs[REPORT_MAX_RUNS];
};

/* Logs are words without dashes, between the options. */
static int parse(const struct cli *cli, struct report *report, struct report_options *o)
{
    static char long_name[] = "--out";
    for (int i = 0; i < cli->argc; i++) {
        char *word = cli->argv[i], *pair[2] = {word, NULL};
        struct cli one = *cli;
        if (word[0] != '-') {
            if (report->n == REPORT_MAX_RUNS)
                return cli_bad_use(cli, "at most %d logs", REPORT_MAX_RUNS);
            report->paths[report->n++] = word;
            continue;
        }
        bool short_name = strcmp(word, "-o") == 0;
        if (short_name)
            pair[0] = long_name;
        one.argv = pair;
        one.argc = 1;
        if ((short_name || strcmp(word, "--out") == 0) && i + 1 < cli->argc) {
            pair[1] = cli->argv[++i];
            one.argc = 2;
        }
        int status = settings_parse(&one, options, N_OPTIONS, o);
        if (status != CLI_DONE)
            return status;
    }
    return report->n ? CLI_DONE : cli_bad_use(cli, "which logs?");
}

static bool same_label(const struct report *report, int i, int k)
{
    return i != k && strcmp(report->runs[i].label, report->runs[k].label) == 0;
}

static bool label_taken(const struct report *report, int i, int n)
{
    for (int k = 0; k < n; k++)
        if (same_label(report, i, k))
            return true;
    return false;
}

/* Runs of one label are told apart by their paths, and by their place where that is one,
 * too. */
static void tell_apart(struct report *report)
{
    bool taken[REPORT_MAX_RUNS];

    for (int i = 0; i < report->n; i++)
        taken[i] = label_taken(report, i, report->n);
    for (int i = 0; i < report->n; i++) {
        struct report_run *run = &report->runs[i];
        size_t length = strlen(run->path), room = sizeof run->label;
        const char *end = run->path + (length < room ? 0 : length - room + 1);
        while ((*end & 0xc0) == 0x80)       /* not within a character */
            end++;
        if (taken[i])
            snprintf(run->label, room, "%s", end);
        if (taken[i] && label_taken(report, i, i))
            snprintf(run->label, room, "%.100s (%d)", run->path, i + 1);
    }
}

/* The page, and the files beside it while it is made, must be none of the logs. */
static bool page_apart(const struct cli *cli, const struct report *report,
                       const char *page)
{
    struct cli_file files[1 + REPORT_MAX_RUNS] = {{"out", page, CLI_MAKES}};

    for (int i = 0; i < report->n; i++)
        files[1 + i] = (struct cli_file){NULL, report->paths[i], CLI_READS};
    return cli_files_apart(cli, files, 1 + report->n);
}

static int write_page(const struct cli *cli, const char *path, const char *page,
                      size_t bytes)
{
    struct log log = {.fn = cli_log, .user = cli->err, .rank = -1};
    struct output out;
    bool good = output_open(&out, cli, path, &log);
    errno = 0;
    if (good)
        fwrite(page, 1, bytes, out.file);
    return output_close(&out, cli, good) ? CLI_DONE : CLI_FAILED;
}

static int make_page(const struct cli *cli, struct report *report, const char *path)
{
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    bool good = out && report_page(out, report->runs, report->n);
    if (out && fclose(out) != 0)
        good = false;
    int status = CLI_FAILED;
    if (good)
        status = write_page(cli, path, page, bytes);
    else
        fputs("descant report: no memory for the page\n", cli->err);
    free(page);
    return status;
}

static int run(const struct cli *cli, struct report *report, const char *path)
{
    bool good = true;
    int read = 0;
    for (; good && read < report->n; read++)
        good = report_read(&report->runs[read], report->paths[read], cli->err);
    int status = CLI_FAILED;
    if (good) {
        tell_apart(report);
        status = make_page(cli, report, path);
    }
    while (read > 0)
        report_run_fini(&report->runs[--read]);
    return status;
}

int cli_report(const struct cli *cli)
{
    struct report_options o = {.out = "report.html"};
    struct report report = {0};
    if (settings_wants_help(cli)) {
        fputs("usage: descant report LOG.jsonl [MORE.jsonl ...] [-o PAGE.html]\n",
              cli->out);
        settings_help(cli->out, options, N_OPTIONS, &o);
        return CLI_DONE;
    }
    int status = parse(cli, &report, &o);
    if (status != CLI_DONE)
        return status;
    char target[PATH_MAX];
    return output_follow(cli, "out", &o.out, target) && page_apart(cli, &report, o.out)
               ? run(cli, &report, o.out)
               : CLI_BAD_USE;
}
