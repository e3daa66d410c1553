/* SPDX-License-Identifier: MIT */
/* The names of shards, their folder, and reading, in pieces: the rows of a shard may be
 * nearly all of a machine's memory, so there is no second copy of them.
 *
 * A reader trusts no byte: the file's structure (safetensors.c), its texts against those
 * of FILE, the shapes of its tensors against the model's, each row number, and, as they
 * are given, the values. */
#include "run/shards.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_ROWS = 4096, MOST_RECORD = 1 << 16 };
#define MOST_ROWS (UINT64_C(1) << 48)

/* --- names --- */

static const char suffix[] = ".safetensors";

void shards_text(const struct shards *s, char *text, size_t room)
{
    snprintf(text, room, "%" PRIu64 " %d %016" PRIx64 " %s", s->generation, s->n, s->id,
             s->base);
}

/* A name that leads out of the folder is none. */
static bool read_text(const char *text, struct shards *s)
{
    int at = 0;

    if (sscanf(text, "%" SCNu64 " %d %" SCNx64 "%n", &s->generation, &s->n, &s->id,
               &at) != 3 ||
        text[at++] != ' ' || s->generation >= SHARDS_GENERATIONS || s->n < 1 ||
        s->n > SHARDS_MOST)
        return false;
    size_t length = strlen(text + at);
    if (length == 0 || length >= sizeof s->base || strchr(text + at, '/'))
        return false;
    memcpy(s->base, text + at, length + 1);
    return true;
}

descant_status shards_of(const struct safetensors *file, const char *path,
                         struct shards *out, const struct log *log)
{
    const char *text = safetensors_text(file, "shards");
    struct shards s = {0};
    size_t n = 0;

    if (text) {
        s.rows = safetensors_list(file, "descant.shards", SAFETENSORS_U64, &n);
        if (!read_text(text, &s) || !s.rows || n != (size_t)s.n)
            return log_fail(log, DESCANT_CORRUPT, "%s: what it says of its shards, "
                            "\"%.100s\" for %zu, was not written by descant train", path,
                            text, n);
        s.moved = safetensors_text(file, "moved") != NULL;
    }
    *out = s;
    return DESCANT_OK;
}

/* The bytes of its folder, with the slash. */
static int folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path + 1) : 0;
}

void shards_path(const struct shards *s, const char *beside, int k, char *path,
                 size_t room)
{
    char target[PATH_MAX];
    const char *at = path_follow(beside, target, sizeof target) ? target : beside;

    snprintf(path, room, "%.*s%s.rows-%05" PRIu64 "-%d-of-%d%s", folder_length(at), at,
             s->base, s->generation, k + 1, s->n, suffix);
}

/* Reads the name of a shard of `base`, or of what its writer has left. */
static bool read_name(const char *name, const char *base, uint64_t *generation, int *k,
                      bool *whole)
{
    size_t length = strlen(base);
    int n = 0, end = 0;

    if (strncmp(name, base, length) != 0 ||
        sscanf(name + length, ".rows-%8" SCNu64 "-%4d-of-%4d%n", generation, k, &n,
               &end) != 3 ||
        strncmp(name + length + end, suffix, sizeof suffix - 1) != 0)
        return false;
    const char *rest = name + length + end + sizeof suffix - 1;
    *whole = *rest == 0;
    return (*whole || strcmp(rest, ".tmp") == 0) && *k >= 1 && *k <= n;
}

/* --- the folder --- */

/* Calls `each` with the names in the folder of `beside`, which it may remove. */
struct folder {
    char base[PATH_MAX];        /* the file's name in it */
    char path[PATH_MAX];        /* it, with the slash; "": the current one */
    DIR *dir;
};

static bool folder_open(struct folder *f, const char *beside)
{
    char target[PATH_MAX];
    const char *at = path_follow(beside, target, sizeof target) ? target : beside;
    int length = folder_length(at);

    snprintf(f->path, sizeof f->path, "%.*s", length, at);
    snprintf(f->base, sizeof f->base, "%s", at + length);
    f->dir = opendir(length ? f->path : ".");
    return f->dir != NULL;
}

/* The next shard; NULL: there is none. */
static const char *folder_next(struct folder *f, uint64_t *generation, int *k,
                               bool *whole)
{
    struct dirent *entry;

    while ((entry = readdir(f->dir)) != NULL)
        if (read_name(entry->d_name, f->base, generation, k, whole))
            return entry->d_name;
    return NULL;
}

static bool among(uint64_t x, const uint64_t *list, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (list[k] == x)
            return true;
    return false;
}

void shards_tidy(const char *beside, uint64_t last, const uint64_t *kept, size_t n_kept)
{
    struct folder f;
    char path[2 * PATH_MAX];
    uint64_t generation;
    const char *name;
    bool whole;
    int k;

    if (!folder_open(&f, beside))
        return;
    while ((name = folder_next(&f, &generation, &k, &whole)) != NULL) {
        if (generation > last || (whole && among(generation, kept, n_kept)))
            continue;
        snprintf(path, sizeof path, "%s%s", f.path, name);
        unlink(path);
    }
    closedir(f.dir);
}

uint64_t shards_last(const char *beside)
{
    struct folder f;
    uint64_t generation, last = 0;
    bool whole;
    int k;

    if (!folder_open(&f, beside))
        return 0;
    while (folder_next(&f, &generation, &k, &whole))
        last = whole && generation > last ? generation : last;
    closedir(f.dir);
    return last;
}

/* --- reading --- */

