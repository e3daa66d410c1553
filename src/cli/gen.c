/* SPDX-License-Identifier: MIT */
/* descant gen ctr: a file of click logs from a planted model, in Criteo's format, to try
 * training with. The summary goes to stderr, since rows may go to stdout. The generator
 * is src/data/ctr.c's; this file has its options, and the choice between ctr and
 * cache. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "data/data.h"
#include "files/files.h"

#include <math.h>
#include <string.h>

/* The fields of struct ctr_options (data/data.h), of the types that rows of options
 * fill. */
struct gen_options {
    int64_t rows, seed, model, categories;
    double zipf, noise, positive;
    const char *out;
};

#define AT(field) offsetof(struct gen_options, field)
static const struct option options[] = {
    INT("rows", rows, 0, 1e15, "lines; each is an example"),
    INT("seed", seed, 0, 1e15, "seed of the rows"),
    INT("model", model, 0, 1e15,
        "seed of the planted model, the same for training and test"),
    INT("categories", categories, 3, 1e9, "categories of the largest field"),
    REAL("zipf", zipf, 0, 10, "exponent of the categories' frequencies"),
    REAL("noise", noise, 0, 10, "standard deviation of the planted logit"),
    REAL("positive", positive, 1e-4, 1 - 1e-4, "share of clicks"),
    TEXT("out", out, "FILE, FILE.gz, FILE.zst, or - for stdout"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* The log loss of the share of clicks as the probability of every example. */
static double guess_loss(double p)
{
    return p > 0 && p < 1 ? -p * log(p) - (1 - p) * log1p(-p) : 0;
}

/* The summary of what was written. "best" is the loss of the planted model itself, which
 * no training can beat but by chance; the loss of a constant guess is what a useless
 * model reaches. */
static void say(FILE *err, const struct ctr_summary *sum, double seconds)
{
    double rows = (double)sum->rows, clicks = rows > 0 ? (double)sum->clicks / rows : 0;
    fprintf(err,
            "%llu row%s, %llu click%s (%.2f %%), best log loss %.6f, "
            "of a constant guess %.6f, %.0f rows/s\n",
            (unsigned long long)sum->rows, sum->rows == 1 ? "" : "s",
            (unsigned long long)sum->clicks, sum->clicks == 1 ? "" : "s", 100 * clicks,
            sum->best_logloss, guess_loss(clicks), rows / (seconds > 0 ? seconds : 1));
}

static int gen_ctr(const struct cli *cli)
{
    struct ctr_options d = ctr_options_default();
    struct gen_options o = {.rows = (int64_t)d.rows, .seed = (int64_t)d.seed,
                            .model = (int64_t)d.model, .categories = d.categories,
                            .zipf = d.zipf, .noise = d.noise, .positive = d.positive};
    struct ctr_summary sum;
    struct output out;
    char target[PATH_MAX];
    int status;

    if (!settings_take(cli, "gen ctr --out FILE [OPTIONS]", options, N_OPTIONS, &o,
                       &status))
        return status;
    if (!o.out)
        return cli_bad_use(cli, "--out is missing");
    if (!pack_can(o.out))
        return cli_bad_use(cli, "--out %s: only .gz and .zst are compressed", o.out);
    const struct named_file file = {"out", &o.out, FILE_PUT};
    const char *packed = o.out;     /* a link's target may have another ending */
    if ((status = cli_files(cli, &file, 1, target)) != CLI_DONE)
        return status;
    struct ctr_options ctr = {.rows = (uint64_t)o.rows, .seed = (uint64_t)o.seed,
                              .model = (uint64_t)o.model, .zipf = o.zipf,
                              .categories = o.categories, .noise = o.noise,
                              .positive = o.positive};
    uint64_t start = clock_now_ns();
    bool good = output_open(&out, o.out, packed, cli->out, &cli->log) &&
                ctr_generate(out.file, &ctr, &sum, &cli->log) == DESCANT_OK;
    if (!output_close(&out, good))
        return CLI_FAILED;
    say(cli->err, &sum, (double)(clock_now_ns() - start) * 1e-9);
    return CLI_DONE;
}

int cli_gen(const struct cli *cli)
{
    static const char *const names[] = {"ctr", "cache", NULL};
    struct cli one = *cli;
    if (cli->argc < 1)
        return cli_unknown(cli, "data", "", names);
    if (cli_is_help(cli->argv[0])) {
        fputs("usage: descant gen ctr --out FILE [OPTIONS]\n"
              "       descant gen cache --data FILES --out FILE [OPTIONS]\n", cli->out);
        return CLI_DONE;
    }
    one.argc--;
    one.argv++;
    if (strcmp(cli->argv[0], "ctr") == 0) {
        one.command = "gen ctr";
        return gen_ctr(&one);
    }
    if (strcmp(cli->argv[0], "cache") == 0) {
        one.command = "gen cache";
        return cli_gen_cache(&one);
    }
    return cli_unknown(cli, "data", cli->argv[0], names);
}
