/* SPDX-License-Identifier: MIT */
/* Shards are written and read in pieces: the rows of a shard may be nearly all of a
 * machine's memory, so there is no second copy of them.
 *
 * A safetensors file has all row numbers before all records, and its head says how many
 * there are. Rows are born while it is written. So the writer goes over the rows three
 * times: it notes, in a bit for each row of the tables, which rows there are, and counts
 * them; then it writes the numbers of these, and then their records, and passes over the
 * rows that have come since. That no row ever goes, and that each pass has the same
 * order, makes numbers and records fit.
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

enum { PIECE_ROWS = 4096, PIECE_FLOATS = 1 << 18, MOST_RECORD = 1 << 16 };
#define MOST_ROWS (UINT64_C(1) << 40)

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

void shards_tidy(const char *beside, int rank, int size, uint64_t last,
                 const uint64_t *kept, size_t n_kept)
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
        if (!whole && (k - 1) % size != rank)
            continue;
        if (whole && (generation > last || among(generation, kept, n_kept)))
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

/* --- writing --- */

/* A pass over the rows that are noted. */
struct pass {
    const struct shard_source *source;
    uint64_t *noted;            /* a bit for each row of the tables */
    uint64_t at;                /* as `next` has it */
    size_t room;                /* rows of a piece */
    uint64_t *rows;             /* (room) */
    float *records;             /* (room, record) */
    bool with_records;
    size_t n, given;            /* rows of the piece; bytes of it that were given */
    descant_status status;      /* of the last piece, */
    char why[LOG_LINE];         /* and the reason where it has failed */
};

static void pass_fini(struct pass *p)
{
    memory_give(p->noted);
    memory_give(p->rows);
    memory_give(p->records);
}

static bool pass_init(struct pass *p, const struct shard_source *source)
{
    const struct shard_shape *shape = source->shape;

    *p = (struct pass){.source = source, .room = PIECE_FLOATS / shape->record};
    p->room = p->room > PIECE_ROWS ? PIECE_ROWS : p->room ? p->room : 1;
    p->noted = memory_take_array((size_t)(shape->rows / 64 + 1), sizeof *p->noted);
    p->rows = memory_take_array(p->room, sizeof *p->rows);
    p->records = memory_take_array(p->room * shape->record, sizeof *p->records);
    return p->noted && p->rows && p->records;
}

static descant_status next_piece(struct pass *p)
{
    return p->source->next(p->source->of, &p->at, p->room, p->rows,
                           p->with_records ? p->records : NULL, &p->n);
}

static void pass_begin(struct pass *p, bool with_records)
{
    p->at = 0;
    p->n = p->given = 0;
    p->with_records = with_records;
}

static descant_status note_all(struct pass *p, uint64_t *n)
{
    descant_status status;

    *n = 0;
    pass_begin(p, false);
    while ((status = next_piece(p)) == DESCANT_OK && p->n > 0)
        for (size_t k = 0; k < p->n; k++, ++*n)
            p->noted[p->rows[k] / 64] |= UINT64_C(1) << p->rows[k] % 64;
    return status;
}

/* Leaves only rows that are noted in the piece. False: there are no more. */
static bool refill(struct pass *p)
{
    size_t record = p->source->shape->record;
    size_t kept = 0;

    while (kept == 0) {
        p->status = next_piece(p);
        if (p->status != DESCANT_OK)
            snprintf(p->why, sizeof p->why, "%s", descant_last_error());
        if (p->status != DESCANT_OK || p->n == 0)
            return false;
        for (size_t k = 0; k < p->n; k++) {
            if (!(p->noted[p->rows[k] / 64] >> p->rows[k] % 64 & 1))
                continue;
            p->rows[kept] = p->rows[k];
            if (kept < k && p->with_records)
                memcpy(p->records + kept * record, p->records + k * record,
                       record * sizeof *p->records);
            kept++;
        }
    }
    p->n = kept;
    p->given = 0;
    return true;
}

