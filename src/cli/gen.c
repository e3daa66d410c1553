/* SPDX-License-Identifier: MIT */
/* descant gen ctr: a file of click logs from a planted model, in Criteo's format, to try
 * training with. A name that ends in .gz or .zst is compressed on the way: the stream
 * that the generator writes to is then a pair of functions (fopencookie) above zlib or
 * libzstd. A file that could not be finished is removed. The summary goes to stderr,
 * since rows may go to stdout. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "data/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

struct gen_options {
    int64_t rows, seed, model, categories;
    double zipf, noise, positive;
    const char *out;
};

#define AT(field) offsetof(struct gen_options, field)
static const struct option options[] = {
    INT("rows", rows, 0, 1e15, "lines, an example each"),
    INT("seed", seed, 0, 1e15, "of the rows"),
    INT("model", model, 0, 1e15,
        "seed of the planted model, the same for training and test"),
    INT("categories", categories, 3, 1e9, "of the largest field"),
    REAL("zipf", zipf, 0, 10, "exponent of the categories' frequencies"),
    REAL("noise", noise, 0, 10, "of the planted logit, standard deviation"),
    REAL("positive", positive, 1e-4, 1 - 1e-4, "share of clicks"),
    TEXT("out", out, "FILE, FILE.gz, FILE.zst, or - for stdout"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* --- compressed files --- */

struct packer {
    FILE *file;
    ZSTD_CCtx *zstd;
};

static ssize_t gzip_write(void *cookie, const char *bytes, size_t n)
{
    return gzwrite(cookie, bytes, (unsigned)n) == (int)n ? (ssize_t)n : 0;
}

static int gzip_close(void *cookie)
{
    return gzclose(cookie) == Z_OK ? 0 : -1;
}

static bool zstd_some(struct packer *p, ZSTD_inBuffer *in, ZSTD_EndDirective how,
                      size_t *left)
{
    char some[1 << 14];
    ZSTD_outBuffer out = {some, sizeof some, 0};
    *left = ZSTD_compressStream2(p->zstd, &out, in, how);
    return !ZSTD_isError(*left) && fwrite(some, 1, out.pos, p->file) == out.pos;
}

static ssize_t zstd_write(void *cookie, const char *bytes, size_t n)
{
    ZSTD_inBuffer in = {bytes, n, 0};
    size_t left;
    while (in.pos < in.size)
        if (!zstd_some(cookie, &in, ZSTD_e_continue, &left))
            return 0;
    return (ssize_t)n;
}

static int zstd_close(void *cookie)
{
    struct packer *p = cookie;
    ZSTD_inBuffer in = {NULL, 0, 0};
    size_t left = 1;
    bool good = true;
    while (good && left > 0)
        good = zstd_some(p, &in, ZSTD_e_end, &left);
    ZSTD_freeCCtx(p->zstd);
    good &= fclose(p->file) == 0;
    free(p);
    return good ? 0 : -1;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static FILE *open_zstd(const char *name)
{
    struct packer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->zstd = ZSTD_createCCtx();
    p->file = p->zstd ? fopen(name, "wb") : NULL;
    cookie_io_functions_t how = {.write = zstd_write, .close = zstd_close};
    FILE *out = p->file ? fopencookie(p, "w", how) : NULL;
    if (!out) {
        int why = errno;
        if (p->file)
            fclose(p->file);
        ZSTD_freeCCtx(p->zstd);
        free(p);
        errno = why;
    }
    return out;
}

static FILE *open_gzip(const char *name)
{
    cookie_io_functions_t how = {.write = gzip_write, .close = gzip_close};
    gzFile file = gzopen(name, "wb6");
    FILE *out = file ? fopencookie(file, "w", how) : NULL;
    if (file && !out)
        gzclose(file);
    return out;
}

/* Names that programs would take for compressed files. */
static bool is_unknown_packing(const char *name)
{
    static const char *const ends[] = {".bz2",  ".xz", ".lz4", ".zip",
                                       ".lzma", ".br", ".Z"};

    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        if (ends_in(name, ends[k]))
            return true;
    return false;
}

/* --- the command --- */

static FILE *open_out(const struct cli *cli, const char *name)
{
    if (strcmp(name, "-") == 0)
        return cli->out;
    FILE *out = ends_in(name, ".gz")    ? open_gzip(name)
                : ends_in(name, ".zst") ? open_zstd(name)
                                        : fopen(name, "wb");
    if (!out)
        fprintf(cli->err, "descant gen ctr: %s: %s\n", name, strerror(errno));
    return out;
}

/* Closes what open_out opened; a regular file that is not whole is removed, a device is
 * not. */
static bool close_out(const struct cli *cli, FILE *out, const char *name, bool good)
{
    struct stat is;
    errno = 0;
    if (out == cli->out)
        return good;
    if (fclose(out) != 0 && good) {
        fprintf(cli->err, "descant gen ctr: %s: %s\n", name,
                strerror(errno ? errno : EIO));
        good = false;
    }
    if (!good && lstat(name, &is) == 0 && S_ISREG(is.st_mode))
        unlink(name);
    return good;
}

/* The log loss of the share of clicks as the probability of every example. */
static double guess_loss(double p)
{
    return p > 0 && p < 1 ? -p * log(p) - (1 - p) * log1p(-p) : 0;
}

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

static int generate(const struct cli *cli, const struct gen_options *o)
{
    struct ctr_options ctr = {.rows = (uint64_t)o->rows, .seed = (uint64_t)o->seed,
                              .model = (uint64_t)o->model, .zipf = o->zipf,
                              .categories = o->categories, .noise = o->noise,
                              .positive = o->positive};
    struct ctr_summary sum;
    struct log log = {.fn = cli_log, .user = cli->err, .rank = -1};
    FILE *out = open_out(cli, o->out);
    if (!out)
        return CLI_FAILED;
    uint64_t start = clock_now_ns();
    bool good = ctr_generate(out, &ctr, &sum, &log) == DESCANT_OK;
    if (!close_out(cli, out, o->out, good))
        return CLI_FAILED;
    say(cli->err, &sum, (double)(clock_now_ns() - start) * 1e-9);
    return CLI_DONE;
}

static int gen_ctr(const struct cli *cli)
{
    struct ctr_options d = ctr_options_default();
    struct gen_options o = {.rows = (int64_t)d.rows, .seed = (int64_t)d.seed,
                            .model = (int64_t)d.model, .categories = d.categories,
                            .zipf = d.zipf, .noise = d.noise, .positive = d.positive};
    if (settings_wants_help(cli)) {
        fputs("usage: descant gen ctr --out FILE [OPTIONS]\n", cli->out);
        settings_help(cli->out, options, N_OPTIONS, &o);
        return CLI_DONE;
    }
    int status = settings_parse(cli, options, N_OPTIONS, &o);
    if (status != CLI_DONE)
        return status;
    if (!o.out)
        return cli_bad_use(cli, "--out is missing");
    if (is_unknown_packing(o.out))
        return cli_bad_use(cli, "--out %s: only .gz and .zst are compressed", o.out);
    return generate(cli, &o);
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
