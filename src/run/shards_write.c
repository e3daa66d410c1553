/* SPDX-License-Identifier: MIT */
/* Shards are written in pieces: the rows of a shard may be nearly all of a machine's
 * memory, so there is no second copy of them. A safetensors file's head says how many
 * rows there are, and rows come while it is written.
 *
 * Where rows are numbered, none ever goes, and each pass over them has the same order.
 * The writer makes three: it notes, in a bit for each row of the tables, which rows there
 * are, and counts them; then it writes the numbers of these, and then their records, and
 * passes over the rows that have come since.
 *
 * In tables that grow rows go, too, and others take their places, so that no two passes
 * fit. The writer makes one: it writes records as they come, keeps the numbers of their
 * rows, 8 bytes each, writes these behind the records, and then the head. A row that was
 * evicted and made again meanwhile may come twice: the later record is the newer one, and
 * a reader takes that. */
#include "run/shards.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PIECE_ROWS = 4096, PIECE_FLOATS = 1 << 18, BLOCK_ROWS = 1 << 16 };
#define MOST_POURED (UINT64_C(1) << 50)     /* floats, for the head's room */

/* --- texts --- */

enum { MOST_WORDS = 8, TEXT_ROOM = NAME_MAX + 64 };

struct words {
    char all[5][TEXT_ROOM];
    struct safetensors_text texts[MOST_WORDS];
    size_t n;
};

static void say_all(struct words *w, const struct shards *s, int k,
                    const struct shard_shape *shape)
{
    snprintf(w->all[0], TEXT_ROOM, "%d", k + 1);
    shards_text(s, w->all[1], TEXT_ROOM);
    snprintf(w->all[2], TEXT_ROOM, "%" PRIu64, shape->rows);
    snprintf(w->all[3], TEXT_ROOM, "%zu", shape->width);
    snprintf(w->all[4], TEXT_ROOM, "%" PRIu64, shape->seed);
    const struct safetensors_text texts[MOST_WORDS] = {
        {"descant", descant_version()}, {"shard", w->all[0]},
        {"shards", w->all[1]},          {"table_rows", w->all[2]},
        {"width", w->all[3]},           {"table-optimizer", shape->optimizer},
        {"seed", w->all[4]},            {"grows", "1"}};
    memcpy(w->texts, texts, sizeof texts);
    w->n = shape->grows ? MOST_WORDS : MOST_WORDS - 1;
}

/* Logs a failure that was not logged yet. */
static descant_status log_again(const struct log *log, descant_status status)
{
    char why[LOG_LINE];

    snprintf(why, sizeof why, "%s", descant_last_error());
    return log_fail(log, status, "%s", why);
}

static descant_status cannot_have(const struct log *log, descant_status status,
                                  const char *path, const char *error)
{
    char why[LOG_LINE];

    snprintf(why, sizeof why, "%s", error);
    return log_fail(log, status, "%s: its rows cannot be had: %s", path, why);
}

static size_t piece_rows(const struct shard_shape *shape)
{
    size_t rows = PIECE_FLOATS / shape->record;

    return rows > PIECE_ROWS ? PIECE_ROWS : rows ? rows : 1;
}

/* --- rows that are numbered --- */

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

    *p = (struct pass){.source = source, .room = piece_rows(shape)};
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

static descant_status write_noted(struct pass *p, const struct words *words,
                                  const char *path, uint64_t n)
{
    const size_t record = p->source->shape->record;
    const struct safetensor tensors[] = {
        {.name = "rows", .type = SAFETENSORS_U64, .n_dims = 1, .dims = {n},
         .bytes = n * sizeof *p->rows, .source = give_rows, .of = p},
        {.name = "records", .type = SAFETENSORS_F32, .n_dims = 2, .dims = {n, record},
         .bytes = n * record * sizeof *p->records, .finite = true,
         .source = give_records, .of = p}};

    pass_begin(p, false);
    return safetensors_write(path, NULL, tensors, 2, words->texts, words->n, NULL);
}

static descant_status write_numbered(const struct shard_source *source,
                                     const struct words *words, const char *path,
                                     uint64_t *n, const struct log *log)
{
    struct pass p;
    uint64_t rows = 0;

    descant_status status = pass_init(&p, source)
                                ? note_all(&p, &rows)
                                : log_fail(log, DESCANT_MEMORY,
                                           "%s: no memory to write it", path);
    if (status == DESCANT_OK) {
        status = write_noted(&p, words, path, rows);
        if (p.status != DESCANT_OK)
            status = cannot_have(log, p.status, path, p.why);
        else if (status != DESCANT_OK)
            status = log_again(log, status);
    }
    pass_fini(&p);
    *n = rows;
    return status;
}

/* --- rows that are named by ids --- */

/* Numbers of rows whose records are written. */
struct row_block {
    struct row_block *before;
    size_t n;
    uint64_t rows[BLOCK_ROWS];
};

