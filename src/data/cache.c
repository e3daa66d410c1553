/* SPDX-License-Identifier: MIT */
/* Blocks in a file, to be read again without parsing. Numbers are as this machine has
 * them; another order of bytes is seen by the version and refused.
 *
 *   head        magic, version, the shape, a sum of these
 *   block       how many examples and ids, which arrays, their sum; a sum of these;
 *               then the arrays: dense, labels, ids, offsets, values
 *   index       where each block begins
 *   tail        how many blocks, a sum of the index, another magic
 *
 * The tail is missing from a file that was cut, and one that was changed has another sum.
 * Sizes are compared with the file's before memory is taken for them, and offsets are
 * tested, so a forged file cannot lead out of an array.
 *
 * The sum is four multiplications side by side on 32 bytes; it detects damage, not
 * malice. */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

const char cache_magic[CACHE_MAGIC_BYTES + 1] = "\x89""DSCACHE";
static const char tail_magic[] = "DSCEND\r\n";

enum { VERSION = 1, HAS_OFFSETS = 1, HAS_VALUES = 2, HAS_IDS = 4, ARRAYS = 5 };

struct head {
    char magic[CACHE_MAGIC_BYTES];
    uint32_t version;
    int32_t n_dense, n_fields, n_classes;
    uint32_t bags, plain_ids;
    uint64_t sum;               /* of all fields before it */
};

/* `has` holds the HAS_ bits. `sum` is that of the fields before it, and begins with the
 * block's number, counted from 1: so a block in another one's place is damaged. */
struct block_head {
    uint64_t n, n_ids, has, arrays_sum, sum;
};

struct tail {
    uint64_t n_blocks, index_sum;
    char magic[CACHE_MAGIC_BYTES];
};

/* Goes on from `sum`, so that arrays can be summed one after the other. The length is
 * part of it: zero bytes at the end count. */
static uint64_t sum_of(const void *bytes, size_t n, uint64_t sum)
{
    const unsigned char *at = bytes;
    uint64_t lanes[4] = {sum, sum + 1, sum + 2, sum + 3}, words[4];
    sum += n;
    for (; n >= sizeof words; n -= sizeof words, at += sizeof words) {
        memcpy(words, at, sizeof words);
        for (int i = 0; i < 4; i++) {
            lanes[i] = (lanes[i] ^ words[i]) * HASH_WORD;
            lanes[i] ^= lanes[i] >> 32;
        }
    }
    memset(words, 0, sizeof words);
    if (n > 0)
        memcpy(words, at, n);
    for (int i = 0; i < 4; i++)
        sum = hash_step(hash_step(sum, lanes[i]), words[i]);
    return sum;
}

/* Sizes in bytes of a block's arrays, in the file's order. */
static void sizes_of(const struct block_head *h, const struct data_shape *s,
                     size_t sizes[ARRAYS])
{
    size_t n = (size_t)h->n, ids = (size_t)h->n_ids;
    sizes[ROWS_DENSE] = n * (size_t)s->n_dense * sizeof(float);
    sizes[ROWS_LABELS] = n * sizeof(float);
    sizes[ROWS_IDS] = h->has & HAS_IDS ? ids * sizeof(uint32_t) : 0;
    sizes[ROWS_OFFSETS] =
        h->has & HAS_OFFSETS ? (n * (size_t)s->n_fields + 1) * sizeof(uint32_t) : 0;
    sizes[ROWS_VALUES] = h->has & HAS_VALUES ? ids * sizeof(float) : 0;
}

/* --- writing --- */

struct cache_writer {
    const struct log *log;
    const char *name;
    FILE *file;
    struct data_shape shape;
    uint64_t at;                /* bytes written */
    uint64_t *index;            /* (n_blocks) where each block begins */
    size_t n_blocks, index_room;
    descant_status status;      /* the first failure; nothing is written after it */
};

