/* SPDX-License-Identifier: MIT */
/* descant bench parse: how fast text becomes blocks of examples.
 *
 * A file of generated click logs, some 100 MB, is written to a temporary folder, and read
 * by one thread from the page cache, again and again; the median of the passes is told.
 * The first pass, in which the block's arrays grow, does not count. For libsvm the rows
 * are small sparse vectors, 1 to 40 pairs with values of up to 6 digits. MB are millions
 * of bytes of text. */
#include "bench.h"
#include "data/data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSES = 7 };

struct parse_options {
    int format;
    int64_t bytes;
    bool json;
};

static const struct option options[] = {
    {.name = "format",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct parse_options, format),
     .choices = "criteo|libsvm",
     .help = "of the text"},
    {.name = "bytes",
     .type = OPTION_BYTES,
     .offset = offsetof(struct parse_options, bytes),
     .low = 1000,
     .high = 1e11,
     .help = "of the file, about"},
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct parse_options, json),
     .help = "one JSON object on one line"},
};
enum { N_OPTIONS = sizeof options / sizeof *options, CRITEO_ROW = 240 };

static bool write_libsvm(FILE *out, int64_t bytes)
{
    struct rng rng;
    rng_init(&rng, 1);
    while (!ferror(out) && ftell(out) < bytes) {
        uint64_t bits = rng_next(&rng);
        int n = 1 + (int)(bits % 40);
        unsigned id = 0;
        fputs(bits >> 63 ? "+1" : "-1", out);
        for (int i = 0; i < n; i++) {
            bits = rng_next(&rng);
            id += 1 + (unsigned)(bits % 5000);
            fprintf(out, " %u:%.6g", id, (double)(bits >> 40) * 0x1p-20);
        }
        fputc('\n', out);
    }
    return fflush(out) == 0 && !ferror(out);
}

static bool write_input(const char *path, const struct parse_options *o,
                        const struct log *log)
{
    struct ctr_options ctr = ctr_options_default();
    struct ctr_summary sum;
    ctr.rows = (uint64_t)(o->bytes / CRITEO_ROW + 1);
    FILE *out = fopen(path, "wb");
    if (!out) {
        log_fail(log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
        return false;
    }
    bool good = o->format == 0 ? ctr_generate(out, &ctr, &sum, log) == DESCANT_OK
                               : write_libsvm(out, o->bytes);
    return fclose(out) == 0 && good;
}

struct parse_figures {
    uint64_t bytes, rows;
    double seconds, cpu_s;
};

static bool one_pass(const char *path, const struct parse_options *o, struct block *block,
                     const struct log *log, struct parse_figures *f)
{
    struct data_options d = {.paths = &path, .n_paths = 1, .log = log,
                             .format = o->format == 0 ? DATA_CRITEO : DATA_LIBSVM};
    struct data *data;
    enum data_got got;
    uint64_t start = clock_now_ns(), cpu = clock_thread_cpu_ns();
    if (data_open(&data, &d) != DESCANT_OK)
        return false;
    f->rows = 0;
    for (uint64_t k = 0; (got = data_read(data, k, block)) == DATA_BLOCK; k++)
        f->rows += block->examples.n;
    data_close(data);
    f->seconds = (double)(clock_now_ns() - start) * 1e-9;
    f->cpu_s = (double)(clock_thread_cpu_ns() - cpu) * 1e-9;
    return got == DATA_END;
}

static bool measure(const char *path, const struct parse_options *o,
                    const struct log *log, struct parse_figures *f)
{
    struct block block = {0};
    double seconds[PASSES], cpu_s[PASSES];
    bool good = one_pass(path, o, &block, log, f);
    for (int i = 0; i < PASSES && good; i++) {
        good = one_pass(path, o, &block, log, f);
        seconds[i] = f->seconds;
        cpu_s[i] = f->cpu_s;
    }
    block_fini(&block);
    if (good) {
        f->seconds = bench_percentile(seconds, PASSES, 0.5);
        f->cpu_s = bench_percentile(cpu_s, PASSES, 0.5);
    }
    return good;
}

static uint64_t size_of(const char *path)
{
    FILE *file = fopen(path, "rb");
    long n = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
    if (file)
        fclose(file);
    return n > 0 ? (uint64_t)n : 0;
}

static void say(const struct cli *cli, const struct parse_options *o,
                const struct parse_figures *f)
{
    char format[16];
    double mb = (double)f->bytes * 1e-6 / f->seconds, rows = (double)f->rows / f->seconds;
    option_write(&options[0], o, format, sizeof format);
    if (o->json) {
        struct json json;
        json_begin(&json, cli->out);
        json_text(&json, "bench", "parse");
        json_text(&json, "format", format);
        json_real(&json, "mb_per_s", mb);
        json_real(&json, "rows_per_s", rows);
        json_real(&json, "mb_per_cpu_s", (double)f->bytes * 1e-6 / f->cpu_s);
        json_int(&json, "bytes", (int64_t)f->bytes);
        json_end(&json);
        return;
    }
    cli_say(cli->out, "format", "%s", format);
    cli_say(cli->out, "text", "%.0f MB/s", mb);
    cli_say(cli->out, "text, alone", "%.0f MB a second of processor time",
            (double)f->bytes * 1e-6 / f->cpu_s);
    cli_say(cli->out, "rows", "%.0f rows/s", rows);
}

int bench_parse(const struct cli *cli)
{
    struct parse_options o = {.bytes = 100 << 20};
    struct parse_figures f;
    int status;
    if (!bench_options(cli, options, N_OPTIONS, &o, &status))
        return status;
    const char *folder = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/descant-parse-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) {
        fprintf(cli->err, "descant bench parse: %s: %s\n", path, strerror(errno));
        return CLI_FAILED;
    }
    close(fd);
    bool good = write_input(path, &o, &cli->log);
    f.bytes = size_of(path);
    good = good && measure(path, &o, &cli->log, &f);
    unlink(path);
    if (!good) {
        fprintf(cli->err, "descant bench parse: it failed\n");
        return CLI_FAILED;
    }
    say(cli, &o, &f);
    return CLI_DONE;
}
