/* SPDX-License-Identifier: MIT */
/* Bytes on their way into a file, compressed as the ending of its name says: a pair of
 * functions (fopencookie) above zlib or libzstd. */
#include "data/data.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

struct packer {
    FILE *to;
    gzFile gzip;                /* onto a descriptor of its own; or */
    ZSTD_CCtx *zstd;
};

/* Hands some of `in` to zstd, and writes what zstd gives. *left is 0 once ZSTD_e_end has
 * ended the frame. */
static bool zstd_some(struct packer *p, ZSTD_inBuffer *in, ZSTD_EndDirective how,
                      size_t *left)
{
    char some[1 << 14];
    ZSTD_outBuffer out = {some, sizeof some, 0};
    *left = ZSTD_compressStream2(p->zstd, &out, in, how);
    return !ZSTD_isError(*left) && fwrite(some, 1, out.pos, p->to) == out.pos;
}

/* A return value of 0 tells the stream, one of fopencookie, that the write has failed. */
static ssize_t pack_write(void *cookie, const char *bytes, size_t n)
{
    struct packer *p = cookie;
    ZSTD_inBuffer in = {bytes, n, 0};
    size_t left;

    if (p->gzip)
        return gzwrite(p->gzip, bytes, (unsigned)n) == (int)n ? (ssize_t)n : 0;
    while (in.pos < in.size)
        if (!zstd_some(p, &in, ZSTD_e_continue, &left))
            return 0;
    return (ssize_t)n;
}

static int pack_close(void *cookie)
{
    struct packer *p = cookie;
    ZSTD_inBuffer in = {NULL, 0, 0};
    size_t left = p->zstd != NULL;
    bool good = !p->gzip || gzclose(p->gzip) == Z_OK;

    while (good && left > 0)
        good = zstd_some(p, &in, ZSTD_e_end, &left);
    ZSTD_freeCCtx(p->zstd);
    memory_give(p);
    return good ? 0 : -1;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

bool pack_can(const char *name)
{
    static const char *const others[] = {".bz2",  ".xz", ".lz4", ".zip",
                                         ".lzma", ".br", ".Z"};
    bool can = true;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        can &= !ends_in(name, others[k]);
    return can;
}

FILE *pack_open(FILE *to, const char *name)
{
    static const cookie_io_functions_t how = {.write = pack_write, .close = pack_close};
    bool gzip = ends_in(name, ".gz");
    FILE *out = NULL;

    if (!gzip && !ends_in(name, ".zst"))
        return to;
    struct packer *p = memory_take(sizeof *p);
    int fd = p && gzip ? dup(fileno(to)) : -1;      /* gzclose closes it */
    errno = p ? errno : ENOMEM;
    if (p && gzip)
        p->gzip = fd >= 0 ? gzdopen(fd, "wb6") : NULL;
    else if (p)
        p->zstd = ZSTD_createCCtx();
    if (p && (p->gzip || p->zstd)) {
        p->to = to;
        out = fopencookie(p, "w", how);
    } else if (fd >= 0) {
        close(fd);
    }
    if (!out && p)
        pack_close(p);
    return out;
}