static descant_status put(struct cache_writer *w, const void *bytes, size_t n)
{
    if (n > 0 && fwrite(bytes, 1, n, w->file) != n)
        return w->status = log_fail(w->log, DESCANT_SYSTEM, "%s: cannot be written: %s",
                                    w->name, strerror(errno));
    w->at += n;
    return DESCANT_OK;
}

static descant_status put_head(struct cache_writer *w)
{
    const struct data_shape *s = &w->shape;
    struct head head = {.version = VERSION,
                        .n_dense = s->n_dense,
                        .n_fields = s->n_fields,
                        .n_classes = s->n_classes,
                        .bags = s->bags,
                        .plain_ids = s->plain_ids};
    memcpy(head.magic, cache_magic, sizeof head.magic);
    head.sum = sum_of(&head, offsetof(struct head, sum), 0);
    return put(w, &head, sizeof head);
}

descant_status cache_create(struct cache_writer **out, FILE *file, const char *name,
                            const struct data_shape *shape, const struct log *log)
{
    struct cache_writer *w = memory_take(sizeof *w);
    if (!w)
        return log_fail(log, DESCANT_MEMORY, "%s: no memory to write it", name);
    *w = (struct cache_writer){.log = log, .file = file, .name = name, .shape = *shape};
    descant_status status = put_head(w);
    if (status == DESCANT_OK)
        *out = w;
    else
        memory_give(w);
    return status;
}

static descant_status put_block(struct cache_writer *w, const struct examples *e,
                                const uint32_t *offsets)
{
    size_t sizes[ARRAYS], first = offsets ? e->offsets[0] : 0;
    struct block_head h = {.n = e->n,
                           .n_ids = offsets ? offsets[e->n * (size_t)e->n_fields]
                                            : e->n * (size_t)e->n_fields};
    h.has = (offsets ? HAS_OFFSETS : 0) | (e->values ? HAS_VALUES : 0) |
            (e->ids ? HAS_IDS : 0);
    const void *arrays[ARRAYS] = {
        [ROWS_DENSE] = e->dense, [ROWS_LABELS] = e->labels, [ROWS_OFFSETS] = offsets,
        [ROWS_IDS] = e->ids ? e->ids + first : NULL,
        [ROWS_VALUES] = e->values ? e->values + first : NULL};
    sizes_of(&h, &w->shape, sizes);
    for (int i = 0; i < ARRAYS; i++)
        h.arrays_sum = sum_of(arrays[i], sizes[i], h.arrays_sum);
    h.sum = sum_of(&h, offsetof(struct block_head, sum), w->n_blocks);
    descant_status status = put(w, &h, sizeof h);
    for (int i = 0; i < ARRAYS && status == DESCANT_OK; i++)
        status = put(w, arrays[i], sizes[i]);
    return status;
}

descant_status cache_add(struct cache_writer *w, const struct examples *e)
{
    if (w->status != DESCANT_OK || e->n == 0)
        return w->status;
    if (e->n_dense != w->shape.n_dense || e->n_fields != w->shape.n_fields ||
        !e->labels || (e->n_fields && !e->ids) || (e->n_dense && !e->dense))
        return w->status = log_fail(w->log, DESCANT_INVALID,
                                    "%s: a block of another shape", w->name);
    /* offsets that begin at 0, as those of a slice do not */
    size_t n = e->offsets ? e->n * (size_t)e->n_fields + 1 : 0;
    uint32_t *offsets = n ? memory_take_array(n, sizeof *offsets) : NULL;
    if ((n && !offsets) || !memory_grow(&w->index, &w->index_room, w->n_blocks,
                                        w->n_blocks + 1, sizeof *w->index)) {
        memory_give(offsets);
        return w->status = log_fail(w->log, DESCANT_MEMORY,
                                    "%s: no memory to write a block", w->name);
    }
    for (size_t i = 0; i < n; i++)
        offsets[i] = e->offsets[i] - e->offsets[0];
    w->index[w->n_blocks++] = w->at;
    descant_status status = put_block(w, e, offsets);
    memory_give(offsets);
    return status;
}

