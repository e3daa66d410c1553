/* SPDX-License-Identifier: MIT */
/* Lists of hosts: each form that Slurm writes, every list of a small grammar beside a
 * naive expansion, and what is no list. */
#include "base/base.h"
#include "harness/suite.h"

enum { ROOM = 256 };

/* All hosts with spaces between them; "BAD" in place of what is no list. */
static const char *all_of(const char *list, char *text, size_t room)
{
    char host[ROOM];
    size_t n = 0;
    enum hostlist what = HOSTLIST_END;

    *text = 0;
    for (int64_t k = 0; (what = hostlist_host(list, k, host, sizeof host)) == HOSTLIST_HOST;
         k++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", n ? " " : "", host);
    if (what == HOSTLIST_BAD)
        snprintf(text + n, room - n, "%sBAD", n ? " " : "");
    return text;
}

static const struct {
    const char *list, *hosts;
} known[] = {
    {"", ""},
    {"alpha", "alpha"},
    {"alpha,beta", "alpha beta"},
    {"a[1-3,7]b,c", "a1b a2b a3b a7b c"},
    {"node[01-03]", "node01 node02 node03"},
    {"node[8-11]", "node8 node9 node10 node11"},
    {"node[008-010,2]", "node008 node009 node010 node2"},
    {"n[1-2]r[0,3]", "n1r0 n1r3 n2r0 n2r3"},
    {"rack[0-1]n[01-02]x,login", "rack0n01x rack0n02x rack1n01x rack1n02x login"},
    {"a[5]", "a5"},
    {"[1-2]", "1 2"},
    {"me@a,::1,b.example.org", "me@a ::1 b.example.org"},
    {"a[1-2", "BAD"},
    {"a[1-2,", "BAD"},
    {"a[]", "BAD"},
    {"a[1,]", "BAD"},
    {"a[x]", "BAD"},
    {"a[3-1]", "BAD"},
    {"a[1-]", "BAD"},
    {"a[-1]", "BAD"},
    {"a[1-2-3]", "BAD"},
    {"a]", "BAD"},
    {"a[[1]]", "BAD"},
    {"a b", "BAD"},
    {",a", "BAD"},
    {"a,,b", "a BAD"},
    {"a,", "BAD"},
    {"a[1234567890]", "BAD"},
    {"a[0-99999]", "BAD"},
    {"a[0-999]b[0-999]", "BAD"},
    {"a[1]b[1]c[1]d[1]", "a1b1c1d1"},
    {"a[1]b[1]c[1]d[1]e[1]", "BAD"},
};

START_TEST(known_lists)
{
    char text[1024];
    ck_assert_str_eq(all_of(known[_i].list, text, sizeof text), known[_i].hosts);
}
END_TEST

START_TEST(a_host_far_behind)
{
    char host[ROOM];
    ck_assert_int_eq(hostlist_host("n[0-65535]", 65535, host, sizeof host), HOSTLIST_HOST);
    ck_assert_str_eq(host, "n65535");
    ck_assert_int_eq(hostlist_host("n[0-65535]", 65536, host, sizeof host), HOSTLIST_END);
    ck_assert_int_eq(hostlist_host("n[0-65535],m", 65536, host, sizeof host),
                     HOSTLIST_HOST);
    ck_assert_str_eq(host, "m");
}
END_TEST

START_TEST(names_that_do_not_fit)
{
    static const char *const lists[][2] = {{"abcdefgh", "abcdefgh"},
                                           {"abc[12345]", "abc12345"},
                                           {"abcdefg[1]", "abcdefg1"},
                                           {"a[10]bcdefg", "a10bcdefg"}};
    char host[ROOM];
    for (int i = 0; i < N(lists); i++)
        for (size_t room = 1; room <= 16; room++) {
            memset(host, 'x', sizeof host);
            bool fits = strlen(lists[i][1]) + 1 < room;
            ck_assert_int_eq(hostlist_host(lists[i][0], 0, host, room),
                             fits ? HOSTLIST_HOST : HOSTLIST_BAD);
            ck_assert_int_eq(host[room], 'x');
            if (fits)
                ck_assert_str_eq(host, lists[i][1]);
        }
}
END_TEST

/* --- every list of one or two items, each of up to two parts --- */

static const struct {
    const char *text, *words[4];
} parts[] = {
    {"a", {"a"}},          {"b7", {"b7"}},
    {"[1]", {"1"}},        {"[0-2]", {"0", "1", "2"}},
    {"[09-10]", {"09", "10"}}, {"[3,1-2]", {"3", "1", "2"}},
};

static int n_words(int part)
{
    int n = 0;
    while (n < 4 && parts[part].words[n])
        n++;
    return n;
}

/* Item i: one part, or two. Adds what it stands for, and writes it. */
static size_t naive_item(int i, char *list, char *hosts, size_t used)
{
    int first = i % N(parts), second = i / N(parts) - 1;
    strcat(list, parts[first].text);
    strcat(list, second >= 0 ? parts[second].text : "");
    for (int k = 0; k < n_words(first); k++)
        for (int m = 0; m < (second >= 0 ? n_words(second) : 1); m++)
            used += (size_t)sprintf(hosts + used, "%s%s%s", used ? " " : "",
                                    parts[first].words[k],
                                    second >= 0 ? parts[second].words[m] : "");
    return used;
}

START_TEST(every_small_list)
{
    enum { ITEMS = N(parts) * (N(parts) + 1) };
    char list[64], hosts[512], text[512];
    for (int i = 0; i < ITEMS; i++)
        for (int k = -1; k < ITEMS; k++) {
            *list = 0;
            size_t used = naive_item(i, list, hosts, 0);
            if (k >= 0) {
                strcat(list, ",");
                naive_item(k, list, hosts, used);
            }
            ck_assert_msg(strcmp(all_of(list, text, sizeof text), hosts) == 0,
                          "%s: %s, not %s", list, text, hosts);
        }
}
END_TEST

int main(void)
{
    TCase *lists = new_case("lists", 60);
    tcase_add_loop_test(lists, known_lists, 0, N(known));
    tcase_add_test(lists, a_host_far_behind);
    tcase_add_test(lists, names_that_do_not_fit);
    tcase_add_test(lists, every_small_list);
    return run_cases(lists, NULL);
}
