/* SPDX-License-Identifier: MIT */
/* What the tests of readers share: files in a temporary folder, plain and packed; what
 * was logged; what was read, as one number an example; texts of every kind. */
#ifndef HARNESS_DATA_H
#define HARNESS_DATA_H

#include "data/data.h"
#include "data/reader.h"
#include "harness/heard.h"

const char *put_text(const char *name, const char *text);
size_t pack_bytes(int kind, const void *from, size_t n, unsigned char *to, size_t room);
const char *put_packed(int kind, const char *name, const void *bytes, size_t n);

/* --- what is logged --- */

bool ends_with(const char *line, const char *end);

/* --- what is read: one number an example, so that runs can be compared --- */

struct data_seen {
    struct {
        uint64_t chunk, print;
    } *at;
    size_t n, room;
    uint64_t lines, bad;
    enum data_got got;
    descant_status status;
};

/* Reads the chunks for which mine says so; 0: all of them. */
struct data_seen read_chunks(const struct data_options *o, uint64_t seed, unsigned who);

struct data_seen read_file(const char *path, enum data_format format);
void assert_same(const struct data_seen *a, const struct data_seen *b);

int by_chunk(const void *a, const void *b);

/* Two readers, each with its chunks, put together in the chunks' order. */
struct data_seen read_shared(const struct data_options *o, uint64_t seed);

/* --- texts --- */

#define REST "\t4\t5\t6\t7\t8\t9\t10\t11\t12"
#define CATEGORIES                                                                       \
    "\ta\tb\tc\td\te\tf\tg\th\ti\tj\tk\tl\tm\tn\to\tp\tq\tr\ts\tt\tu\tv\tw\tx"
#define GOOD_CRITEO "1\t1\t2\t3\t4" REST CATEGORIES "\t1\t2"

/* Rows of every kind, some bad, some ends with '\r'; the last one has no end. */
char *criteo_text(int rows, size_t *n);

char *sparse_text(int rows, bool fields, size_t *n);
char *text_of(enum data_format format, int rows, size_t *n);

/* --- images and caches --- */

enum { IMAGES = 50, SIDE = 3 };

/* Images differ in their first pixel; number 7 is an even one, every other has much
 * contrast. */
int image_pixel(int number, int k);

const char *put_images(const char *name, int from, int n, int kind);
const char *make_cache(const char *name, const struct data_options *o, size_t batch);

#endif