static descant_status finish(struct cache_writer *w)
{
    struct tail tail = {.n_blocks = w->n_blocks};
    size_t bytes = w->n_blocks * sizeof *w->index;
    tail.index_sum = sum_of(w->index, bytes, tail.n_blocks);
    memcpy(tail.magic, tail_magic, sizeof tail.magic);
    descant_status status = put(w, w->index, bytes);
    return status == DESCANT_OK ? put(w, &tail, sizeof tail) : status;
}

void cache_drop(struct cache_writer *w)
{
    if (w)
        memory_give(w->index);
    memory_give(w);
}

descant_status cache_close(struct cache_writer *w)
{
    descant_status status = w->status == DESCANT_OK ? finish(w) : w->status;
    cache_drop(w);
    return status;
}

/* --- reading --- */

struct cache_file {
    const char *path;
    int fd;
    uint64_t bytes;             /* of the file, when it was opened */
    uint64_t *index;            /* n_blocks, and where the index begins */
    uint64_t n_blocks;
};

struct cache {
    const struct log *log;
    struct data_shape shape;
    struct cache_file *files;
    char *names;                /* the paths' own copy */
    size_t n_files;
    uint64_t n_blocks, epochs;  /* blocks of all files, of one epoch */
};

static descant_status corrupt(const struct cache *c, const struct cache_file *f,
                              const char *why)
{
    return log_fail(c->log, DESCANT_CORRUPT, "%s: %s", f->path, why);
}

static descant_status read_at(const struct cache *c, const struct cache_file *f,
                              uint64_t at, void *into, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t more = pread(f->fd, (char *)into + done, n - done, (off_t)(at + done));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return log_fail(c->log, DESCANT_SYSTEM, "%s: cannot be read: %s", f->path,
                            strerror(errno));
        if (more == 0)
            return corrupt(c, f, "the cache is cut off");
        done += (size_t)more;
    }
    return DESCANT_OK;
}

/* The first file's shape becomes the cache's, and those of the others must be the
 * same. */
static descant_status read_head(struct cache *c, const struct cache_file *f)
{
    struct head h;
    if (f->bytes < sizeof h + sizeof(struct tail))
        return corrupt(c, f, "not a cache: too short");
    descant_status status = read_at(c, f, 0, &h, sizeof h);
    if (status != DESCANT_OK)
        return status;
    if (memcmp(h.magic, cache_magic, sizeof h.magic) != 0)
        return corrupt(c, f, "not a cache");
    if (h.version != VERSION)
        return corrupt(c, f, "a cache of another version or kind of machine");
    if (h.sum != sum_of(&h, offsetof(struct head, sum), 0) || h.n_dense < 0 ||
        h.n_fields < 0 || h.n_classes < 1)
        return corrupt(c, f, "the cache's head is damaged");
    struct data_shape s = {.n_dense = h.n_dense, .n_fields = h.n_fields,
                           .n_classes = h.n_classes, .bags = h.bags,
                           .plain_ids = h.plain_ids};
    if (f != c->files &&
        (s.n_dense != c->shape.n_dense || s.n_fields != c->shape.n_fields ||
         s.n_classes != c->shape.n_classes || s.bags != c->shape.bags ||
         s.plain_ids != c->shape.plain_ids))
        return log_fail(c->log, DESCANT_INVALID, "%s: its shape is not that of %s",
                        f->path, c->files->path);
    c->shape = s;
    return DESCANT_OK;
}

/* The number of blocks is compared with the file's size before memory is taken for it.
 * The places must begin behind the head and rise, each with room for a block's head:
 * read_block relies on that. */
