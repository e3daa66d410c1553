/* SPDX-License-Identifier: MIT */
/* descant gen cache: files that training reads, parsed once and kept as the blocks they
 * become (data/cache.c), so that further epochs and runs need not parse them. The options
 * for ids, --plain-ids and --fields, are fixed here. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "data/paths.h"
#include "files/files.h"

#include <limits.h>
#include <string.h>

struct cache_options {
    const char *data, *out;
    int format;                 /* enum data_format */
    bool plain_ids;
    int64_t fields;
    double max_bad;
};

#define AT(field) offsetof(struct cache_options, field)
static const struct option options[] = {
    TEXT("data", data, "files, with commas between them; - is stdin, and needs --format"),
    TEXT("out", out, "the cache to write; its name should end in .cache"),
    CHOICE("format", format, "auto|criteo|libsvm|libffm|idx", "format of the files"),
    FLAG("plain-ids", plain_ids, "libsvm, libffm: take indexes as they are, do not hash"),
    INT("fields", fields, 1, 4096, "libffm: number of fields, which count from 0"),
    REAL("max-bad", max_bad, 0, 1, "share of lines that may be bad"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* Reads all of the data once, and writes the cache. True: it is whole. Else the reason
 * was printed, and a cache that was there before is as it was. The shared block is what a
 * reader of stdin needs; here one process reads, so plain memory will do. */
static bool make(const struct cli *cli, const struct cache_options *o)
{
    struct path_list paths;
    struct output out;
    uint64_t n = 0;

    bool good = path_list_init(&paths, o->data, &cli->log) == DESCANT_OK;
    struct data_options data = {
        .paths = paths.paths,
        .n_paths = paths.n,
        .format = (enum data_format)o->format,
        .hash = !o->plain_ids,
        .n_fields = (int)o->fields,
        .max_bad = o->max_bad,
        .log = &cli->log,
        .shared = memory_take(data_shared_bytes()),
    };
    if (good && !data.shared)
        log_fail(&cli->log, DESCANT_MEMORY, "no memory to read with");
    good = good && data.shared;
    if (good) {
        good = output_open(&out, o->out, NULL, cli->out, &cli->log) &&
               cache_write(out.file, o->out, &data, &n) == DESCANT_OK;
        good = output_close(&out, good);
    }
    if (good)
        fprintf(cli->err, "%llu examples\n", (unsigned long long)n);
    memory_give(data.shared);
    path_list_fini(&paths);
    return good;
}

int cli_gen_cache(const struct cli *cli)
{
    struct cache_options o = {.fields = 32, .max_bad = 0.01};
    char target[PATH_MAX];
    int status;

    if (!settings_take(cli, "gen cache --data FILES --out FILE [OPTIONS]", options,
                       N_OPTIONS, &o, &status))
        return status;
    if (!o.data || !o.out)
        return cli_bad_use(cli, "give --data, the files, and --out, the cache");
    const struct named_file files[] = {{"out", &o.out, FILE_MADE},
                                       {"data", &o.data, FILE_READ}};
    status = cli_files(cli, files, 2, target);
    if (status != CLI_DONE)
        return status;
    return make(cli, &o) ? CLI_DONE : CLI_FAILED;
}
