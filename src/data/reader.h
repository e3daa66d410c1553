/* SPDX-License-Identifier: MIT */
/* For all readers: bytes (stream.c), text cut into chunks (input.c, stdin.c), arrays that
 * grow (rows.c), and the parsers of lines (criteo.c, sparse.c). Below data.h, not above
 * it. */
#ifndef READER_H
#define READER_H

#include "data/data.h"

#include <string.h>
#include <zlib.h>

#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum {
    READER_PAD = 64,            /* bytes after a text that may be loaded, not
                                   understood */
    LINE_LIMIT = DATA_LINE_MOST,        /* a longer line is a bad one */
    CHUNK_BYTES = 1 << 20,
    REASON_ROOM = 160,
};

/* --- stream.c: bytes of a descriptor, decompressed --- */

enum stream_kind { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };
enum { STREAM_RAW = 1 << 16, STREAM_MAGIC = 4 };

enum stream_kind stream_kind_of(const unsigned char *first, size_t n);

/* Where a decompressor's memory comes from: the heap (NULL), or a piece that all
 * processes see. */
struct reader_arena {
    size_t used, room, newest;  /* newest: where the piece taken last begins */
    unsigned char *memory;
};

struct stream {
    int fd;
    enum stream_kind kind;
    bool opened;                /* the kind is known, the decompressor made */
    bool raw_ended, finished;   /* no more from fd; no more at all */
    bool between;               /* at the end of a gzip member or a zstd frame */
    bool exhausted;             /* the decompressor could have no memory */
    uint64_t taken;             /* bytes read from fd */
    size_t at, filled;          /* in raw */
    z_stream gzip;
    ZSTD_DCtx *zstd;
    struct reader_arena *arena;
    /* the reader's own, for `stopped`; or NULL */
    const struct data_options *options;
    unsigned char raw[STREAM_RAW];
};

void stream_init(struct stream *stream, int fd, struct reader_arena *arena);
void stream_fini(struct stream *stream);        /* fd stays open */

/* Up to n bytes; *got is less only at the end. name is for messages. */
descant_status stream_read(struct stream *stream, void *into, size_t n, size_t *got,
                           const char *name, const struct log *log);

/* How long a file is by its first n bytes, some 64 KiB where it has so many. */
typedef size_t stream_length(const unsigned char *first, size_t n);
/* The whole of a file, decompressed, but no more than a byte above its length: so a small
 * file of a few bytes cannot fill the memory. memory_give it. */
descant_status stream_read_file(const char *path, stream_length *length,
                                unsigned char **bytes, size_t *n, const struct log *log);

/* --- input.c: chunks of text --- */

struct source {
    const char *path;
    uint64_t bytes;             /* as they are in the file */
    uint64_t n_chunks;          /* UINT64_MAX: not known yet */
    enum stream_kind kind;
    bool regular;
    int reported;               /* bad lines */
};

struct input {
    const struct log *log;
    const struct data_options *options;
    struct source *sources;
    char *names;                /* the paths' own copy */
    size_t n_sources, chunk_bytes;
    int epochs, pass;           /* pass: the epoch that is read, from 0 */
    size_t now;                 /* the source that is read; n_sources: between two
                                   passes */
    uint64_t first;             /* its first chunk's number */
    uint64_t pass_first;        /* this pass's */
    int fd;
    struct stream *stream;      /* NULL for plain regular files */
    char *text;                 /* bytes [base, base + filled) of the source */
    size_t room, filled;
    uint64_t base;
    uint64_t lines_at, lines;   /* that many line ends lie before lines_at */
    struct shared_input *shared;        /* stdin */
    bool own_shared;            /* the memory is this reader's alone */
    bool given;                 /* stdin of another process: options->fetch */
    const char *given_text;
};

struct lines {
    const char *at, *end;       /* whole lines; READER_PAD bytes after the end can be
                                   loaded */
    bool first;                 /* they begin the source */
};

descant_status input_init(struct input *input, const struct data_options *options);
void input_fini(struct input *input);
uint64_t input_chunks(const struct input *input);
double input_place(const struct input *input, uint64_t chunk);
bool input_lasts(const struct input *input);            /* all are regular files */

/* DATA_FAILED: logged, *status says what. */
enum data_got input_chunk(struct input *input, uint64_t chunk, struct lines *lines,
                          descant_status *status);
uint64_t input_line(struct input *input, const char *at);       /* its number, from 1 */
struct source *input_source(struct input *input);

/* The first bytes of a file, decompressed; none where it is no regular file. */
descant_status input_peek(const char *path, char *first, size_t room, size_t *n,
                          const struct log *log);

/* --- window.c --- */

descant_status input_room(struct input *input, size_t bytes);   /* grows text, keeps it */
uint64_t count_line_ends(const char *at, const char *end);

/* --- stdin.c --- */

descant_status stdin_init(struct input *input, void *shared);
void stdin_fini(struct input *input);
enum data_got stdin_chunk(struct input *input, struct lines *lines, uint64_t *chunk,
                          descant_status *status);

/* --- cut.c --- */

/* As input_chunk, of text that another process has cut. */
enum data_got given_chunk(struct input *input, uint64_t chunk, struct lines *lines,
                          descant_status *status);