struct pour {
    const struct shard_source *source;
    struct safetensors_late *file;
    struct row_block *last;             /* of those so far */
    float *records;                     /* (room, record) */
    size_t room;
    uint64_t at, n;                     /* as `next` has it; rows so far */
};

static bool more_room(struct pour *p)
{
    if (p->last && p->last->n < BLOCK_ROWS)
        return true;
    struct row_block *block = memory_take(sizeof *block);
    if (!block)
        return false;
    block->before = p->last;
    p->last = block;
    return true;
}

/* *end: there are no more rows. */
static descant_status pour_piece(struct pour *p, const char *path, bool *end,
                                 const struct log *log)
{
    size_t record = p->source->shape->record, n = 0;

    if (!more_room(p))
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to write it", path);
    struct row_block *block = p->last;
    size_t left = BLOCK_ROWS - block->n, room = p->room < left ? p->room : left;
    uint64_t *rows = block->rows + block->n;
    descant_status status =
        p->source->next(p->source->of, &p->at, room, rows, p->records, &n);
    if (status != DESCANT_OK)
        return cannot_have(log, status, path, descant_last_error());
    for (size_t i = 0; i < n * record; i++)
        if (!isfinite(p->records[i]))
            return log_fail(log, DESCANT_INVALID, "%s: cannot write: row %" PRIu64
                            " has NaN or Inf", path, rows[i / record]);
    block->n += n;
    p->n += n;
    *end = n == 0 || !safetensors_add(p->file, p->records,
                                      n * record * sizeof *p->records);
    return DESCANT_OK;
}

/* The numbers, in the order of the records, which are the last block's first. */
static void add_rows(struct pour *p)
{
    struct row_block *first = NULL;

    for (struct row_block *block = p->last, *before; block; block = before) {
        before = block->before;
        block->before = first;          /* from here on it is the next one */
        first = block;
    }
    p->last = first;
    for (const struct row_block *block = first; block; block = block->before)
        safetensors_add(p->file, block->rows, block->n * sizeof *block->rows);
}

enum { POURED = 3 };

/* Where an odd number of floats comes before the numbers, these are aligned by one. */
static void name_poured(struct safetensor tensors[POURED], uint64_t n, size_t record)
{
    size_t pad = n * record % 2;

    tensors[0] = (struct safetensor){.name = "records", .type = SAFETENSORS_F32,
                                     .n_dims = 2, .dims = {n, record},
                                     .bytes = n * record * sizeof(float)};
    tensors[1] = (struct safetensor){.name = "pad", .type = SAFETENSORS_F32, .n_dims = 1,
                                     .dims = {pad}, .bytes = pad * sizeof(float)};
    tensors[2] = (struct safetensor){.name = "rows", .type = SAFETENSORS_U64, .n_dims = 1,
                                     .dims = {n}, .bytes = n * sizeof(uint64_t)};
}

static descant_status pour_all(struct pour *p, const struct words *words,
                               const char *path, const struct log *log)
{
    static const float zero;
    struct safetensor tensors[POURED];
    size_t record = p->source->shape->record;
    bool end = false;

    name_poured(tensors, MOST_POURED / record, record);
    descant_status status = safetensors_begin(&p->file, path, tensors, POURED,
                                              words->texts, words->n, log);
    if (status != DESCANT_OK)
        return status;
    while (status == DESCANT_OK && !end)
        status = pour_piece(p, path, &end, log);
    if (status != DESCANT_OK) {
        safetensors_give_up(p->file);
        return status;
    }
    name_poured(tensors, p->n, record);
    safetensors_add(p->file, &zero, tensors[1].bytes);
    add_rows(p);
    return safetensors_end(p->file, tensors, POURED, words->texts, words->n, log);
}

static descant_status write_named(const struct shard_source *source,
                                  const struct words *words, const char *path,
                                  uint64_t *n, const struct log *log)
{
    struct pour p = {.source = source, .room = piece_rows(source->shape)};

    p.records = memory_take_array(p.room * source->shape->record, sizeof *p.records);
    descant_status status = p.records
                                ? pour_all(&p, words, path, log)
                                : log_fail(log, DESCANT_MEMORY,
                                           "%s: no memory to write it", path);
    for (struct row_block *before; p.last; p.last = before) {
        before = p.last->before;
        memory_give(p.last);
    }
    memory_give(p.records);
    *n = p.n;
    return status;
}

descant_status shard_write(const struct shards *s, const char *beside, int k,
                           const struct shard_source *source, uint64_t *n,
                           const struct log *log)
{
    struct words words;
    char path[PATH_MAX];
    uint64_t rows = 0;

    shards_path(s, beside, k, path, sizeof path);
    say_all(&words, s, k, source->shape);
    descant_status status =
        source->shape->grows ? write_named(source, &words, path, &rows, log)
                             : write_numbered(source, &words, path, &rows, log);
    if (status == DESCANT_OK)
        *n = rows;
    return status;
}