bool shard_said(const struct safetensors *file, struct shard_said *said)
{
    const char *of = safetensors_text(file, "shards"),
               *k = safetensors_text(file, "shard"),
               *rows = safetensors_text(file, "table_rows"),
               *width = safetensors_text(file, "width");
    struct shard_said s = {.optimizer = safetensors_text(file, "table-optimizer"),
                           .grows = safetensors_text(file, "grows") != NULL};

    if (!of || !k || !rows || !width || !s.optimizer || !read_text(of, &s.of) ||
        sscanf(k, "%d", &s.k) != 1 || s.k < 1 || s.k > s.of.n ||
        sscanf(rows, "%llu", &s.table_rows) != 1 || s.table_rows > MOST_ROWS ||
        sscanf(width, "%zu", &s.width) != 1)
        return false;
    s.k--;
    *said = s;
    return true;
}

static descant_status check_said(const struct shard *shard, const struct shards *s, int k,
                                 const struct shard_shape *shape, const struct log *log)
{
    struct shard_said said;
    const char *path = shard->path;

    if (!shard_said(shard->file, &said))
        return log_fail(log, DESCANT_CORRUPT, "%s is no shard of a checkpoint", path);
    if (said.of.id != s->id || said.of.generation != s->generation || said.of.n != s->n ||
        said.k != k)
        return log_fail(log, DESCANT_CORRUPT,
                        "%s is shard %d of %d of another checkpoint, whose id is "
                        "%016" PRIx64 ", not %016" PRIx64,
                        path, said.k + 1, said.of.n, said.of.id, s->id);
    if (shape && said.grows != shape->grows)
        return log_fail(log, DESCANT_CORRUPT, "%s is of tables %s, the model's %s", path,
                        said.grows ? "that grow" : "of a number of rows",
                        shape->grows ? "grow" : "have a number of rows");
    if (shape && (said.table_rows != shape->rows || said.width != shape->width))
        return log_fail(log, DESCANT_CORRUPT,
                        "%s is of another model: its tables have %llu rows of %zu "
                        "floats, not %llu of %zu",
                        path, said.table_rows, said.width,
                        (unsigned long long)shape->rows, shape->width);
    if (shape && strcmp(said.optimizer, shape->optimizer) != 0)
        return log_fail(log, DESCANT_CORRUPT, "%s is of another optimizer: "
                        "--table-optimizer was %.40s, not %s", path, said.optimizer,
                        shape->optimizer);
    return DESCANT_OK;
}

/* Tensors and row numbers; s->rows NULL: any number of them. */
static descant_status check_rows(struct shard *shard, const struct shards *s, int k,
                                 const struct shard_shape *shape, const struct log *log)
{
    const struct safetensor *records = safetensors_find(shard->file, "records");

    shard->rows = safetensors_list(shard->file, "rows", SAFETENSORS_U64, &shard->n);
    if (!shard->rows || !records || records->type != SAFETENSORS_F32 ||
        records->n_dims != 2 || records->dims[0] != shard->n ||
        records->dims[1] > MOST_RECORD || (shape && records->dims[1] != shape->record))
        return log_fail(log, DESCANT_CORRUPT,
                        "%s: its rows and records do not fit to the model, as with "
                        "another --width or --table-optimizer", shard->path);
    shard->record = records->dims[1];
    shard->records = records->data;
    if (s->rows && shard->n != s->rows[k])
        return log_fail(log, DESCANT_CORRUPT,
                        "%s has %zu rows, its checkpoint has noted %" PRIu64, shard->path,
                        shard->n, s->rows[k]);
    for (size_t i = 0; shape && i < shard->n; i++)
        if (shard->rows[i] >= shape->rows)
            return log_fail(log, DESCANT_CORRUPT,
                            "%s has row %" PRIu64 ", the model has %" PRIu64, shard->path,
                            shard->rows[i], shape->rows);
    return DESCANT_OK;
}

descant_status shard_open(struct shard *shard, const struct shards *s, const char *beside,
                          int k, const struct shard_shape *shape, const struct log *log)
{
    memset(shard, 0, sizeof *shard);
    shards_path(s, beside, k, shard->path, sizeof shard->path);
    if (access(shard->path, F_OK) != 0)
        return log_fail(log, DESCANT_SYSTEM,
                        "%s: %s: it is a shard of %s, whose shards must be beside it, on "
                        "each host that reads it: copy them there",
                        shard->path, strerror(errno), beside);
    descant_status status = safetensors_open(&shard->file, shard->path, log);
    if (status == DESCANT_OK)
        status = check_said(shard, s, k, shape, log);
    if (status == DESCANT_OK)
        status = check_rows(shard, s, k, shape, log);
    if (status != DESCANT_OK)
        shard_close(shard);
    return status;
}

void shard_close(struct shard *shard)
{
    safetensors_close(shard->file);
    shard->file = NULL;
}

descant_status shard_each(const struct shard *shard, shard_take *take, void *of,
                          const struct log *log)
{
    for (size_t at = 0, n; at < shard->n; at += n) {
        n = shard->n - at < PIECE_ROWS ? shard->n - at : PIECE_ROWS;
        const float *records = shard->records + at * shard->record;
        for (size_t i = 0; i < n * shard->record; i++)
            if (!isfinite(records[i]))
                return log_fail(log, DESCANT_CORRUPT,
                                "%s: row %" PRIu64 " has NaN or Inf", shard->path,
                                shard->rows[at + i / shard->record]);
        descant_status status = take(of, shard->rows + at, n, records);
        if (status != DESCANT_OK)
            return status;
    }
    return DESCANT_OK;
}
