/* SPDX-License-Identifier: MIT */
/* descant report: logs of descant train become one page that compares the runs.
 *
 * All logs are read before anything is written: a bad log, lack of memory or a full disk
 * leaves an older page as it was. The page is never written over one of the logs. */
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

/* The logs that are compared: their names as given, and what was read of each, in the
 * same order. */
struct report {
    const char *paths[REPORT_MAX_RUNS];
    int n;
    struct report_run runs[REPORT_MAX_RUNS];
};

/* Logs are words without dashes, between the options, which are left in cli->argv. */
static int take_logs(struct cli *cli, struct report *report)
{
    static char long_name[] = "--out";
    int argc = cli->argc, n = 0;

    for (int i = 0; i < argc; i++) {
        char *word = cli->argv[i];
        bool out = strcmp(word, "-o") == 0 || strcmp(word, "--out") == 0;
        if (word[0] != '-' && report->n == REPORT_MAX_RUNS)
            return cli_bad_use(cli, "at most %d logs", REPORT_MAX_RUNS);
        if (word[0] != '-')
            report->paths[report->n++] = word;
        else
            cli->argv[n++] = out ? long_name : word;
        if (out && i + 1 < argc)
            cli->argv[n++] = cli->argv[++i];
    }
    cli->argc = n;
    return CLI_DONE;
}

/* Writes the page as a whole or not at all. errno is set to 0 before, since output_close
 * takes a later value of it for the reason why a write has failed. */
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

/* Reads the logs, then writes the page. The first log that is bad ends it, with the
 * reason on err. */
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
    struct cli own = *cli;
    char target[PATH_MAX];
    int status = take_logs(&own, &report);

    if (status != CLI_DONE ||
        !settings_take(&own, "report LOG.jsonl [MORE.jsonl ...] [-o PAGE.html]", options,
                       N_OPTIONS, &o, &status))
        return status;
    if (report.n == 0)
        return cli_bad_use(cli, "which logs?");
    struct named_file files[1 + REPORT_MAX_RUNS] = {{"out", &o.out, FILE_PUT}};
    for (int i = 0; i < report.n; i++)
        files[1 + i] = (struct named_file){NULL, &report.paths[i], FILE_READ};
    status = cli_files(cli, files, 1 + report.n, target);
    return status == CLI_DONE ? run(cli, &report, o.out) : status;
}
