/* SPDX-License-Identifier: MIT */
/* Text in chunks. A file's text is cut every chunk_bytes, and chunk k has the lines that
 * start within its piece; the last of them may end in a later piece. So each line is in
 * exactly one chunk, whatever the size, and every chunk can be found without those before
 * it. The chunks of several files follow each other, and those of several epochs; a file
 * that grows meanwhile keeps the size it had when it was opened, one that shrinks is an
 * error.
 *
 * A window of the text, [base, base + filled), is in memory, and only moves forward. In a
 * plain regular file it is read at its place (pread: a mapping would kill the process if
 * the file shrank). In a compressed file, or a pipe, the text before the window is
 * decompressed and dropped: every process does that for the whole input, and parses only
 * its own chunks. The number of chunks of such a file is known when its end was seen, and
 * kept for later epochs.
 *
 *   window   | last byte before | the piece: chunk_bytes | up to the last line's end |
 *              is it a line end?
 *
 * A line longer than LINE_LIMIT is handed on cut, longer than the limit, so that the
 * parser's owner counts it as bad; thus memory is bounded by chunk_bytes and the limit.
 *
 * Line numbers are only wanted for messages. Those of a stream are counted as the window
 * moves; those of a plain file when asked for, from where the last count ended. */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 4096 };

struct source *input_source(struct input *input)
{
    return &input->sources[input->now < input->n_sources ? input->now
                                                         : input->n_sources - 1];
}

/* --- which files --- */

/* Opens only a regular file, for opening and closing a pipe would harm its writer. bytes:
 * as in data_options. */
static descant_status look_at(struct input *in, struct source *source,
                              const _Atomic uint64_t *bytes)
{
    unsigned char first[STREAM_MAGIC];
    struct stat stat_of;
    int fd = -1, why = stat(source->path, &stat_of) != 0 ? errno : 0;
    if (!why && S_ISDIR(stat_of.st_mode))
        why = EISDIR;
    source->regular = !why && S_ISREG(stat_of.st_mode);
    if (source->regular && (fd = open(source->path, O_RDONLY | O_CLOEXEC)) < 0)
        why = errno;
    if (why)
        return log_fail(in->log, DESCANT_SYSTEM, "%s: %s", source->path, strerror(why));
    source->bytes = source->regular ? (uint64_t)stat_of.st_size : 0;
    uint64_t told =
        bytes ? atomic_load_explicit(bytes, memory_order_relaxed) : UINT64_MAX;
    if (source->regular && told != UINT64_MAX)
        source->bytes = told;
    ssize_t n = source->regular ? pread(fd, first, sizeof first, 0) : 0;
    source->kind = stream_kind_of(first, n > 0 ? (size_t)n : 0);
    if (fd >= 0)
        close(fd);
    source->n_chunks = UINT64_MAX;
    if (source->regular && source->kind == STREAM_PLAIN)
        source->n_chunks =
            source->bytes / in->chunk_bytes + (source->bytes % in->chunk_bytes > 0);
    if (!source->regular && in->epochs > 1)
        return log_fail(in->log, DESCANT_INVALID,
                        "%s: it can be read only once, not for %d epochs", source->path,
                        in->epochs);
    return DESCANT_OK;
}

