/* SPDX-License-Identifier: MIT */
/* Criteo's click logs: a label, 13 integers, 26 categories, between tabs, one example a
 * line.
 *
 *   label       0 or 1; a line that is only to be scored may have an empty one, or none:
 *               39 columns, as Criteo's own test files. Which of the two a file has, most
 *               lines of its first chunk say: a line that has lost its last column is not
 *               one without a label
 *   integer     at most 18 digits, may be negative or missing. The model gets log(1 + x)
 *               for x >= 0, -log(1 - x) for x < 0 (the sign is kept, and nothing jumps at
 *               0), and 0 where it is missing
 *   category    any token, hashed with its field's number; the empty one is a category as
 *               others
 *
 * Speed comes from three things. A line's tabs are found 64 bytes at a time, as bits of a
 * word, so that nothing later looks for an end. An integer of up to 8 digits is one word,
 * checked and converted without a loop. A token of up to 8 bytes is one word too: two
 * multiplications are its hash. log(1 + x) comes from a table for x < LOG_TABLE; both
 * ways it is the double precision logarithm, rounded once. All loads stay within
 * READER_PAD of the line's end. */
#include "data/reader.h"

#include <math.h>
#include <stdarg.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DENSE = 13, CATEGORIES = 26, BARE = DENSE + CATEGORIES, COLUMNS = 1 + BARE };

void criteo_init(struct parser *parser)
{
    for (int i = 0; i < LOG_TABLE; i++)
        parser->logs[i] = (float)log(1.0 + i);
    for (uint32_t i = 0; i < CATEGORIES; i++)
        parser->field_keys[i] = hash_key(i);
}

bool bad_line(struct parser *parser, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(parser->reason, sizeof parser->reason, format, list);
    va_end(list);
    return false;
}

bool without_label(struct parser *parser)
{
    parser->without_label += !parser->options->scoring;
    return parser->options->scoring || bad_line(parser, "there is no label");
}

/* Bit i: at[i] is a tab. */
static inline uint64_t tabs_in(const char *at)
{
    uint64_t mask = 0;
#if defined(__SSE2__)
    const __m128i tab = _mm_set1_epi8('\t');
    for (int i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i));
        mask |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, tab))
                << 16 * i;
    }
#else
    for (int i = 0; i < 64; i++)
        mask |= (uint64_t)(at[i] == '\t') << i;
#endif
    return mask;
}

/* Where the columns end; their number, at most one too many. */
static inline int split(const char *at, const char *end, const char **ends)
{
    int n = 0;
    for (; at < end; at += 64) {
        uint64_t mask = tabs_in(at);
        if (end - at < 64)
            mask &= (UINT64_C(1) << (end - at)) - 1;
        for (; mask; mask &= mask - 1) {
            if (n == COLUMNS)
                return COLUMNS + 1;
            ends[n++] = at + __builtin_ctzll(mask);
        }
    }
    ends[n] = end;
    return n + 1;
}

/* The number that n digits are, 1 <= n <= 8, or UINT64_MAX. Missing digits in front
 * become zeros; then pairs of digits, pairs of pairs, and halves are put together. */