/* --- rows.c: a block being filled --- */

enum { ROWS_DENSE, ROWS_LABELS, ROWS_IDS, ROWS_OFFSETS, ROWS_VALUES };

struct rows {
    struct block *block;
    size_t n, n_room;           /* examples */
    size_t n_ids, ids_room;
    int n_dense, n_fields;
    bool bags;
    float *dense, *labels, *values;     /* values: of bags only */
    uint32_t *ids, *offsets;
};

bool rows_begin(struct rows *rows, struct block *block, const struct data_shape *shape,
                size_t expected);
/* room for one more example, n == n_room */
bool rows_grow(struct rows *rows);
bool rows_grow_ids(struct rows *rows, size_t n);        /* room for n more ids */
/* one more, without features: its label is NaN */
bool rows_blank(struct rows *rows);
void rows_end(struct rows *rows);               /* sets block->examples */
void *rows_take(struct block *block, int slot, size_t bytes, size_t keep);

/* --- parsers: a line without its end is one example more, or a reason --- */

enum { LOG_TABLE = 4096 };

struct parser {
    const struct data_options *options;
    const struct data_shape *shape;
    struct rows rows;
    bool no_memory;
    char reason[REASON_ROOM];
    uint64_t field_keys[32];            /* criteo.c */
    int columns;                        /* scoring: of this file's lines; 0: of none
                                           yet */
    bool bare;                          /* scoring: a line of this file had no label
                                           (sparse.c) */
    uint64_t without_label;             /* lines that are bad for it */
    float logs[LOG_TABLE];              /* log(1 + i) */
    struct pair {                       /* sparse.c: a line's pairs as they come */
        uint32_t field, id;
        float value;
    } *pairs;
    size_t pairs_room;
    uint32_t *counts;                   /* of pairs a field */
};

/* Parses the line [at, end), behind which READER_PAD bytes can be loaded. True:
 * parser->rows has one example more. False: parser->reason says why the line is bad, or
 * no_memory is set, and rows->n is as it was. */
typedef bool parse_line(struct parser *parser, const char *at, const char *end);

void criteo_init(struct parser *parser);
parse_line criteo_line, libsvm_line, libffm_line;
/* The columns of most of the lines, of those with a label and those without; 0: there are
 * none. */
int criteo_columns(const char *at, const char *end);
/* The line names columns: none of those that have numbers has one, and none is empty. */
bool criteo_header(const struct parser *parser, const char *at, const char *end);
/* Whether the line is surely one of these formats: AUTO, it is none. */
enum data_format criteo_or_none(const char *at, const char *end);
enum data_format sparse_or_none(const char *at, const char *end);
bool bad_line(struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));      /* writes the reason; false */
/* the same, unless lines are only scored */
bool without_label(struct parser *parser);

/* --- idx.c, cache.c: formats that are no text --- */

/* Chunks of these may be read in any order. A failure is logged, and an open that fails
 * leaves *out as it was; both closing functions take NULL. */
struct idx;
descant_status idx_open(struct idx **out, const struct data_options *options,
                        struct data_shape *shape);
void idx_close(struct idx *idx);
uint64_t idx_chunks(const struct idx *idx);
enum data_got idx_read(struct idx *idx, uint64_t chunk, struct block *block,
                       descant_status *status);

struct cache;
enum { CACHE_MAGIC_BYTES = 8 };
extern const char cache_magic[CACHE_MAGIC_BYTES + 1];
descant_status cache_open(struct cache **out, const struct data_options *options,
                          struct data_shape *shape);
void cache_fini(struct cache *cache);
uint64_t cache_chunks(const struct cache *cache);
enum data_got cache_read(struct cache *cache, uint64_t chunk, struct block *block,
                         descant_status *status);

/* --- hash --- */

#define HASH_FIELD UINT64_C(0x9e3779b97f4a7c15)
#define HASH_LENGTH UINT64_C(0xd6e8feb86659fd93)
#define HASH_WORD UINT64_C(0xff51afd7ed558ccd)
#define HASH_END UINT64_C(0xc4ceb9fe1a85ec53)

/* Eight bytes of a token, at any address, as a little-endian number on every machine. */
static inline uint64_t load_word(const char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The part of a hash that depends on the field alone, so that a parser computes it once a
 * field. */
static inline uint64_t hash_key(uint32_t field)
{
    return ((uint64_t)field + 1) * HASH_FIELD;
}

static inline uint64_t hash_step(uint64_t h, uint64_t word)
{
    h = (h ^ word) * HASH_WORD;
    return h ^ h >> 32;
}

static inline uint32_t hash_end(uint64_t h)
{
    return (uint32_t)((h * HASH_END) >> 32);
}

/* Of at most 8 bytes, in memory where 8 bytes can be loaded: the same as data_hash. */
static inline uint32_t hash_short(uint64_t key, const char *token, size_t n)
{
    uint64_t h = key + n * HASH_LENGTH;
    if (n == 0)
        return hash_end(h ^ h >> 32);
    return hash_end(hash_step(h, load_word(token) & ~UINT64_C(0) >> (64 - 8 * n)));
}

#endif
