/* SPDX-License-Identifier: MIT */
/* Readers, one for each format. Text formats share everything but the parser of a line:
 * here a chunk's lines become a block, and bad lines are counted, the first few of each
 * file reported, and too many of them refused. Other formats (idx.c, cache.c) read their
 * chunks themselves.
 *
 * A line is bad if it has a NUL byte, is longer than LINE_LIMIT, or its parser gives a
 * reason. One '\r' at its end belongs to the end, and a file's first line begins after a
 * byte-order mark. A first line of Criteo's that names its columns is a header, which is
 * logged, and is no line. The share of bad lines is tested after each chunk once ENOUGH
 * lines were seen, and at the end of the input: by each reader for its own lines. */
#include "data/reader.h"

#include <stdlib.h>

/* ENOUGH lines come before the share of bad ones is tested; REPORTED bad lines of each
 * file are logged; a chunk has at most CHUNK_LIMIT bytes; PEEK_BYTES of a file tell its
 * format. */
enum { ENOUGH = 1000, REPORTED = 5, CHUNK_LIMIT = 1 << 30, PEEK_BYTES = 4096 };

const char *const data_format_names[] = {
    [DATA_AUTO] = "auto", [DATA_CRITEO] = "criteo", [DATA_LIBSVM] = "libsvm",
    [DATA_LIBFFM] = "libffm", [DATA_IDX] = "idx", [DATA_CACHE] = "cache",
};

struct data {
    struct data_options options;        /* a copy: the format is settled */
    struct log log;                     /* the options' */
    struct data_shape shape;
    descant_status status;
    parse_line *parse;          /* NULL: not text */
    struct input input;
    struct parser parser;
    struct idx *idx;
    struct cache *cache;
    uint64_t lines, bad;        /* that this reader has read */
    const struct log *of_lines; /* of this chunk: the log, or NULL where it has them
                                   already */
    char last_bad[REASON_ROOM + 256];
};

/* --- which format --- */

/* Hints for files whose bytes tell no format: the first row whose part is in the file's
 * name counts. A new format has a row here, a name above, and its mark in by_bytes. */
static const struct {
    const char *part;           /* of the file's name */
    enum data_format format;
} names[] = {
    {"-ubyte", DATA_IDX},     {".idx", DATA_IDX},       {".libffm", DATA_LIBFFM},
    {".ffm", DATA_LIBFFM},    {".libsvm", DATA_LIBSVM}, {".svm", DATA_LIBSVM},
    {".criteo", DATA_CRITEO}, {".tsv", DATA_CRITEO},    {".cache", DATA_CACHE},
};

/* Of UTF-8, as some programs put it before a text. */
static const char *after_mark(const char *at, const char *end)
{
    return end - at >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0 ? at + 3 : at;
}

/* A text has the format of its first line that is surely of some format, or the format
 * asked for if any line has that; the last line may be cut off. */
static enum data_format by_bytes(const char *at, size_t n, enum data_format asked)
{
    enum data_format found = DATA_AUTO;
    const char *end = at + n;

    if (n >= CACHE_MAGIC_BYTES && memcmp(at, cache_magic, CACHE_MAGIC_BYTES) == 0)
        return DATA_CACHE;
    if (n >= 4 && memcmp(at, "\0\0\x08\x03", 4) == 0)
        return DATA_IDX;
    at = after_mark(at, end);
    for (const char *next; at < end && !memchr(at, 0, (size_t)(end - at)); at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        stop = stop ? stop : end;
        if (stop == end && n == PEEK_BYTES)     /* cut: up to its last whole word */
            while (stop > at && stop[-1] != ' ' && stop[-1] != '\t')
                stop--;
        if (stop > at && stop[-1] == '\r')
            stop--;
        enum data_format format = sparse_or_none(at, stop);
        format = format == DATA_AUTO ? criteo_or_none(at, stop) : format;
        if (format != DATA_AUTO && (found == DATA_AUTO || format == asked))
            found = format;
    }
    return found;
}