static descant_status read_index(struct cache *c, struct cache_file *f)
{
    struct tail t;
    uint64_t end = f->bytes - sizeof t;
    descant_status status = read_at(c, f, end, &t, sizeof t);
    if (status != DESCANT_OK)
        return status;
    if (memcmp(t.magic, tail_magic, sizeof t.magic) != 0)
        return corrupt(c, f, "the cache is cut off");
    if (t.n_blocks > (end - sizeof(struct head)) / sizeof *f->index)
        return corrupt(c, f, "the cache's tail is damaged");
    size_t bytes = (size_t)t.n_blocks * sizeof *f->index;
    f->index = memory_take(bytes + sizeof *f->index);
    if (!f->index)
        return log_fail(c->log, DESCANT_MEMORY, "%s: no memory for its index", f->path);
    f->n_blocks = t.n_blocks;
    status = read_at(c, f, end - bytes, f->index, bytes);
    if (status != DESCANT_OK)
        return status;
    f->index[t.n_blocks] = end - bytes;
    bool rises = f->index[0] == sizeof(struct head);
    for (uint64_t k = 0; k < f->n_blocks && rises; k++)
        rises = f->index[k] <= f->index[k + 1] &&
                f->index[k + 1] - f->index[k] >= sizeof(struct block_head);
    if (t.index_sum != sum_of(f->index, bytes, t.n_blocks) || !rises)
        return corrupt(c, f, "the cache's index is damaged");
    return DESCANT_OK;
}

static descant_status open_all(struct cache *c, const struct data_options *o)
{
    size_t bytes = 0;
    for (size_t i = 0; i < o->n_paths; i++)
        bytes += strlen(o->paths[i]) + 1;
    c->names = memory_take(bytes);
    c->files = memory_take_array(o->n_paths, sizeof *c->files);
    if (!c->names || !c->files)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for the names of the input");
    char *at = c->names;
    for (; c->n_files < o->n_paths; at += strlen(at) + 1) {
        struct cache_file *f = &c->files[c->n_files];
        struct stat stat;
        f->path = strcpy(at, o->paths[c->n_files++]);
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
        if (f->fd < 0 || fstat(f->fd, &stat) != 0)
            return log_fail(c->log, DESCANT_SYSTEM, "%s: %s", f->path, strerror(errno));
        f->bytes = (uint64_t)stat.st_size;
        descant_status status = read_head(c, f);
        if (status == DESCANT_OK)
            status = read_index(c, f);
        c->n_blocks += f->n_blocks;
        if (status != DESCANT_OK)
            return status;
    }
    return DESCANT_OK;
}

descant_status cache_open(struct cache **out, const struct data_options *o,
                          struct data_shape *shape)
{
    struct cache *c = memory_take(sizeof *c);
    if (!c)
        return log_fail(o->log, DESCANT_MEMORY, "no memory for a reader");
    c->log = o->log;
    c->epochs = o->epochs > 0 ? (uint64_t)o->epochs : 1;
    descant_status status = open_all(c, o);
    if (status != DESCANT_OK) {
        cache_fini(c);
        return status;
    }
    *shape = c->shape;
    *out = c;
    return DESCANT_OK;
}

void cache_fini(struct cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_files; i++) {
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
        memory_give(c->files[i].index);
    }
    memory_give(c->files);
    memory_give(c->names);
    memory_give(c);
}

uint64_t cache_chunks(const struct cache *c)
{
    return c->n_blocks * c->epochs;
}

/* Whether the block's arrays fill its `room` bytes exactly. The first test keeps the
 * products of sizes_of from overflowing. */
static bool fits(const struct cache *c, const struct block_head *h, uint64_t room)
{
    size_t sizes[ARRAYS];
    uint64_t left = room,
             fields = (uint64_t)c->shape.n_fields + (uint64_t)c->shape.n_dense + 1;
    if (h->n > room / fields || h->n_ids > room)
        return false;
    sizes_of(h, &c->shape, sizes);
    for (int i = 0; i < ARRAYS; i++) {
        if (sizes[i] > left)
            return false;
        left -= sizes[i];
    }
    uint64_t plain = h->n * (uint64_t)c->shape.n_fields;
    bool ids = h->has & HAS_IDS || plain == 0;
    return left == 0 && ids && (h->has & HAS_OFFSETS || h->n_ids == plain);
}

