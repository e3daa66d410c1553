/* SPDX-License-Identifier: MIT */
/* What a rank that lies sends in place of a message, as bytes tell: it is lost, doubled,
 * longer, shorter, another one of before; a bit or a number of it is another one, near to
 * some bound; or a word goes before it that nobody expects. */
#include "lies.h"

#include <string.h>

enum lie { LIE_LOSE, LIE_TWICE, LIE_FLIP, LIE_SET, LIE_SET_LONG, LIE_LONGER, LIE_SHORTER,
           LIE_OTHER_WAY, LIE_MORE, LIE_AGAIN, LIE_KIND, N_LIES };

enum { WORDS_MORE = 200 };

unsigned lies_next(struct lies *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->bytes++;
}

static unsigned next_two(struct lies *s)
{
    unsigned high = lies_next(s);
    return high << 8 | lies_next(s);
}

/* A number that is near to some bound, or any. */
static int64_t number(struct lies *s)
{
    const int64_t numbers[] = {0,
                               1,
                               2,
                               3,
                               4,
                               16,
                               24,
                               255,
                               (int64_t)s->floats,
                               (int64_t)s->floats - 1,
                               (int64_t)s->floats + 1,
                               -1,
                               -2,
                               -16,
                               INT32_MAX,
                               INT32_MIN,
                               UINT32_MAX,
                               INT64_MAX,
                               INT64_MIN,
                               INT64_C(1) << 32,
                               INT64_C(1) << 40,
                               INT64_C(0x7ff8000000000000),
                               INT64_C(0x7ff0000000000000),
                               INT64_C(0x3ff0000000000000),
                               0x7fc00000,
                               0x7f800000,
                               0x3f800000};
    unsigned which = lies_next(s), n = sizeof numbers / sizeof *numbers;

    return which < 2 * n ? numbers[which / 2] : next_two(s);
}

static void set(struct lies *s, struct letter *letter, size_t size)
{
    int64_t value;
    size_t at = next_two(s) * size;

    if (letter->bytes < size)
        return;
    at %= letter->bytes / size * size;
    value = number(s);
    memcpy(letter->p + at, &value, size);
}

static void say_more(struct lies *s, const struct letter *letter, struct letter *more)
{
    struct ranks_word word = {.what = lies_next(s) % 32, .protocol = RANKS_PROTOCOL};

    memcpy(more->p, &word, sizeof word);
    more->bytes = sizeof word + lies_next(s) % 3 * 8;
    memset(more->p + sizeof word, 0, more->bytes - sizeof word);
    more->to = (letter->to + (int)lies_next(s)) % s->size;
    for (unsigned n = lies_next(s) % 4; n > 0; n--)
        set(s, more, 4);
    more->times = lies_next(s) == 255 ? WORDS_MORE : 1;
}

static void say_again(struct lies *s, struct letter *more)
{
    const struct letter *old =
        &s->kept[lies_next(s) % (s->n_kept < LETTERS_KEPT ? s->n_kept : LETTERS_KEPT)];

    memcpy(more->p, old->p, old->bytes);
    more->to = old->to;
    more->tag = old->tag;
    more->bytes = old->bytes;
    more->times = 1;
}

static void keep(struct lies *s, const struct letter *letter)
{
    unsigned k = s->n_kept++ % LETTERS_KEPT;

    s->kept[k] = *letter;
    s->kept[k].p = memcpy(s->memory[k], letter->p, letter->bytes);
}

static void lie_once(struct lies *s, struct letter *letter, struct letter *more)
{
    uint32_t kind;
    size_t at, by;

    switch ((enum lie)(lies_next(s) % N_LIES)) {
    case LIE_LOSE:
        letter->times = 0;
        break;
    case LIE_TWICE:
        letter->times = 2 + (int)(lies_next(s) % 3);
        break;
    case LIE_FLIP:
        at = next_two(s) % letter->bytes;
        letter->p[at] ^= (unsigned char)(1U << lies_next(s) % 8);
        break;
    case LIE_SET:
        set(s, letter, 4);
        break;
    case LIE_SET_LONG:
        set(s, letter, 8);
        break;
    case LIE_LONGER:
        by = 1 + next_two(s) % 5000;
        by = letter->bytes + by > LETTER_ROOM ? 0 : by;
        memset(letter->p + letter->bytes, 0, by);
        letter->bytes += by;
        break;
    case LIE_SHORTER:
        letter->bytes -= 1 + next_two(s) % letter->bytes;
        break;
    case LIE_OTHER_WAY:
        letter->to = (letter->to + 1) % s->size;
        letter->tag = TAG_WORD + (int)(lies_next(s) % (TAG_ANSWER + 2));
        break;
    case LIE_MORE:
        say_more(s, letter, more);
        break;
    case LIE_AGAIN:
        say_again(s, more);
        break;
    case LIE_KIND:
        kind = lies_next(s) % N_WORDS;
        if (letter->bytes >= sizeof kind)
            memcpy(letter->p, &kind, sizeof kind);
        break;
    case N_LIES:
        break;
    }
}

void lies_alter(void *context, struct letter *letter, struct letter *more)
{
    struct lies *s = context;

    keep(s, letter);
    if (s->left == 0 || s->skip-- > 0)
        return;
    do
        lie_once(s, letter, more);
    while (letter->bytes && lies_next(s) % 8 == 7);
    s->skip = lies_next(s) % 64;
    /* nobody sends to itself */
    letter->to =
        letter->to == s->liar ? (letter->to + 1) % s->size : letter->to;
    more->to = more->to == s->liar ? (more->to + 1) % s->size : more->to;
}
