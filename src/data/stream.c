/* SPDX-License-Identifier: MIT */
/* Bytes of a descriptor, plain or decompressed. The first four tell the kind:
 *
 *   1f 8b           gzip, also several members after each other (as bgzip and cat make
 *                   them)
 *   28 b5 2f fd     zstd, also several frames; 5x 2a 4d 18 opens a frame that is skipped
 *   anything else   plain
 *
 * A gzip file may end in zero bytes (tapes and pads do so). A stream that ends inside a
 * member or frame is an error, never a short text. A decompressor's memory comes from
 * memory.c, or from an arena in memory that several processes share: then its state,
 * pointers included, is theirs in turn. An arena takes back the newest piece alone, which
 * is enough: zstd gives its buffers back before it takes larger ones for a frame. */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd_errors.h>

enum { TICK_MS = 50, FIRST_ROOM = 1 << 16 };
enum { ARENA_WINDOW = 23 };     /* log of the largest zstd window in an arena */

enum stream_kind stream_kind_of(const unsigned char *first, size_t n)
{
    if (n >= 2 && first[0] == 0x1f && first[1] == 0x8b)
        return STREAM_GZIP;
    if (n >= 4 && memcmp(first, "\x28\xb5\x2f\xfd", 4) == 0)
        return STREAM_ZSTD;
    if (n >= 4 && (first[0] & 0xf0) == 0x50 && memcmp(first + 1, "\x2a\x4d\x18", 3) == 0)
        return STREAM_ZSTD;
    return STREAM_PLAIN;
}

/* Decompressors take some of their memory late, while they decompress, and report its
 * lack as an error among others: `exhausted` tells it from damaged data. */
static void *take(void *context, size_t bytes)
{
    struct stream *stream = context;
    struct reader_arena *arena = stream->arena;
    void *taken = NULL;
    size_t rounded = (bytes + 63) / 64 * 64;
    if (!arena)
        taken = memory_take(bytes);
    else if (rounded >= bytes && rounded <= arena->room - arena->used) {
        arena->newest = arena->used;
        taken = arena->memory + arena->newest;
        arena->used += rounded;
    }
    stream->exhausted |= !taken;
    return taken;
}

static void give(void *context, void *taken)
{
    struct stream *stream = context;
    struct reader_arena *arena = stream->arena;
    if (!arena)
        memory_give(taken);
    else if (taken == arena->memory + arena->newest)
        arena->used = arena->newest;
}

static void *take_gzip(void *context, unsigned n, unsigned size)
{
    return take(context, (size_t)n * size);
}

void stream_init(struct stream *stream, int fd, struct reader_arena *arena)
{
    memset(stream, 0, offsetof(struct stream, raw));
    stream->fd = fd;
    stream->arena = arena;
}

void stream_fini(struct stream *stream)
{
    if (stream->opened && stream->kind == STREAM_GZIP)
        inflateEnd(&stream->gzip);
    ZSTD_freeDCtx(stream->zstd);
    stream->zstd = NULL;
    stream->opened = false;
}

/* Takes what fd has, after what is left in raw: waits until it has bytes or its end, or
 * the reading is given up. The status alone tells that: the thread that gave it up knows
 * the reason. */
static descant_status refill(struct stream *s, const char *name, const struct log *log)
{
    const struct data_options *o = s->options;
    struct pollfd wait = {.fd = s->fd, .events = POLLIN};
    memmove(s->raw, s->raw + s->at, s->filled - s->at);
    s->filled -= s->at;
    s->at = 0;
    ssize_t n;
    do {
        /* A signal ends poll, too, and says nothing of bytes: a read would wait for them
         * for ever. */
        while (o && poll(&wait, 1, o->stopped ? TICK_MS : -1) <= 0)
            if (o->stopped && o->stopped(o->of))
                return DESCANT_TIMEOUT;
        n = read(s->fd, s->raw + s->filled, STREAM_RAW - s->filled);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0)
        return log_fail(log, DESCANT_SYSTEM, "%s: cannot be read: %s", name,
                        strerror(errno));
    s->filled += (size_t)n;
    s->taken += (uint64_t)n;
    s->raw_ended = n == 0;
    return DESCANT_OK;
}

/* Finds the kind, for which it reads STREAM_MAGIC bytes where there are so many, and
 * makes the decompressor. */
static descant_status open_kind(struct stream *s, const char *name, const struct log *log)
{
    while (s->filled - s->at < STREAM_MAGIC && !s->raw_ended) {
        descant_status status = refill(s, name, log);
        if (status != DESCANT_OK)
            return status;
    }
    s->kind = stream_kind_of(s->raw + s->at, s->filled - s->at);
    bool good = true;
    if (s->kind == STREAM_GZIP) {
        s->gzip = (z_stream){.zalloc = take_gzip, .zfree = give, .opaque = s};
        good = inflateInit2(&s->gzip, 15 + 16) == Z_OK;
    } else if (s->kind == STREAM_ZSTD) {
        s->zstd = ZSTD_createDCtx_advanced((ZSTD_customMem){take, give, s});
        good = s->zstd != NULL;
        if (good && s->arena)
            ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, ARENA_WINDOW);
    }
    if (!good)
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to decompress", name);
    s->opened = true;
    return DESCANT_OK;
}

static descant_status damaged(const struct stream *s, const char *name, const char *why,
                              const struct log *log)
{
    if (s->exhausted)
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to decompress", name);
    return log_fail(log, DESCANT_CORRUPT, "%s: the %s data is damaged: %s", name,
                    s->kind == STREAM_GZIP ? "gzip" : "zstd", why);
}