static descant_status peek(const char *path, char *first, size_t room, size_t *n,
                           enum data_format *format, enum data_format asked,
                           const struct log *log)
{
    char own[PEEK_BYTES + READER_PAD] = "";
    size_t got = 0;
    descant_status status = strcmp(path, "-") == 0 ? DESCANT_OK
                            : input_peek(path, own, PEEK_BYTES, &got, log);

    *format = by_bytes(own, got, asked);
    *n = got < room ? got : room;
    if (*n > 0)
        memcpy(first, own, *n);
    return status;
}

descant_status data_peek(const char *path, char *first, size_t room, size_t *n,
                         enum data_format *format, const struct log *log)
{
    return peek(path, first, room, n, format, DATA_AUTO, log);
}

/* AUTO becomes the format that is found. A file that surely has another format than the
 * one asked for is refused, instead of each of its lines. */
static descant_status settle_format(struct data *data)
{
    const char *path = data->options.paths[0], *slash = strrchr(path, '/');
    enum data_format asked = data->options.format, hint = asked, found;
    const struct log *log = data->options.log;
    char first[PEEK_BYTES];
    size_t n;
    for (size_t i = 0; i < sizeof names / sizeof *names && hint == DATA_AUTO; i++)
        if (strstr(slash ? slash : path, names[i].part))
            hint = names[i].format;
    descant_status status = peek(path, first, sizeof first, &n, &found, hint,
                                 asked == DATA_AUTO ? log : NULL);

    if (asked != DATA_AUTO && asked != found && found != DATA_AUTO)
        return log_fail(log, DESCANT_INVALID,
                        "%s looks like %s, not like %s: give --format %s, or auto", path,
                        data_format_names[found], data_format_names[asked],
                        data_format_names[found]);
    if (asked != DATA_AUTO && status != DESCANT_MEMORY)
        return DESCANT_OK;      /* the reader logs a file that cannot be read */
    if (asked != DATA_AUTO)
        return log_fail(log, status, "%s", descant_last_error());
    if (status != DESCANT_OK)
        return status;
    const char *end = memchr(first, '\n', n);
    if (found == DATA_AUTO)
        found = hint;
    if (found == DATA_AUTO && memchr(first, '\t', end ? (size_t)(end - first) : n))
        found = DATA_CRITEO;    /* its columns are wrong, which the parser logs */
    data->options.format = found;
    return found != DATA_AUTO
               ? DESCANT_OK
               : log_fail(log, DESCANT_INVALID,
                          "%s: its format cannot be told; give --format", path);
}

/* --- opening --- */

/* A text's shape follows from the options alone. Formats of pairs have a count for each
 * field, in the parser. */
static descant_status open_text(struct data *data)
{
    const struct data_options *o = &data->options;
    struct data_shape *s = &data->shape;
    s->n_classes = o->format == DATA_LIBSVM && o->n_classes > 1 ? o->n_classes : 1;
    if (o->format == DATA_CRITEO) {
        s->n_dense = 13;
        s->n_fields = 26;
        data->parse = criteo_line;
        criteo_init(&data->parser);
        return input_init(&data->input, o);
    }
    s->bags = true;
    s->plain_ids = !o->hash;
    s->n_fields = o->format == DATA_LIBFFM ? o->n_fields : 1;
    data->parse = o->format == DATA_LIBFFM ? libffm_line : libsvm_line;
    if (s->n_fields < 1)
        return log_fail(o->log, DESCANT_INVALID, "libffm: how many fields?");
    data->parser.counts = memory_take_array((size_t)s->n_fields + 1, sizeof(uint32_t));
    if (!data->parser.counts)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for %d fields", s->n_fields);
    return input_init(&data->input, o);
}

static descant_status open_format(struct data *data)
{
    const struct data_options *o = &data->options;
    if (o->n_paths == 0)
        return log_fail(o->log, DESCANT_INVALID, "no input is named");
    if (o->chunk_bytes > CHUNK_LIMIT)
        return log_fail(o->log, DESCANT_INVALID,
                        "chunks of %zu bytes: allowed is up to %d", o->chunk_bytes,
                        CHUNK_LIMIT);
    descant_status status = settle_format(data);
    if (status != DESCANT_OK)
        return status;
    if (o->format == DATA_IDX)
        return idx_open(&data->idx, o, &data->shape);
    if (o->format == DATA_CACHE)
        return cache_open(&data->cache, o, &data->shape);
    return open_text(data);
}

