/* SPDX-License-Identifier: MIT */
/* A place counts chunks, so it holds only for the files that were read. A file is known
 * by its size and a hash of its first and its last bytes, whatever its name. A file that
 * has grown is the same with more: its bytes up to the size of before have that hash.
 *
 * A plain file that grows has its chunks where they were, and the last one, which was a
 * part, is longer. Its new lines, those that end behind the bytes that were read, are a
 * chunk of its own kind (DATA_REST). A line that was read before it had its end, which
 * may have begun in an earlier chunk, is one of them. Chunks of later files, and of later
 * passes, have higher numbers then.
 *
 *   before   pass 0: a0 a1 a2 b0   pass 1: a0 a1 a2 b0        (a2 is a part of a chunk)
 *   now      pass 0: a0 a1 a2 a3 b0   pass 1: a0 a1 a2 a3 b0
 *
 * A run that is stopped before it has done the new lines of a chunk does all of that
 * chunk when it goes on, for the place does not keep which part was read. Changes in the
 * middle of a large file are not seen. */
#include "train/place.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOME_BYTES = 1 << 16, BACK_BYTES = 4096, LONGEST_LINE = 1 << 20 };

/* FNV-1a of the bytes from..to. False: they are not there. */
static bool hash_bytes(int fd, uint64_t from, uint64_t to, uint64_t *hash)
{
    unsigned char some[BACK_BYTES];

    while (from < to) {
        uint64_t left = to - from;
        ssize_t n =
            pread(fd, some, left < sizeof some ? (size_t)left : sizeof some, (off_t)from);
        if (n <= 0)
            return false;
        *hash = fnv_add(*hash, some, (size_t)n);
        from += (uint64_t)n;
    }
    return true;
}

struct file_mark file_mark(const char *path, uint64_t most)
{
    struct file_mark none = {UINT64_MAX, 0}, mark = {0, FNV_BEGIN};
    struct stat of;

    if (stat(path, &of) != 0 || !S_ISREG(of.st_mode))
        return none;            /* opening and closing a pipe would harm its writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return none;
    mark.bytes = (uint64_t)of.st_size < most ? (uint64_t)of.st_size : most;
    uint64_t some = mark.bytes < SOME_BYTES ? mark.bytes : SOME_BYTES;
    bool good = hash_bytes(fd, 0, some, &mark.hash) &&
                hash_bytes(fd, mark.bytes - some, mark.bytes, &mark.hash);
    close(fd);
    return good ? mark : none;
}

/* The first byte that was added may be the last line's end. */
uint64_t whole_lines(const char *path, uint64_t was)
{
    uint64_t least = was > LONGEST_LINE ? was - LONGEST_LINE : 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char next;
    bool whole = fd < 0 || (pread(fd, &next, 1, (off_t)was) == 1 && next == '\n');
    off_t end = whole ? -1 : file_line_end(fd, (off_t)was, (off_t)least);

    if (fd >= 0)
        close(fd);
    return end < 0 ? was : (uint64_t)end;
}

/* Where there is no room for all chunks that are not done, the cursor is before those for
 * which there is none, and what is done behind it is done again. */
void place_of_runs(struct place *place, const struct descant_items *runs, size_t n)
{
    uint64_t next = 0;

    place->n = PLACE_HEAD;
    for (size_t k = 0; k < n; k++) {
        if (runs[k].from - next > PLACE_HEAD + BOARD_TODO - place->n)
            break;
        for (; next < runs[k].from; next++)
            place->at[place->n++] = next;
        next = runs[k].to;
    }
    place->at[0] = next;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

size_t place_runs(uint64_t cursor, uint64_t *todo, size_t n, struct descant_items *runs)
{
    uint64_t next = 0;
    size_t n_runs = 0;

    for (size_t k = 0; k < n; k++)
        todo[k] &= ~DATA_REST;
    qsort(todo, n, sizeof *todo, by_number);
    for (size_t k = 0; k <= n; k++) {
        uint64_t to = k < n && todo[k] < cursor ? todo[k] : cursor;
        if (next < to)
            runs[n_runs++] = (struct descant_items){next, to};
        next = next > to ? next : to + 1;
    }
    return n_runs;
}

void rest_add(struct rest *rest, uint64_t chunk)
{
    if ((!rest->end || chunk + 1 < rest->end) && rest->n_todo < BOARD_TODO)
        rest->todo[rest->n_todo++] = chunk;
}

static bool is_todo(const struct rest *rest, uint64_t chunk)
{
    for (size_t k = 0; k < rest->n_todo; k++)
        if (rest->todo[k] == chunk)
            return true;
    return false;
}

void rest_back(struct rest *rest)
{
    uint64_t at = rest->next;

    while (at > 0 && is_todo(rest, at - 1))
        at--;
    rest->end = 0;
    if (at > 0)
        rest_add(rest, at - 1);
}

static uint64_t chunks_of(uint64_t bytes, uint64_t chunk_bytes)
{
    return bytes / chunk_bytes + (bytes % chunk_bytes > 0);
}

/* The chunks of a pass before this file, as the files were or as they are. */
static uint64_t chunks_before(const struct growth *files, size_t file,
                              uint64_t chunk_bytes, bool now)
{
    uint64_t n = 0;

    for (size_t k = 0; k < file; k++)
        n += chunks_of(now ? files[k].is : files[k].was, chunk_bytes);
    return n;
}

/* The number that a chunk has now; one that ends a pass is behind its last file's. */
static uint64_t number_now(const struct growth *files, size_t n, uint64_t chunk_bytes,
                           uint64_t chunk, bool ends)
{
    uint64_t was = chunks_before(files, n, chunk_bytes, false);
    uint64_t is = chunks_before(files, n, chunk_bytes, true);
    uint64_t pass = (chunk - ends) / was, at = chunk - pass * was;
    size_t file = 0;

    while (file + 1 < n &&
           at - ends >= chunks_before(files, file + 1, chunk_bytes, false))
        file++;
    return pass * is + chunks_before(files, file, chunk_bytes, true) + at -
           chunks_before(files, file, chunk_bytes, false);
}

bool rest_grow(struct rest *rest, const struct growth *files, size_t n,
               uint64_t chunk_bytes)
{
    uint64_t was = chunks_before(files, n, chunk_bytes, false);
    uint64_t is = chunks_before(files, n, chunk_bytes, true);
    struct rest old = *rest;

    rest->end = 0;
    if (!was || !old.next)
        return true;            /* nothing is done, or the pass is not known */
    size_t n_old = rest->n_todo;
    rest->next = number_now(files, n, chunk_bytes, old.next, true);
    for (uint64_t pass = 0; pass * was < old.next; pass++)
        for (size_t f = 0; f < n; f++) {
            uint64_t then = pass * was + chunks_before(files, f, chunk_bytes, false);
            uint64_t now = pass * is + chunks_before(files, f, chunk_bytes, true);
            uint64_t known = chunks_of(files[f].was, chunk_bytes);
            uint64_t all = chunks_of(files[f].is, chunk_bytes);
            uint64_t k = files[f].is > files[f].was ? files[f].whole / chunk_bytes : all;
            for (; k < all && now + k < rest->next; k++) {
                if (k < known && is_todo(&old, then + k))
                    continue;
                if (rest->n_todo == BOARD_TODO)
                    return false;
                rest_add(rest, (now + k) | (k < known ? DATA_REST : 0));
            }
        }
    for (size_t k = 0; k < n_old; k++)
        rest->todo[k] = number_now(files, n, chunk_bytes, old.todo[k], false);
    return true;
}