descant_status input_peek(const char *path, char *first, size_t room, size_t *n,
                          const struct log *log)
{
    struct input in = {.log = log, .chunk_bytes = CHUNK_BYTES};
    struct source source = {.path = path};
    *n = 0;
    descant_status status = look_at(&in, &source, NULL);
    if (status != DESCANT_OK || !source.regular)
        return status;
    struct stream *stream = memory_take(sizeof *stream);
    int fd = stream ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (!stream)
        status = log_fail(log, DESCANT_MEMORY, "%s: no memory to read it", path);
    else if (fd < 0)
        status = log_fail(log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
    else {
        stream_init(stream, fd, NULL);
        status = stream_read(stream, first, room, n, path, log);
        stream_fini(stream);
        close(fd);
    }
    memory_give(stream);
    return status;
}

/* Copies the names, for messages need them after the caller's strings are gone. */
static descant_status copy_names(struct input *in, const struct data_options *o)
{
    size_t bytes = 0;
    for (size_t i = 0; i < o->n_paths; i++)
        bytes += strlen(o->paths[i]) + 1;
    in->names = memory_take(bytes);
    in->sources = memory_take_array(o->n_paths, sizeof *in->sources);
    if (!in->names || !in->sources)
        return log_fail(in->log, DESCANT_MEMORY, "no memory for the names of the input");
    char *at = in->names;
    for (size_t i = 0; i < o->n_paths; i++) {
        in->sources[i].path = strcpy(at, o->paths[i]);
        at += strlen(at) + 1;
    }
    in->n_sources = o->n_paths;
    return DESCANT_OK;
}

descant_status input_init(struct input *input, const struct data_options *o)
{
    *input = (struct input){.log = o->log, .options = o, .fd = -1,
                            .epochs = o->epochs > 0 ? o->epochs : 1,
                            .chunk_bytes = o->chunk_bytes ? o->chunk_bytes : CHUNK_BYTES};
    descant_status status = copy_names(input, o);
    if (status != DESCANT_OK)
        return status;
    bool is_stdin = false;
    for (size_t i = 0; i < o->n_paths; i++)
        is_stdin |= strcmp(o->paths[i], "-") == 0;
    if (is_stdin) {
        if (o->n_paths > 1 || input->epochs > 1)
            return log_fail(o->log, DESCANT_INVALID, "stdin is read alone, and once");
        input->given = o->fetch != NULL;
        input->sources[0].path = "stdin";
        input->sources[0].n_chunks = UINT64_MAX;
        status = input->given ? DESCANT_OK : stdin_init(input, o->shared);
    }
    for (size_t i = 0; i < o->n_paths && !is_stdin && status == DESCANT_OK; i++)
        status = look_at(input, &input->sources[i], o->bytes ? &o->bytes[i] : NULL);
    return status == DESCANT_OK ? input_room(input, input->chunk_bytes + TAIL_BYTES)
                                : status;
}

static void close_source(struct input *in)
{
    if (in->stream)
        stream_fini(in->stream);
    memory_give(in->stream);
    in->stream = NULL;
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
    in->base = in->filled = 0;
    in->lines = in->lines_at = 0;
}

void input_fini(struct input *input)
{
    close_source(input);
    stdin_fini(input);
    memory_give(input->text);
    memory_give(input->sources);
    memory_give(input->names);
}

static bool is_of_stdin(const struct input *input)
{
    return input->shared || input->given;
}

uint64_t input_chunks(const struct input *input)
{
    uint64_t n = 0;
    for (size_t i = 0; i < input->n_sources; i++) {
        if (is_of_stdin(input) || input->sources[i].n_chunks == UINT64_MAX)
            return UINT64_MAX;
        n += input->sources[i].n_chunks;
    }
    return n * (uint64_t)input->epochs;
}

bool input_lasts(const struct input *input)
{
    bool all = !is_of_stdin(input);
    for (size_t i = 0; i < input->n_sources; i++)
        all &= input->sources[i].regular;
    return all;
}

/* A share of the chunks, where their number is known. Else a share of the bytes as they
 * are in the files: the whole files before this one, and of this one the bytes that its
 * decompressor has taken. */
double input_place(const struct input *input, uint64_t chunk)
{
    uint64_t n = input_chunks(input), bytes = 0, done = 0;
    if (is_of_stdin(input))
        return -1;
    if (n != UINT64_MAX)
        return n == 0 || chunk >= n ? 1 : (double)chunk / (double)n;
    for (size_t i = 0; i < input->n_sources; i++) {
        if (!input->sources[i].regular)
            return -1;
        done += i < input->now ? input->sources[i].bytes : 0;
        bytes += input->sources[i].bytes;
    }
    done += input->stream ? input->stream->taken : 0;
    double place = (double)done / (double)(bytes ? bytes : 1);
    return ((double)input->pass + (place < 1 ? place : 1)) / input->epochs;
}

/* --- the window --- */

/* Reads up to n bytes behind the window, and none behind source->bytes, though the file
 * may have grown. */
static descant_status read_at(struct input *in, size_t n, size_t *got)
{
    const struct source *source = input_source(in);
    uint64_t at = in->base + in->filled,
             left = at < source->bytes ? source->bytes - at : 0;
    n = left < n ? (size_t)left : n;
    for (*got = 0; *got < n;) {
        ssize_t more = pread(in->fd, in->text + in->filled + *got, n - *got,
                             (off_t)(at + *got));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return log_fail(in->log, DESCANT_SYSTEM, "%s: cannot be read: %s",
                            source->path, strerror(errno));
        if (more == 0)
            return log_fail(in->log, DESCANT_SYSTEM,
                            "%s: it became shorter while it was read", source->path);
        *got += (size_t)more;
    }
    return DESCANT_OK;
}

/* Makes the window n bytes long, or shorter where the source ends. */
static descant_status fill(struct input *in, size_t n)
{
    size_t got = 0;
    descant_status status = input_room(in, n);
    if (status != DESCANT_OK || in->filled >= n)
        return status;
    if (in->stream)
        status = stream_read(in->stream, in->text + in->filled, n - in->filled, &got,
                             input_source(in)->path, in->log);
    else
        status = read_at(in, n - in->filled, &got);
    in->filled += got;
    return status;
}

/* Moves the window's start on to byte `from` of the source. Of a plain file nothing is
 * read for it; of a stream the bytes between are decompressed and dropped, and their line
 * ends are counted. */
static descant_status move_to(struct input *in, uint64_t from)
{
    if (!in->stream) {
        in->base = from;
        in->filled = 0;
        return DESCANT_OK;
    }
    while (in->base < from) {
        uint64_t left = from - in->base;
        size_t n = left < in->chunk_bytes ? (size_t)left : in->chunk_bytes;
        descant_status status = fill(in, n);
        if (status != DESCANT_OK)
            return status;
        if (in->filled == 0)
            break;
        n = n < in->filled ? n : in->filled;
        in->lines += count_line_ends(in->text, in->text + n);
        in->base += n;
        in->lines_at = in->base;
        memmove(in->text, in->text + n, in->filled - n);
        in->filled -= n;
    }
    return DESCANT_OK;
}

/* The end of the line that goes on at `from` of the window: after its '\n', or the end of
 * the source, or so far that the line is surely too long. */
static descant_status find_end(struct input *in, size_t from, size_t *end)
{
    size_t seen = from;
    for (size_t step = TAIL_BYTES;; step *= 2) {
        const char *found = memchr(in->text + seen, '\n', in->filled - seen);
        *end = found ? (size_t)(found - in->text) + 1 : in->filled;
        if (found || in->filled - from > LINE_LIMIT)
            return DESCANT_OK;
        seen = in->filled;
        descant_status status = fill(in, in->filled + step);
        if (status != DESCANT_OK || in->filled == seen)
            return status;
    }
}

/* --- chunks --- */

/* Opens the present source, unless it is open. A plain regular file has no stream, since
 * it is read at its place. */
static descant_status open_source(struct input *in)
{
    const struct source *source = input_source(in);
    if (in->fd >= 0)
        return DESCANT_OK;
    /* a pipe without a writer is waited for while it is read, not here */
    in->fd =
        open(source->path, O_RDONLY | O_CLOEXEC | (source->regular ? 0 : O_NONBLOCK));
    if (in->fd < 0)
        return log_fail(in->log, DESCANT_SYSTEM, "%s: %s", source->path, strerror(errno));
    if (source->regular && source->kind == STREAM_PLAIN)
        return DESCANT_OK;
    in->stream = memory_take(sizeof *in->stream);
    if (!in->stream)
        return log_fail(in->log, DESCANT_MEMORY, "%s: no memory to read it",
                        source->path);
    stream_init(in->stream, in->fd, NULL);
    in->stream->options = source->regular ? NULL : in->options;
    return DESCANT_OK;
}

/* Chunk k of the source that is open. *ended: the source has no such chunk. */
static descant_status read_chunk(struct input *in, uint64_t k, struct lines *lines,
                                 bool *ended)
{
    uint64_t from = k * in->chunk_bytes;
    size_t before = k > 0, begin = before, end;
    descant_status status = move_to(in, from - before);
    if (status == DESCANT_OK)
        status = fill(in, before + in->chunk_bytes);
    if (status != DESCANT_OK)
        return status;
    *ended = in->base + in->filled <= from;
    if (*ended) {
        uint64_t bytes = in->base + in->filled;
        input_source(in)->n_chunks =
            bytes / in->chunk_bytes + (bytes % in->chunk_bytes > 0);
        return DESCANT_OK;
    }
    end = before + in->chunk_bytes < in->filled ? before + in->chunk_bytes : in->filled;
    /* a line that began in an earlier piece belongs to that piece's chunk */
    if (before && in->text[0] != '\n') {
        const char *found = memchr(in->text + 1, '\n', end - 1);
        begin = found ? (size_t)(found - in->text) + 1 : end;
    }
    if (begin < end && in->text[end - 1] != '\n')
        status = find_end(in, end, &end);
    memset(in->text + in->filled, 0, READER_PAD);
    *lines = (struct lines){in->text + begin, in->text + end, k == 0};
    return status;
}

/* Past the source that is open. False: past all of them, in all epochs. */
static bool next_source(struct input *in)
{
    in->first += in->sources[in->now].n_chunks;
    close_source(in);
    if (++in->now < in->n_sources)
        return true;
    bool empty = in->first == in->pass_first;
    if (empty || in->pass + 1 == in->epochs)
        return false;
    in->pass++;
    in->pass_first = in->first;
    in->now = 0;
    return true;
}

/* Goes on from source to source until one has the chunk. read_chunk sets the number of a
 * stream's chunks as it meets the end, before next_source adds that number to the first
 * number of the next source. */
enum data_got input_chunk(struct input *in, uint64_t chunk, struct lines *lines,
                          descant_status *status)
{
    while (in->now < in->n_sources) {
        const struct source *source = input_source(in);
        bool ended = chunk - in->first >= source->n_chunks;
        *status = DESCANT_OK;
        if (!ended) {
            *status = open_source(in);
            if (*status == DESCANT_OK)
                *status = read_chunk(in, chunk - in->first, lines, &ended);
        }
        if (*status != DESCANT_OK)
            return DATA_FAILED;
        if (!ended)
            return DATA_BLOCK;
        if (!next_source(in))
            break;
    }
    return DATA_END;
}

uint64_t input_line(struct input *in, const char *at)
{
    char some[16384];
    if (in->given)
        return in->lines + count_line_ends(in->given_text, at) + 1;
    uint64_t to = in->base + (uint64_t)(at - in->text);
    if (in->stream || in->shared)
        return in->lines + count_line_ends(in->text, at) + 1;
    if (to < in->lines_at)          /* it is counted on from the last count */
        in->lines_at = in->lines = 0;
    while (in->lines_at < to) {
        uint64_t left = to - in->lines_at;
        ssize_t n = pread(in->fd, some, left < sizeof some ? (size_t)left : sizeof some,
                          (off_t)in->lines_at);
        if (n <= 0)
            break;
        in->lines += count_line_ends(some, some + n);
        in->lines_at += (uint64_t)n;
    }
    return in->lines + 1;
}
