/* SPDX-License-Identifier: MIT */
/* Readers: files into blocks of examples. An input is cut into numbered chunks, so that
 * several processes can share it: the process that claims a number reads that chunk and
 * no other. Nothing here has threads; a `struct data` belongs to one thread. */
#ifndef DATA_H
#define DATA_H

#include "base/base.h"
#include "base/examples.h"

enum data_format {
    DATA_AUTO,
    DATA_CRITEO,
    DATA_LIBSVM,
    DATA_LIBFFM,
    DATA_IDX,
    DATA_CACHE
};
extern const char *const data_format_names[];       /* "auto", "criteo", ... */

/* A chunk of text that was cut elsewhere (data_cut). */
struct data_text {
    const char *at;             /* whole lines; 64 bytes behind them can be loaded */
    size_t n;                   /* 0: they are lost */
    uint64_t lines;             /* before it, in its input */
};

struct data_options {
    const char *const *paths;       /* "-": stdin. Plain, gzip or zstd, seen by their
                                       content. A named pipe is for one reader alone */
    size_t n_paths;
    enum data_format format;        /* AUTO: by the first bytes, else by name. INVALID
                                       where these bytes are surely of another one */
    bool hash;                      /* libsvm, libffm: false takes indexes as they are */
    int n_fields;                   /* libffm: fields; others: ignored */
    int n_classes;                  /* libsvm: labels are 0 to n_classes - 1; below 2:
                                       they are 0 and 1, or -1 and +1 */
    size_t chunk_bytes;             /* of text, before compression; 0: 1 MiB */
    int epochs;                     /* IDX and all that can be read again; 0: 1 */
    uint64_t seed;                  /* IDX: order of each epoch; 0: the file's order */
    double max_bad;                 /* share of lines that may be bad, tested after 1000
                                       lines */
    bool scoring;                   /* labels may be missing, and are 0 then; a bad line
                                       is an example, too, so that each has its own:
                                       without features, its label NaN. max_bad holds all
                                       the same */
    const struct log *log;          /* bad lines: the first few, with file and line */
    /* of input that is read several times: the number of chunks whose bad lines and
     * headers are logged. NULL: each reader logs its own */
    _Atomic uint64_t *said;
    const _Atomic uint64_t *bytes;      /* (n_paths) a plain text is read so far, though
                                           it may have grown meanwhile. NULL: as it is
                                           when it is opened */
    const _Atomic uint64_t *known;      /* (n_paths) of each text has been read: see
                                           DATA_REST */
    void *shared;                   /* data_shared_bytes of zeroed memory of all processes
                                       that read the same input; needed for stdin, else
                                       NULL is fine */
    /* In place of stdin: chunk k of another process's, valid until the next call.
     * TIMEOUT: not yet, and it is asked again, unless `stopped`; another status: logged.
     * NULL: stdin is this process's own */
    descant_status (*fetch)(void *of, uint64_t chunk, struct data_text *text);
    void *fetch_of;
    bool (*stopped)(void *of);      /* asked some ten times a second while a pipe brings
                                       nothing: true gives the reading up. NULL: it
                                       waits */
    void *of;
};

struct data_shape {
    int n_dense, n_fields;
    int n_classes;                  /* 1: labels are 0 and 1 */
    bool bags;                      /* several ids a field, or values */
    bool plain_ids;
};

struct block {
    struct examples examples;       /* points into the block */
    uint64_t chunk;
    uint64_t lines, bad;            /* of this chunk; bad ones are not among the examples,
                                       but for scoring. A header is no line */
    void *memory[8];                /* the block's own arrays and their sizes */
    size_t room[8];
};

#define DATA_REST (UINT64_C(1) << 62)

enum data_got { DATA_BLOCK, DATA_END, DATA_FAILED };

struct data;

size_t data_shared_bytes(void);
/* Opens the files, settles the format by the options or the first bytes, and finds the
 * shape. The options, the names and the log's struct are copied; said, known, shared, of
 * and the log's user must last until data_close. After a failure, which is logged, *out
 * is as it was. */
descant_status data_open(struct data **out, const struct data_options *options);
void data_close(struct data *data);                     /* NULL is allowed */
const struct data_shape *data_shape(const struct data *data);
enum data_format data_format(const struct data *data);      /* never AUTO */

/* Whether the data can be opened again and be the same: no part of it is a pipe. */
bool data_lasts(const struct data *data);