descant_status data_open(struct data **out, const struct data_options *options)
{
    struct data *data = memory_take(sizeof *data);
    if (!data)
        return log_fail(options->log, DESCANT_MEMORY, "no memory for a reader");
    data->options = *options;
    data->log = options->log ? *options->log : (struct log){.rank = -1};
    data->options.log = &data->log;
    data->parser.options = &data->options;
    data->parser.shape = &data->shape;
    data->input.fd = -1;
    descant_status status = open_format(data);
    if (status != DESCANT_OK) {
        data_close(data);
        return status;
    }
    *out = data;
    return DESCANT_OK;
}

void data_close(struct data *data)
{
    if (!data)
        return;
    if (data->parse)
        input_fini(&data->input);
    idx_close(data->idx);
    cache_fini(data->cache);
    memory_give(data->parser.counts);
    memory_give(data->parser.pairs);
    memory_give(data);
}

const struct data_shape *data_shape(const struct data *data)
{
    return &data->shape;
}

enum data_format data_format(const struct data *data)
{
    return data->options.format;
}

descant_status data_status(const struct data *data)
{
    return data->status;
}

const char *data_bad_line(const struct data *data)
{
    return data->last_bad;
}

uint64_t data_chunks(const struct data *data)
{
    return data->idx ? idx_chunks(data->idx)
         : data->cache ? cache_chunks(data->cache) : input_chunks(&data->input);
}

bool data_lasts(const struct data *data)
{
    return !data->parse || input_lasts(&data->input);
}

double data_place(const struct data *data, uint64_t chunk)
{
    if (data->parse)
        return input_place(&data->input, chunk);
    uint64_t n = data_chunks(data);
    return chunk < n ? (double)chunk / (double)n : 1;
}

/* --- lines --- */

/* Gives the line [at, end) to the parser. nul: the chunk has a NUL byte somewhere. */
static bool take_line(struct data *data, const char *at, const char *end, bool nul)
{
    if (end - at > LINE_LIMIT)
        return bad_line(&data->parser, "the line is longer than %d bytes", LINE_LIMIT);
    if (nul && memchr(at, 0, (size_t)(end - at)))
        return bad_line(&data->parser, "a NUL byte");
    if (end > at && end[-1] == '\r')
        end--;
    return data->parse(&data->parser, at, end);
}

/* Logged by the first reader, where several epochs are read, or several processes
 * read. */
static bool is_header(struct data *data, const char *at, const char *end)
{
    if (data->options.format != DATA_CRITEO || !criteo_header(&data->parser, at, end))
        return false;
    if (data->input.pass == 0)
        log_say(data->of_lines, DESCANT_WARNING, "%s:1: a header is skipped: %.*s...",
                input_source(&data->input)->path, end - at > 40 ? 40 : (int)(end - at),
                at);
    return true;
}

/* Makes the block of a chunk's lines. A bad line is counted, and is an example without
 * features if lines are scored, so that examples and lines have the same numbers. */
static descant_status take_lines(struct data *data, const struct lines *lines,
                                 struct block *block)
{
    size_t bytes = (size_t)(lines->end - lines->at);
    bool nul = bytes > 0 && memchr(lines->at, 0, bytes);
    const char *begin = lines->first ? after_mark(lines->at, lines->end) : lines->at;
    if (lines->first) {
        bool either = data->options.format == DATA_CRITEO && data->options.scoring;
        data->parser.columns = either ? criteo_columns(begin, lines->end) : 0;
        data->parser.bare = false;
    }
    if (!rows_begin(&data->parser.rows, block, &data->shape, bytes / 128 + 1))
        return log_fail(data->options.log, DESCANT_MEMORY, "no memory for a block");
    for (const char *at = begin, *next; at < lines->end; at = next) {
        const char *end = memchr(at, '\n', (size_t)(lines->end - at));
        next = end ? end + 1 : lines->end;
        if (lines->first && at == begin && is_header(data, at, end ? end : next))
            continue;
        block->lines++;
        if (take_line(data, at, end ? end : lines->end, nul))
            continue;
        if (data->parser.no_memory)
            return log_fail(data->options.log, DESCANT_MEMORY, "no memory for a block");
        block->bad++;
        struct source *source = input_source(&data->input);
        if (source->reported < REPORTED) {
            source->reported++;
            snprintf(data->last_bad, sizeof data->last_bad, "%s:%llu: %s", source->path,
                     (unsigned long long)input_line(&data->input, at),
                     data->parser.reason);
            log_say(data->of_lines, DESCANT_WARNING, "%s", data->last_bad);
        }
        if (data->options.scoring && !rows_blank(&data->parser.rows))
            return log_fail(data->options.log, DESCANT_MEMORY, "no memory for a block");
    }
    rows_end(&data->parser.rows);
    return DESCANT_OK;
}

