/* SPDX-License-Identifier: MIT */
/* The known word that is nearest to a misspelt one, by the number of slips: a letter too
 * many, too few, another one, or two that changed places (Damerau's distance, of adjacent
 * places). Capitals count as small letters, '_' as '-'. A word with more slips than a
 * quarter of its letters and one is another word, and no guess. */
#include "base/base.h"

#include <ctype.h>
#include <string.h>

enum { LONGEST = 32 };

static int letter(char c)
{
    return c == '_' ? '-' : tolower((unsigned char)c);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Rows of the table of distances between all beginnings; three of them are needed. */
static int slips(const char *a, size_t n, const char *b, size_t m)
{
    int rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *now = rows[2];

    for (size_t k = 0; k <= m; k++)
        last[k] = (int)k;
    for (size_t i = 1; i <= n; i++) {
        now[0] = (int)i;
        for (size_t k = 1; k <= m; k++) {
            bool other = letter(a[i - 1]) != letter(b[k - 1]);
            now[k] = least(last[k - 1] + other, 1 + least(last[k], now[k - 1]));
            if (i > 1 && k > 1 && letter(a[i - 1]) == letter(b[k - 2]) &&
                letter(a[i - 2]) == letter(b[k - 1]))
                now[k] = least(now[k], before[k - 2] + 1);
        }
        int *next = before;
        before = last;
        last = now;
        now = next;
    }
    return last[m];
}

void guess_try(struct guess *guess, const char *word, size_t length)
{
    if (!guess->length || guess->length > LONGEST || !length || length > LONGEST)
        return;
    int n = slips(guess->wrong, guess->length, word, length);
    if (n > 1 + (int)guess->length / 4 || n >= (int)guess->length ||
        (guess->best && n >= guess->n))
        return;
    guess->best = word;
    guess->best_length = length;
    guess->n = n;
}

void guess_choices(struct guess *guess, const char *choices)
{
    for (const char *at = choices; *at;) {
        size_t n = strcspn(at, "|");
        guess_try(guess, at, n);
        at += n + (at[n] == '|');
    }
}

const char *guess_text(struct guess *guess, const char *before)
{
    *guess->text = 0;
    if (guess->best)
        snprintf(guess->text, sizeof guess->text, " (did you mean %s%.*s?)", before,
                 (int)guess->best_length, guess->best);
    return guess->text;
}