static inline uint64_t digits8(const char *at, size_t n)
{
    uint64_t word = load_word(at);
    if (n < 8)
        word = word << (64 - 8 * n) | UINT64_C(0x3030303030303030) >> 8 * n;
    uint64_t x = word - UINT64_C(0x3030303030303030);
    if ((x | (x + UINT64_C(0x7676767676767676))) & UINT64_C(0x8080808080808080))
        return UINT64_MAX;
    x = x * 10 + (x >> 8);
    return ((x & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
            (x >> 16 & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >>
           32;
}

/* As digits8 for any number of digits up to 18, all of which fit. False: there are more,
 * or other bytes. */
static bool digits18(const char *at, size_t n, uint64_t *out)
{
    uint64_t x = 0;
    if (n > 18)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        x = 10 * x + (uint64_t)(at[i] - '0');
    }
    *out = x;
    return true;
}

static bool bad_number(struct parser *parser, int column, const char *at, size_t n)
{
    size_t digits = 0, from = n > 0 && *at == '-';
    while (from + digits < n && at[from + digits] >= '0' && at[from + digits] <= '9')
        digits++;
    return bad_line(parser, "column %d: '%.*s'%s is %s", column + 1, n > 20 ? 20 : (int)n,
                    at, n > 20 ? "..." : "",
                    digits && from + digits == n ? "too large" : "not a whole number");
}

/* The feature of an integer's n bytes; false: they are no integer of up to 18 digits. */
static inline bool dense(struct parser *parser, const char *at, size_t n, float *out)
{
    if (n == 0) {
        *out = 0;
        return true;
    }
    size_t negative = *at == '-';
    uint64_t x = UINT64_MAX;
    at += negative;
    n -= negative;
    if (n - 1 < 8)              /* not 0: n - 1 is SIZE_MAX then */
        x = digits8(at, n);
    else if (n == 0 || !digits18(at, n, &x))
        return false;
    if (x == UINT64_MAX)
        return false;
    float y = x < LOG_TABLE ? parser->logs[x] : (float)log(1.0 + (double)x);
    *out = negative ? -y : y;
    return true;
}

/* Writes the reason. A line of 39 columns counts as one without a label where labels are
 * needed: the message about too many bad lines names that cause. */
static bool wrong_columns(struct parser *parser, int columns, bool empty)
{
    if (columns == 1)
        return bad_line(parser, "%s, criteo has %d columns with tabs between them",
                        empty ? "an empty line" : "a line without a tab", COLUMNS);
    if (parser->columns == BARE)
        return bad_line(parser,
                        "%d columns, but the file's first lines have %d, without a label",
                        columns, BARE);
    parser->without_label += columns == BARE && !parser->options->scoring;
    return bad_line(parser, "%s%d columns, criteo has %d",
                    columns > COLUMNS ? "more than " : "",
                    columns > COLUMNS ? COLUMNS : columns, COLUMNS);
}

static bool label(struct parser *parser, const char *at, size_t n, float *out)
{
    *out = n == 1 && *at == '1';
    if (n == 1 && (*at == '0' || *at == '1'))
        return true;
    if (n == 0)
        return without_label(parser);
    return bad_line(parser, "label '%.*s': allowed is 0 or 1", n > 20 ? 20 : (int)n, at);
}

int criteo_columns(const char *at, const char *end)
{
    const char *ends[COLUMNS + 1];
    size_t labelled = 0, bare = 0;
    for (const char *next; at < end; at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        int columns = split(at, stop ? stop : end, ends);
        labelled += columns == COLUMNS;
        bare += columns == BARE;
    }
    return bare > labelled ? BARE : labelled ? COLUMNS : 0;
}

bool criteo_line(struct parser *parser, const char *at, const char *end)
{
    const char *ends[COLUMNS + 1];
    int columns = split(at, end, ends);
    bool either = parser->options->scoring && parser->columns == 0 && columns == BARE;
    if (columns != (parser->columns ? parser->columns : COLUMNS) && !either)
        return wrong_columns(parser, columns, at == end);
    struct rows *rows = &parser->rows;
    if (rows->n == rows->n_room && !rows_grow(rows))
        return parser->no_memory = true, false;
    int first = columns == COLUMNS;     /* of the integers */
    rows->labels[rows->n] = 0;
    if (first && !label(parser, at, (size_t)(ends[0] - at), &rows->labels[rows->n]))
        return false;
    float *x = rows->dense + rows->n * DENSE;
    const char *from = first ? ends[0] + 1 : at;
    for (int i = 0; i < DENSE; from = ends[first + i++] + 1)
        if (!dense(parser, from, (size_t)(ends[first + i] - from), &x[i]))
            return bad_number(parser, first + i, from, (size_t)(ends[first + i] - from));
    uint32_t *ids = rows->ids + rows->n * CATEGORIES;
    for (int i = 0; i < CATEGORIES; i++) {
        from = ends[first + DENSE + i - 1] + 1;
        size_t n = (size_t)(ends[first + DENSE + i] - from);
        ids[i] = n <= 8 ? hash_short(parser->field_keys[i], from, n)
                        : data_hash((uint32_t)i, from, n);
    }
    rows->n++;
    if (parser->options->scoring)
        parser->columns = columns;
    return true;
}

bool criteo_header(const struct parser *parser, const char *at, const char *end)
{
    const char *ends[COLUMNS + 1];
    int columns = split(at, end, ends), numbers = columns - CATEGORIES;
    if (columns != COLUMNS && !(parser->options->scoring && columns == BARE))
        return false;
    for (int k = 0; k < numbers; k++) {
        const char *from = k ? ends[k - 1] + 1 : at;
        if (from == ends[k] || strchr("+-.0123456789", *from))
            return false;
    }
    return true;
}

enum data_format criteo_or_none(const char *at, const char *end)
{
    const char *ends[COLUMNS + 1];
    int columns = split(at, end, ends);
    return columns == COLUMNS || columns == BARE ? DATA_CRITEO : DATA_AUTO;
}