/* The next bytes of the piece's rows or records. */
static bool give(struct pass *p, char *to, size_t bytes)
{
    const char *from = p->with_records ? (const char *)p->records : (const char *)p->rows;
    size_t each = p->with_records ? p->source->shape->record * sizeof *p->records
                                  : sizeof *p->rows;

    while (bytes > 0) {
        if (p->given == p->n * each && !refill(p)) {
            errno = EIO;                /* shard_write knows why */
            return false;
        }
        size_t n = p->n * each - p->given;
        n = n < bytes ? n : bytes;
        memcpy(to, from + p->given, n);
        p->given += n;
        to += n;
        bytes -= n;
    }
    return true;
}

static bool give_rows(void *of, void *to, size_t bytes)
{
    return give(of, to, bytes);
}

static bool give_records(void *of, void *to, size_t bytes)
{
    struct pass *p = of;

    if (!p->with_records)
        pass_begin(p, true);
    return give(p, to, bytes);
}

enum { N_TEXTS = 7, TEXT_ROOM = NAME_MAX + 64 };

static descant_status write_noted(struct pass *p, const struct shards *s, int k,
                                  const char *path, uint64_t n, const struct log *log)
{
    const struct shard_shape *shape = p->source->shape;
    char all[N_TEXTS][TEXT_ROOM];
    const struct safetensors_text texts[N_TEXTS] = {
        {"descant", descant_version()}, {"shard", all[0]},
        {"shards", all[1]},             {"table_rows", all[2]},
        {"width", all[3]},              {"table-optimizer", shape->optimizer},
        {"seed", all[4]}};
    const size_t record = shape->record;
    const struct safetensor tensors[] = {
        {.name = "rows", .type = SAFETENSORS_U64, .n_dims = 1, .dims = {n},
         .bytes = n * sizeof *p->rows, .source = give_rows, .of = p},
        {.name = "records", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {n, record},
         .bytes = n * record * sizeof *p->records, .finite = true,
         .source = give_records, .of = p}};

    snprintf(all[0], TEXT_ROOM, "%d", k + 1);
    shards_text(s, all[1], TEXT_ROOM);
    snprintf(all[2], TEXT_ROOM, "%" PRIu64, shape->rows);
    snprintf(all[3], TEXT_ROOM, "%zu", shape->width);
    snprintf(all[4], TEXT_ROOM, "%" PRIu64, shape->seed);
    pass_begin(p, false);
    return safetensors_write(path, NULL, tensors, 2, texts, N_TEXTS, log);
}

/* Logs a failure that was not logged yet. */
static descant_status log_again(const struct log *log, descant_status status)
{
    char why[LOG_LINE];

    snprintf(why, sizeof why, "%s", descant_last_error());
    return log_fail(log, status, "%s", why);
}

descant_status shard_write(const struct shards *s, const char *beside, int k,
                           const struct shard_source *source, uint64_t *n,
                           const struct log *log)
{
    struct pass p;
    char path[PATH_MAX];
    uint64_t rows = 0;

    shards_path(s, beside, k, path, sizeof path);
    descant_status status = pass_init(&p, source)
                                ? note_all(&p, &rows)
                                : log_fail(log, DESCANT_MEMORY,
                                           "%s: no memory to write it", path);
    if (status == DESCANT_OK) {
        status = write_noted(&p, s, k, path, rows, NULL);
        if (p.status != DESCANT_OK)
            status = log_fail(log, p.status, "%s: its rows cannot be had: %s", path,
                              p.why);
        else if (status != DESCANT_OK)
            status = log_again(log, status);
    }
    pass_fini(&p);
    if (status == DESCANT_OK)
        *n = rows;
    return status;
}

/* --- reading --- */

bool shard_said(const struct safetensors *file, struct shard_said *said)
{
    const char *of = safetensors_text(file, "shards"),
               *k = safetensors_text(file, "shard"),
               *rows = safetensors_text(file, "table_rows"),
               *width = safetensors_text(file, "width");
    struct shard_said s = {.optimizer = safetensors_text(file, "table-optimizer")};

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
                        "%s: its rows and records do not fit to the model", shard->path);
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
