/* SPDX-License-Identifier: MIT */
/* Names of hosts as Slurm and people write them: "a,b", "node[1-3,7]",
 * "rack[0-1]n[01-16]". A list has items with commas between them. Each bracket of an item
 * stands for the numbers in it, the last bracket counting fastest; a number has at least
 * as many digits as the first one of its range. Commas in brackets belong to the
 * brackets. */
#include "base/base.h"

#include <ctype.h>
#include <string.h>

enum { BRACKETS = 4, DIGITS = 9, RANGE = 1 << 16 };

struct range {
    int64_t first, n;
    int digits;
};

/* Reads "7" or "01-16" at *at, which moves behind it. */
static bool read_range(const char **at, struct range *range)
{
    int64_t ends[2];
    int digits[2];

    for (int k = 0; k < 2; k++) {
        size_t n = strspn(*at, "0123456789");
        if (n == 0 || n > DIGITS)
            return false;
        ends[k] = 0;
        digits[k] = (int)n;
        for (; n; n--)
            ends[k] = ends[k] * 10 + *(*at)++ - '0';
        if (k == 0 && **at != '-') {
            ends[1] = ends[0];
            break;
        }
        *at += k == 0;
    }
    *range = (struct range){ends[0], ends[1] - ends[0] + 1, digits[0]};
    return range->n > 0 && range->n <= RANGE;
}

/* Returns how many numbers a bracket has; *at is behind its '['. Writes number k; -1:
 * only counts. 0: it is no bracket. */
static int64_t read_bracket(const char **at, int64_t k, char *to, size_t room)
{
    struct range range;
    int64_t n = 0;

    do {
        if (!read_range(at, &range))
            return 0;
        if (k >= n && k < n + range.n)
            snprintf(to, room, "%0*lld", range.digits, (long long)(range.first + k - n));
        n += range.n;
    } while (n <= RANGE && *(*at)++ == ',');
    return n <= RANGE && (*at)[-1] == ']' ? n : 0;
}

/* Returns the number of hosts of the item at *at, which moves behind the item; 0: it is
 * none. n gets the count of each bracket. */
static int64_t count(const char **at, int64_t n[BRACKETS], int *n_brackets)
{
    int64_t all = 1;
    const char *begin = *at;

    *n_brackets = 0;
    while (**at && **at != ',') {
        if (!isgraph((unsigned char)**at) || **at == ']' || *n_brackets == BRACKETS)
            return 0;
        if (*(*at)++ != '[')
            continue;
        n[*n_brackets] = read_bracket(at, -1, NULL, 0);
        all *= n[*n_brackets];
        if (all == 0 || all > RANGE)
            return 0;
        (*n_brackets)++;
    }
    return *at > begin ? all : 0;
}

/* Host k of an item that has been counted. False: its name is too long. */
static bool write_host(const char *at, int64_t k, const int64_t n[BRACKETS],
                       int n_brackets, char *host, size_t room)
{
    int64_t which[BRACKETS];
    size_t length = 0;

    for (int b = n_brackets - 1; b >= 0; k /= n[b--])
        which[b] = k % n[b];
    for (int b = 0; *at && *at != ',' && length + 1 < room;) {
        if (*at != '[') {
            host[length++] = *at++;
            continue;
        }
        at++;
        host[length] = 0;
        read_bracket(&at, which[b++], host + length, room - length);
        length += strlen(host + length);
    }
    host[length] = 0;
    return length + 1 < room;
}

enum hostlist hostlist_host(const char *list, int64_t k, char *host, size_t room)
{
    int64_t n[BRACKETS];
    int n_brackets;

    for (const char *at = list; *at; at += *at == ',') {
        const char *item = at;
        int64_t all = count(&at, n, &n_brackets);
        if (all == 0 || (*at == ',' && !at[1]))
            return HOSTLIST_BAD;
        if (k < all)
            return write_host(item, k, n, n_brackets, host, room) ? HOSTLIST_HOST
                                                                  : HOSTLIST_BAD;
        k -= all;
    }
    return HOSTLIST_END;
}
