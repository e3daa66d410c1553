/* SPDX-License-Identifier: MIT */
/* descant gen cache: files that training reads, parsed once and kept as the blocks they
 * become (data/cache.c), so that further epochs and runs need not parse them. The options
 * for ids, --plain-ids and --fields, are fixed here. */
#include "base/option_rows.h"
#include "cli/cli.h"
#include "data/paths.h"
#include "run/lock.h"

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
    TEXT("data", data, "files, commas between them; - is stdin, and needs --format"),
    TEXT("out", out, "the cache: a name in .cache is seen to be one"),
    CHOICE("format", format, "auto|criteo|libsvm|libffm|idx", "of the files"),
    FLAG("plain-ids", plain_ids, "libsvm, libffm: take indexes as they are, do not hash"),
    INT("fields", fields, 1, 4096, "libffm: how many fields there is room for"),
    REAL("max-bad", max_bad, 0, 1, "share of lines that may be bad"),
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static bool outputs_good(const struct cli *cli, const struct cache_options *o)
{
    const struct cli_file files[] = {{"out", o->out, CLI_MAKES},
                                     {"data", o->data, CLI_READS}};

    return cli_files_apart(cli, files, sizeof files / sizeof *files) &&
           cli_file_good(cli, "out", o->out);
}

static int make(const struct cli *cli, const struct cache_options *o)
{
    struct log log = {.fn = cli_log, .user = cli->err, .rank = -1};
    struct path_list paths;
    uint64_t n = 0;

    descant_status status = path_list_init(&paths, o->data, &log);
    struct data_options data = {
        .paths = paths.paths,
        .n_paths = paths.n,
        .format = (enum data_format)o->format,
        .hash = !o->plain_ids,
        .n_fields = (int)o->fields,
        .max_bad = o->max_bad,
        .log = &log,
        .shared = memory_take(data_shared_bytes()),
    };
    struct lock lock = {0};
    if (status == DESCANT_OK)
        status = lock_take(&lock, o->out, NULL, true, &log);
    if (status == DESCANT_OK)
        status = data.shared ? cache_write(o->out, &data, &n)
                             : log_fail(&log, DESCANT_MEMORY, "no memory to read with");
    if (status == DESCANT_OK)
        fprintf(cli->err, "%llu examples\n", (unsigned long long)n);
    lock_give(&lock);
    memory_give(data.shared);
    path_list_fini(&paths);
    return status == DESCANT_OK ? CLI_DONE : CLI_FAILED;
}

int cli_gen_cache(const struct cli *cli)
{
    struct cache_options o = {.fields = 32, .max_bad = 0.01};

    if (settings_wants_help(cli)) {
        fputs("usage: descant gen cache --data FILES --out FILE [OPTIONS]\n", cli->out);
        settings_help(cli->out, options, N_OPTIONS, &o);
        return CLI_DONE;
    }
    int status = settings_parse(cli, options, N_OPTIONS, &o);
    if (status != CLI_DONE)
        return status;
    if (!o.data || !o.out)
        return cli_bad_use(cli,
                           "give --data, the files to read, and --out, the cache");
    char out[PATH_MAX];
    return cli_file_follow(cli, "out", &o.out, out) && outputs_good(cli, &o)
               ? make(cli, &o)
               : CLI_BAD_USE;
}