/* NaN and Inf have all bits of the exponent set, and no other float has. */
static bool finite_all(const float *x, size_t bytes)
{
    static const uint32_t exponent = 0x7f800000;
    bool bad = false;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

/* Tests in this order: the head's sum, and its sizes, before memory is taken for them;
 * the sum of the arrays, and offsets that lead out of no array; then what a model may
 * rely on, that labels are classes and no value is NaN or Inf. */
static descant_status read_block(const struct cache *c, const struct cache_file *f,
                                 uint64_t k, struct block *block)
{
    struct block_head h;
    size_t sizes[ARRAYS];
    void *arrays[ARRAYS];
    uint64_t sum = 0, at = f->index[k] + sizeof h;
    descant_status status = read_at(c, f, f->index[k], &h, sizeof h);
    if (status != DESCANT_OK)
        return status;
    if (h.sum != sum_of(&h, offsetof(struct block_head, sum), k + 1) ||
        !fits(c, &h, f->index[k + 1] - at))
        return corrupt(c, f, "the head of a block is damaged");
    sizes_of(&h, &c->shape, sizes);
    for (int i = 0; i < ARRAYS; i++) {
        arrays[i] = rows_take(block, i, sizes[i], 0);
        if (!arrays[i])
            return log_fail(c->log, DESCANT_MEMORY, "no memory for a block");
        status = read_at(c, f, at, arrays[i], sizes[i]);
        if (status != DESCANT_OK)
            return status;
        sum = sum_of(arrays[i], sizes[i], sum);
        at += sizes[i];
    }
    uint64_t n = h.has & HAS_OFFSETS ? h.n * (uint64_t)c->shape.n_fields : 0;
    const uint32_t *offsets = arrays[ROWS_OFFSETS];
    const float *labels = arrays[ROWS_LABELS];
    float most = c->shape.n_classes > 2 ? (float)(c->shape.n_classes - 1) : 1;
    bool good = !(h.has & HAS_OFFSETS) || (offsets[0] == 0 && offsets[n] == h.n_ids);
    for (uint64_t i = 0; i < n; i++)
        good &= offsets[i] <= offsets[i + 1];
    if (sum != h.arrays_sum || !good)
        return corrupt(c, f, "a block is damaged");
    for (size_t i = 0; i < h.n; i++)
        good &= labels[i] >= 0 && labels[i] <= most && labels[i] == floorf(labels[i]);
    if (!good || !finite_all(arrays[ROWS_DENSE], sizes[ROWS_DENSE]) ||
        !finite_all(arrays[ROWS_VALUES], sizes[ROWS_VALUES]))
        return corrupt(c, f, "a block has NaN, Inf, or a label of no class");
    block->examples =
        (struct examples){.n = (size_t)h.n,
                          .n_dense = c->shape.n_dense,
                          .n_fields = c->shape.n_fields,
                          .dense = c->shape.n_dense ? arrays[ROWS_DENSE] : NULL,
                          .labels = labels,
                          .ids = h.has & HAS_IDS ? arrays[ROWS_IDS] : NULL,
                          .offsets = h.has & HAS_OFFSETS ? offsets : NULL,
                          .values = h.has & HAS_VALUES ? arrays[ROWS_VALUES] : NULL};
    return DESCANT_OK;
}

enum data_got cache_read(struct cache *c, uint64_t chunk, struct block *block,
                         descant_status *status)
{
    if (chunk >= cache_chunks(c))
        return DATA_END;
    const struct cache_file *f = c->files;
    uint64_t k = chunk % c->n_blocks;
    for (; k >= f->n_blocks; f++)
        k -= f->n_blocks;
    *status = read_block(c, f, k, block);
    block->lines = block->examples.n;
    return *status == DESCANT_OK ? DATA_BLOCK : DATA_FAILED;
}
