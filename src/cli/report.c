/* SPDX-License-Identifier: MIT */
/* descant report: logs of descant train become one page that compares the runs.
 *
 * All logs are read before anything is written: a log that is none, no memory or a full
 * disk leaves an older page as it was. It is never written over one of the logs. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "files/files.h"
#include "report/report.h"

#include <errno.h>
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

static int put_page(const struct cli *cli, struct report *report, const char *path)
{
    struct output out;
    bool good = output_open(&out, path, NULL, cli->out, &cli->log);

    errno = 0;
    if (good && !report_page(out.file, report->runs, report->n)) {
        good = false;
        fputs("descant report: no memory for the page\n", cli->err);
    }
    return output_close(&out, good) ? CLI_DONE : CLI_FAILED;
}

static int run(const struct cli *cli, struct report *report, const char *path)
{
    bool good = true;
    int read = 0;
    for (; good && read < report->n; read++)
        good = report_read(&report->runs[read], report->paths[read], cli->err);
    int status = good ? put_page(cli, report, path) : CLI_FAILED;
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
    struct named_file files[1 + REPORT_MAX_RUNS] = {{"out", &o.out, FILE_PUT}};
    for (int i = 0; i < report.n; i++)
        files[1 + i] = (struct named_file){NULL, &report.paths[i], FILE_READ};
    status = cli_files(cli, files, 1 + report.n, target);
    return status == CLI_DONE ? run(cli, &report, o.out) : status;
}
