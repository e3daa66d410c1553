/* SPDX-License-Identifier: MIT */
/* Sparse text: one example a line, a label and pairs between spaces or tabs.
 *
 *   libsvm   label index:value index:value ...     one bag an example
 *   libffm   label field:index:value ...           a bag a field, 0 to n_fields - 1
 *
 * As in SVMlight's files, a word that begins with '#' begins a comment, up to the line's
 * end, and libsvm's first pair may be qid:N, a query's number, which is no feature.
 *
 * A line that is only to be scored may be without a label: its first word is a pair, or
 * it begins with a space, or it is empty and comes after such a line. Labels are 0 and 1,
 * or -1 and +1; in libsvm also class numbers, if n_classes says so. An index is a number
 * below 2^32 as it is, or, where indexes are hashed, any token. A value is a decimal
 * number up to LARGEST, with or without an exponent; nan and inf are none. A line without
 * pairs is an example without features. Pairs may come in any order; those of one field
 * keep theirs: they are collected, counted a field, and put in place, which is a counting
 * sort.
 *
 * Numbers are read here and not by strtod, which follows the program's locale. Up to 18
 * digits are an integer, exactly; with a power of ten that a double has exactly (10^22)
 * the result is rounded once. */
#include "data/reader.h"

#include <math.h>

static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Sums of its squares fit in a float. */
#define LARGEST 1e16

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* Digits at *at: those that fit into *mantissa, and how many did not. Their number. */
static int digits(const char **at, const char *end, uint64_t *mantissa, int *dropped)
{
    const char *from = *at;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (*mantissa < UINT64_C(100000000000000000))
            *mantissa = 10 * *mantissa + (uint64_t)(**at - '0');
        else
            ++*dropped;
    return (int)(*at - from);
}

/* mantissa * 10^exponent. Beyond the table pow rounds, too; what is smaller than any
 * float becomes 0. */
static double scaled(uint64_t mantissa, int exponent)
{
    double x = (double)mantissa;
    if (mantissa == 0)
        return 0;
    if (exponent >= 0)
        return exponent <= 22 ? x * tens[exponent] : x * pow(10, exponent);
    if (exponent >= -22)
        return x / tens[-exponent];
    return exponent < -300 ? 0 : x * pow(10, exponent);
}

/* All of [at, end) must be the number. */
static bool real(const char *at, const char *end, float *out)
{
    uint64_t mantissa = 0, power = 0;
    int dropped = 0, lost = 0, none = 0;
    bool negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    int n = digits(&at, end, &mantissa, &dropped), exponent = dropped;
    if (at < end && *at == '.') {
        at++;
        int after = digits(&at, end, &mantissa, &lost);
        n += after;
        exponent -= after - lost;
    }
    if (n == 0)
        return false;
    if (at < end && (*at | 32) == 'e') {
        at++;
        bool down = at < end && *at == '-';
        at += at < end && (*at == '-' || *at == '+');
        if (digits(&at, end, &power, &none) == 0)
            return false;
        int shift = power > 100000 ? 100000 : (int)power;
        exponent += down ? -shift : shift;
    }
    double x = scaled(mantissa, exponent);
    if (at != end || !(x <= LARGEST))
        return false;
    *out = (float)(negative ? -x : x);
    return true;
}

/* All of [at, end) must be a number below 2^32, of at most 10 digits. */
static bool whole(const char *at, const char *end, uint32_t *out)
{
    uint64_t x = 0;
    if (at == end || end - at > 10)
        return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return false;
        x = 10 * x + (uint64_t)(*at - '0');
    }
    *out = (uint32_t)x;
    return x <= UINT32_MAX;
}

static bool label(struct parser *parser, const char *at, const char *end, float *out)
{
    int classes = parser->shape->n_classes, shown = end - at > 20 ? 20 : (int)(end - at);
    float x;
    bool good = real(at, end, &x);
    if (classes > 1) {
        good = good && x >= 0 && x < (float)classes && x == (float)(int)x;
        *out = x;
        return good || bad_line(parser, "label '%.*s': allowed is 0 to %d", shown, at,
                                classes - 1);
    }
    good = good && (x == 0 || x == 1 || x == -1);
    *out = good && x > 0;
    return good ||
           bad_line(parser, "label '%.*s': allowed is 0 and 1, or -1 and +1", shown, at);
}

static bool bad_pair(struct parser *parser, size_t k, const char *at, const char *end,
                     const char *what)
{
    int shown = end - at > 40 ? 40 : (int)(end - at);
    return bad_line(parser, "pair %zu: '%.*s'%s %s", k + 1, shown, at,
                    end - at > 40 ? "..." : "", what);
}

/* index:value, in [at, end). */
static bool index_and_value(struct parser *parser, size_t k, const char *at,
                            const char *end, struct pair *pair)
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    if (!colon || colon == at)
        return bad_pair(parser, k, at, end, "is not index:value");
    if (parser->options->hash)
        pair->id = data_hash(pair->field, at, (size_t)(colon - at));
    else if (!whole(at, colon, &pair->id))
        return bad_pair(parser, k, at, colon, "is not a whole number below 2^32");
    if (!real(colon + 1, end, &pair->value))
        return bad_pair(parser, k, colon + 1, end, "is not a number, or too large");
    return true;
}