/* The first bytes of a file, decompressed, none of a pipe; *format is the format that
 * they surely have, or AUTO. */
descant_status data_peek(const char *path, char *first, size_t room, size_t *n,
                         enum data_format *format, const struct log *log);

/* Chunks that there are, over all epochs; UINT64_MAX: not known before the end
 * (compressed text, stdin). chunk numbers given to data_read must rise; gaps are other
 * processes' chunks. */
uint64_t data_chunks(const struct data *data);

/* Bytes or examples: how far through the input chunk k is, 0 to 1; negative: not known.
 */
double data_place(const struct data *data, uint64_t chunk);

/* Reads and parses chunk k; of k | DATA_REST the lines that end behind the known bytes of
 * the file. DATA_END: the input ends before it. DATA_FAILED: logged, status in
 * data_status: a file that cannot be read, or more bad lines than max_bad. The caller
 * zeroes a block before its first use. Its examples are valid until its next use, which
 * takes the same memory again, or until block_fini. */
enum data_got data_read(struct data *data, uint64_t chunk, struct block *block);
descant_status data_status(const struct data *data);
/* The test of bad lines that DATA_END makes, for a reader that does not come to it
 * because another one has met the end. */
descant_status data_finish(struct data *data);
/* One of the bad lines, FILE:LINE: and why it is bad; "": there was none. Until close. */
const char *data_bad_line(const struct data *data);
void block_fini(struct block *block);

/* --- cut.c: stdin into chunks of text, for other processes to parse --- */

/* A chunk may be so much longer than chunk_bytes. */
enum { DATA_LINE_MOST = 1 << 20 };

struct data_cutter;
/* Of the options: chunk_bytes, stopped, of and log. */
descant_status data_cut_open(struct data_cutter **out,
                             const struct data_options *options);
/* The next chunk, valid until the next call. FAILED: logged, and *status says what;
 * TIMEOUT: it was stopped. */
enum data_got data_cut(struct data_cutter *cutter, struct data_text *text,
                       descant_status *status);
void data_cut_close(struct data_cutter *cutter);        /* NULL is allowed */

/* The stated hash of the hashing trick: 32 bits from a field's number and the token's
 * bytes. */
uint32_t data_hash(uint32_t field, const char *token, size_t length);

/* --- cache.c: blocks as they come, to be read back as DATA_CACHE without parsing --- */

struct cache_writer;
/* Into the file, which is the caller's; the name is for messages, and is kept, too. */
descant_status cache_create(struct cache_writer **out, FILE *file, const char *name,
                            const struct data_shape *shape, const struct log *log);
descant_status cache_add(struct cache_writer *writer, const struct examples *examples);
/* Ends the file with its index, but where an add has failed; the first failure. */
descant_status cache_close(struct cache_writer *writer);
/* Without an index: no reader takes the file for a cache. NULL is allowed. */
void cache_drop(struct cache_writer *writer);
/* All that there is to read, once, into a cache; *n examples. */
descant_status cache_write(FILE *file, const char *name, const struct data_options *from,
                           uint64_t *n);

/* --- pack.c --- */

/* A stream onto `to` that compresses, as the ending of the name says, .gz or .zst. Its
 * fclose ends what is compressed, and leaves `to` open. `to` where the name says nothing;
 * NULL with errno. */
FILE *pack_open(FILE *to, const char *name);
/* False: the ending is that of another compression. */
bool pack_can(const char *name);

/* --- ctr.c: click logs from a planted model, in Criteo's format --- */

struct ctr_options {
    uint64_t rows, seed;        /* seed draws the rows, not the planted weights */
    uint64_t model;             /* the planted weights: the same for a training and a test
                                   set */
    double zipf;                /* exponent of the categories' frequencies */
    int64_t categories;         /* of the largest field */
    double noise;               /* of the planted logit */
    double positive;            /* wished share of clicks */
};

struct ctr_summary {
    uint64_t rows, clicks;      /* that were written */
    double best_logloss;        /* of the planted probabilities: the least possible */
};

struct ctr_options ctr_options_default(void);
/* Writes the rows to `out`, and sets the summary once all are written. INVALID: an option
 * is outside its range. */
descant_status ctr_generate(FILE *out, const struct ctr_options *options,
                            struct ctr_summary *summary, const struct log *log);

#endif