/* After a member: the next one, zeros, or the end. */
static descant_status next_member(struct stream *s, const char *name,
                                  const struct log *log)
{
    if (s->raw[s->at] == 0x1f) {
        s->between = false;
        inflateReset(&s->gzip);
        return DESCANT_OK;
    }
    while (s->at < s->filled && s->raw[s->at] == 0)
        s->at++;
    return s->at == s->filled ? DESCANT_OK
                              : damaged(s, name, "something follows its end", log);
}

/* Z_BUF_ERROR only says that nothing could be done: step finds out whether more bytes
 * will come. */
static descant_status inflate_some(struct stream *s, char *into, size_t n, size_t *got,
                                   const char *name, const struct log *log)
{
    if (s->between)
        return next_member(s, name, log);
    s->gzip.next_in = s->raw + s->at;
    s->gzip.avail_in = (unsigned)(s->filled - s->at);
    s->gzip.next_out = (unsigned char *)into;
    s->gzip.avail_out = n < 1u << 30 ? (unsigned)n : 1u << 30;
    unsigned before = s->gzip.avail_out;
    int result = inflate(&s->gzip, Z_NO_FLUSH);
    *got = before - s->gzip.avail_out;
    s->at = s->filled - s->gzip.avail_in;
    s->between = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR)
        return DESCANT_OK;
    return damaged(s, name, s->gzip.msg ? s->gzip.msg : zError(result), log);
}

static descant_status unzstd_some(struct stream *s, char *into, size_t n, size_t *got,
                                  const char *name, const struct log *log)
{
    ZSTD_inBuffer in = {s->raw + s->at, s->filled - s->at, 0};
    ZSTD_outBuffer out = {into, n, 0};
    size_t result = ZSTD_decompressStream(s->zstd, &out, &in);
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
        return log_fail(log, DESCANT_UNSUPPORTED,
                        "%s: the zstd data needs a window of more than %d MiB, the most "
                        "that is read here: decompress it with `zstd -d --long=31`",
                        name, s->arena ? 1 << (ARENA_WINDOW - 20)
                                       : 1 << (ZSTD_WINDOWLOG_LIMIT_DEFAULT - 20));
    if (ZSTD_isError(result))
        return damaged(s, name, ZSTD_getErrorName(result), log);
    s->at += in.pos;
    *got = out.pos;
    s->between = result == 0;
    return DESCANT_OK;
}

static descant_status copy_some(struct stream *s, char *into, size_t n, size_t *got)
{
    *got = n < s->filled - s->at ? n : s->filled - s->at;
    memcpy(into, s->raw + s->at, *got);
    s->at += *got;
    s->between = true;
    return DESCANT_OK;
}

/* One step: more raw bytes, or some of the result. At the end of the raw bytes a
 * decompressor is still asked, for it may hold a result back. */
static descant_status step(struct stream *s, char *into, size_t n, size_t *got,
                           const char *name, const struct log *log)
{
    *got = 0;
    if (!s->opened)
        return open_kind(s, name, log);
    if (s->at == s->filled && !s->raw_ended)
        return refill(s, name, log);
    if (s->at == s->filled && s->between) {
        s->finished = true;
        return DESCANT_OK;
    }
    size_t before = s->filled - s->at;
    descant_status status =
        s->kind == STREAM_GZIP   ? inflate_some(s, into, n, got, name, log)
        : s->kind == STREAM_ZSTD ? unzstd_some(s, into, n, got, name, log)
                                 : copy_some(s, into, n, got);
    if (status == DESCANT_OK && s->raw_ended && *got == 0 && !s->between &&
        s->filled - s->at == before)
        return damaged(s, name, "it ends too early", log);
    return status;
}

descant_status stream_read(struct stream *stream, void *into, size_t n, size_t *got,
                           const char *name, const struct log *log)
{
    for (*got = 0; *got < n && !stream->finished;) {
        size_t more;
        descant_status status =
            step(stream, (char *)into + *got, n - *got, &more, name, log);
        if (status != DESCANT_OK)
            return status;
        *got += more;
    }
    return DESCANT_OK;
}

/* Doubles the room until all is in, or a byte more than there should be. */
static descant_status read_all(struct stream *stream, stream_length *length,
                               unsigned char **bytes, size_t *n, const char *path,
                               const struct log *log)
{
    size_t most = SIZE_MAX;
    for (size_t room = FIRST_ROOM; !stream->finished && *n < most; room *= 2) {
        room = room < most ? room : most;
        unsigned char *larger = memory_take(room);
        if (!larger)
            return log_fail(log, DESCANT_MEMORY, "%s: no memory for %zu bytes", path,
                            room);
        if (*n > 0)
            memcpy(larger, *bytes, *n);
        memory_give(*bytes);
        *bytes = larger;
        size_t got;
        descant_status status =
            stream_read(stream, larger + *n, room - *n, &got, path, log);
        if (status != DESCANT_OK)
            return status;
        most = *n ? most : length(larger, got) + 1;
        *n += got;
    }
    return DESCANT_OK;
}

descant_status stream_read_file(const char *path, stream_length *length,
                                unsigned char **bytes, size_t *n, const struct log *log)
{
    unsigned char *all = NULL;
    size_t total = 0;
    struct stream *stream = memory_take(sizeof *stream);
    if (!stream)
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to read it", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    descant_status status = DESCANT_OK;
    if (fd < 0)
        status = log_fail(log, DESCANT_SYSTEM, "%s: %s", path, strerror(errno));
    else {
        stream_init(stream, fd, NULL);
        status = read_all(stream, length, &all, &total, path, log);
        stream_fini(stream);
        close(fd);
    }
    memory_give(stream);
    if (status != DESCANT_OK) {
        memory_give(all);
        return status;
    }
    *bytes = all;
    *n = total;
    return DESCANT_OK;
}
