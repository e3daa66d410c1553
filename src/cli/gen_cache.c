/* SPDX-License-Identifier: MIT */
/* descant gen cache: files that training reads, parsed once and kept as the blocks they become
 * (data/cache.c), so that further epochs and runs need not parse them. What decides how ids are
 * made, --plain-ids and --fields, is decided here. */
#include "cli/cli.h"
#include "data/data.h"
#include "train/lock.h"
#include "train/trainer.h"

#include <limits.h>
#include <string.h>

struct cache_options {
    const char *data, *out;
    int format;                 /* enum data_format */
    bool plain_ids;
    int64_t fields;
    double max_bad;
};

static const struct setting options[] = {
    {.name = "data", .type = SETTING_TEXT, .offset = offsetof(struct cache_options, data),
     .help = "files, commas between them; - is stdin, and needs --format"},
    {.name = "out", .type = SETTING_TEXT, .offset = offsetof(struct cache_options, out),
     .help = "the cache: a name in .cache is seen to be one"},
    {.name = "format", .type = SETTING_CHOICE, .offset = offsetof(struct cache_options, format),
     .choices = "auto|criteo|libsvm|libffm|idx", .help = "of the files"},
    {.name = "plain-ids", .type = SETTING_FLAG,
     .offset = offsetof(struct cache_options, plain_ids),
     .help = "libsvm, libffm: take indexes as they are, do not hash"},
    {.name = "fields", .type = SETTING_INT, .offset = offsetof(struct cache_options, fields),
     .low = 1, .high = 4096, .help = "libffm: how many fields there is room for"},
    {.name = "max-bad", .type = SETTING_REAL, .offset = offsetof(struct cache_options, max_bad),
     .high = 1, .help = "share of lines that may be bad"},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static bool outputs_good(const struct cli *cli, const struct cache_options *o)
{
    const struct cli_file files[] = {{"out", o->out, CLI_MAKES}, {"data", o->data, CLI_READS}};

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
        .paths = paths.paths, .n_paths = paths.n, .format = (enum data_format)o->format,
        .hash = !o->plain_ids, .n_fields = (int)o->fields, .max_bad = o->max_bad, .log = &log,
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
        return cli_bad_use(cli, "--data and --out say what is read, and where the cache goes");
    char out[PATH_MAX];
    return cli_file_follow(cli, "out", &o.out, out) && outputs_good(cli, &o) ? make(cli, &o) : CLI_BAD_USE;
}