static bool with_field(struct parser *parser, size_t k, const char *at, const char *end,
                       struct pair *pair)
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    if (!colon)
        return bad_pair(parser, k, at, end, "is not field:index:value");
    uint32_t fields = (uint32_t)parser->shape->n_fields;
    if (!whole(at, colon, &pair->field) || pair->field >= fields) {
        char what[64];
        snprintf(what, sizeof what, "is not a field: allowed is 0 to %u", fields - 1);
        return bad_pair(parser, k, at, colon, what);
    }
    return index_and_value(parser, k, colon + 1, end, pair);
}

/* The pairs as bags of example rows->n, which is counted. */
static bool place(struct parser *parser, size_t n)
{
    struct rows *rows = &parser->rows;
    size_t fields = (size_t)rows->n_fields;
    if (!rows_grow_ids(rows, n))
        return parser->no_memory = true, false;
    uint32_t *next = parser->counts, *offsets = rows->offsets + rows->n * fields;
    memset(next, 0, fields * sizeof *next);
    for (size_t i = 0; i < n; i++)
        next[parser->pairs[i].field]++;
    for (size_t f = 0; f < fields; f++) {
        offsets[f + 1] = offsets[f] + next[f];
        next[f] = offsets[f];
    }
    for (size_t i = 0; i < n; i++) {
        const struct pair *pair = &parser->pairs[i];
        uint32_t at = next[pair->field]++;
        rows->ids[at] = pair->id;
        rows->values[at] = pair->value;
    }
    rows->n_ids += n;
    rows->n++;
    return true;
}

static const char *word_end(const char *at, const char *end)
{
    while (at < end && !is_space(*at))
        at++;
    return at;
}

/* A line of libffm where `fields`, else of libsvm. `bare`: the line has no label, for its
 * first word has a colon, or it begins with a space, or it is empty in a file that has
 * had such a line. */
static bool line(struct parser *parser, const char *at, const char *end, bool fields)
{
    struct rows *rows = &parser->rows;
    size_t n = 0;
    if (rows->n == rows->n_room && !rows_grow(rows))
        return parser->no_memory = true, false;
    const char *stop = word_end(at, end);
    bool bare = at == end ? parser->bare
                          : at == stop || memchr(at, ':', (size_t)(stop - at)) != NULL;
    rows->labels[rows->n] = 0;
    if (bare ? !without_label(parser) : !label(parser, at, stop, &rows->labels[rows->n]))
        return false;
    parser->bare |= bare;
    stop = bare ? at : stop;
    for (at = stop;; at = stop) {
        while (at < end && is_space(*at))
            at++;
        if (at == end || *at == '#')
            return place(parser, n);
        stop = word_end(at, end);
        if (!fields && n == 0 && stop - at > 4 && memcmp(at, "qid:", 4) == 0)
            continue;
        if (!memory_grow(&parser->pairs, &parser->pairs_room, n, n + 1,
                         sizeof *parser->pairs))
            return parser->no_memory = true, false;
        parser->pairs[n].field = 0;
        if (!(fields ? with_field : index_and_value)(parser, n, at, stop,
                                                     &parser->pairs[n]))
            return false;
        n++;
    }
}

bool libsvm_line(struct parser *parser, const char *at, const char *end)
{
    return line(parser, at, end, false);
}

bool libffm_line(struct parser *parser, const char *at, const char *end)
{
    return line(parser, at, end, true);
}

/* index:value is LIBSVM, field:index:value LIBFFM. */
static enum data_format pair_format(const char *at, const char *end)
{
    const char *first = memchr(at, ':', (size_t)(end - at));
    if (!first)
        return DATA_AUTO;
    const char *second = memchr(first + 1, ':', (size_t)(end - first - 1));
    const char *index = second ? first + 1 : at, *value = second ? second + 1 : first + 1;
    uint32_t field;
    float x;

    if (index == value - 1 || !real(value, end, &x) ||
        (second && !whole(at, first, &field)))
        return DATA_AUTO;
    return second ? DATA_LIBFFM : DATA_LIBSVM;
}

/* A line has a format if all its words but the label are pairs of one kind. A line
 * without a pair has none. */
enum data_format sparse_or_none(const char *at, const char *end)
{
    enum data_format format = DATA_AUTO;
    float x;

    for (const char *from = at, *stop; at < end; at = stop) {
        while (at < end && is_space(*at))
            at++;
        if (at < end && *at == '#')
            break;
        stop = word_end(at, end);
        if (at == end || (at == from && real(at, stop, &x)))
            continue;
        enum data_format pair = pair_format(at, stop);
        if (pair == DATA_AUTO || (format != DATA_AUTO && pair != format))
            return DATA_AUTO;
        format = pair;
    }
    return format;
}