/* Fails if more of this reader's lines are bad than max_bad allows. The message says so
 * if all of them lack a label. */
static descant_status too_many(struct data *data)
{
    if ((double)data->bad <= data->options.max_bad * (double)data->lines)
        return DESCANT_OK;
    bool unlabelled = data->parser.without_label == data->bad;
    return log_fail(
        data->options.log, DESCANT_CORRUPT,
        "%llu of %llu lines are bad, more than %g %%%s; the last one reported: %s",
        (unsigned long long)data->bad, (unsigned long long)data->lines,
        100 * data->options.max_bad,
        unlabelled ? ": they have no label, without which lines can only be scored "
                     "(descant predict)"
                   : "",
        data->last_bad);
}

/* Passes over the lines whose text lies within the known bytes: they have been read. That
 * holds for a line, too, whose end came later than its text: it was read without that
 * end. */
static void skip_known(const struct data *data, struct lines *lines)
{
    const struct input *in = &data->input;
    uint64_t known =
        atomic_load_explicit(&data->options.known[in->now], memory_order_relaxed);

    while (lines->at < lines->end) {
        const char *end = memchr(lines->at, '\n', (size_t)(lines->end - lines->at));
        end = end ? end : lines->end;
        if (in->base + (uint64_t)(end - in->text) > known)
            return;
        lines->at = end < lines->end ? end + 1 : end;
        lines->first = false;
    }
}

static enum data_got read_text(struct data *data, uint64_t chunk, bool rest,
                               struct block *block)
{
    struct lines lines;
    enum data_got got =
        data->input.shared
            ? stdin_chunk(&data->input, &lines, &block->chunk, &data->status)
        : data->input.given ? given_chunk(&data->input, chunk, &lines, &data->status)
            : input_chunk(&data->input, chunk, &lines, &data->status);
    _Atomic uint64_t *said = data->options.said;
    bool known = said && block->chunk < atomic_load_explicit(said, memory_order_relaxed);
    data->of_lines = known ? NULL : data->options.log;
    if (got == DATA_BLOCK && rest)
        skip_known(data, &lines);
    if (got == DATA_BLOCK)
        data->status = take_lines(data, &lines, block);
    if (got == DATA_BLOCK && said && !known)
        atomic_store_explicit(said, block->chunk + 1, memory_order_relaxed);
    data->lines += block->lines;
    data->bad += block->bad;
    if (data->status == DESCANT_OK && (got == DATA_END || data->lines >= ENOUGH))
        data->status = too_many(data);
    return data->status == DESCANT_OK ? got : DATA_FAILED;
}

descant_status data_finish(struct data *data)
{
    if (data->parse && data->status == DESCANT_OK)
        data->status = too_many(data);
    return data->status;
}

enum data_got data_read(struct data *data, uint64_t chunk, struct block *block)
{
    bool rest = chunk & DATA_REST;
    chunk &= ~DATA_REST;
    block->examples = (struct examples){0};
    block->chunk = chunk;
    block->lines = block->bad = 0;
    if (data->status != DESCANT_OK)
        return DATA_FAILED;
    if (data->parse)
        return read_text(data, chunk, rest, block);
    return data->idx ? idx_read(data->idx, chunk, block, &data->status)
                     : cache_read(data->cache, chunk, block, &data->status);
}
