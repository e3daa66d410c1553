/* SPDX-License-Identifier: MIT */
/* Options: each type is read, refused, written and described, in the C locale and in one
 * whose decimal point is a comma. */
#include "base/base.h"

#include <check.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct values {
    int64_t count, bytes;
    double real, open, rate, time, seconds;
    bool flag;
    int choice;
    const char *text;
};

#define AT(field) offsetof(struct values, field)
#include "base/option_rows.h"
static const struct option table[] = {
    INT("count", count, -5, 9e15, ""),
    BYTES("bytes", bytes, 1, 1e12, ""),
    REAL("real", real, -1e6, 1e9, ""),
    RATE("rate", rate, 0, 1e15, ""),
    SECONDS("seconds", seconds, 0.001, 1e6, ""),
    FLAG("flag", flag, ""),
    CHOICE("choice", choice, "red|green|greenish", ""),
    TEXT("text", text, ""),
    {"rtt", OPTION_TIME, AT(time), 0, 100, NULL, ""},
    {"open", OPTION_REAL, AT(open), OPTION_ABOVE_0, 1, "auto|none", ""},
};
enum { N_TABLE = sizeof table / sizeof *table };
#define COMMAS "de_DE.UTF-8"
#define N(array) ((int)(sizeof(array) / sizeof *(array)))

static char message[600];

/* As one key of a string, which has something before it and behind it. */
static bool set(struct values *values, const char *text)
{
    char whole[256];
    snprintf(whole, sizeof whole, "x,%s,1", text);
    size_t key = strcspn(text, "="), length = strlen(text);
    const struct option_text one = {whole, whole + 2, whole + 3 + key, key,
                                    length - key - 1};
    return option_set((struct option_table){table, N_TABLE}, &one, values, message,
                      sizeof message);
}

static const struct option *row(const char *text)
{
    const struct option *found = option_find(table, N_TABLE, text, strcspn(text, "="));
    ck_assert_msg(found != NULL, "%s", text);
    return found;
}

static bool parse(struct values *values, const char *text)
{
    return option_parse(row(text), strchr(text, '=') + 1, values, message,
                        sizeof message);
}

/* --- locales --- */

static bool has_commas;    /* main finds out before any test */

/* A locale with a decimal comma, which is made where the machine has none. */
static void find_commas(void)
{
    char folder[] = "/tmp/descant-test-XXXXXX", line[256];
    has_commas = setlocale(LC_ALL, COMMAS) != NULL;
    if (has_commas || !mkdtemp(folder))
        return;
    snprintf(line, sizeof line, "localedef -i de_DE -f UTF-8 %s/%s 2>/dev/null", folder,
             COMMAS);
    setenv("LOCPATH", folder, 1);
    has_commas = system(line) == 0 && setlocale(LC_ALL, COMMAS);
    snprintf(line, sizeof line, "rm -r %s", folder);
    if (system(line) != 0)
        perror(folder);
    if (!has_commas)
        fputs("no locale with a decimal comma, and none can be made: not tested\n",
              stderr);
}

/* Each test of numbers runs twice. False: this machine has no such locale. */
static bool choose_locale(int commas)
{
    char text[8];
    if (!setlocale(LC_ALL, commas ? COMMAS : "C"))
        return false;
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, commas ? "0,5" : "0.5");
    return true;
}

/* --- reading --- */

static const struct {
    const char *text;
    double value;
} numbers[] = {
    {"rate=1gbit", 125e6},
    {"rate=100mbit", 12.5e6},
    {"rate=10gbit", 1.25e9},
    {"rate=2GB", 2e9},
    {"rate=64kbit", 8000},
    {"rate=8bit", 1},
    {"rate=1.5MB", 1.5e6},
    {"rate=1KiB", 1024},
    {"rate=1GiB", 1073741824},
    {"rate=7", 7},
    {"rate=7B", 7},
    {"rate=1e6", 1e6},
    {"rate=1Gbit", 125e6},
    {"rate=1GBIT", 125e6},
    {"rate=0", 0},
    {"rate=1tbit", 125e9},
    {"rtt=10ms", 0.01},
    {"rtt=9ms", 0.009},
    {"rtt=300us", 0.0003},
    {"rtt=1s", 1},
    {"rtt=5ns", 5e-9},
    {"rtt=0", 0},
    {"rtt=0.5s", 0.5},
    {"rtt=1e1ms", 0.01},
    {"rtt=100s", 100},
    {"seconds=50ms", 0.05},
    {"seconds=0.5", 0.5},
    {"seconds=60", 60},
    {"seconds=2s", 2},
    {"seconds=1e3us", 0.001},
    {"seconds=2min", 120},
    {"seconds=1.5h", 5400},
    {"seconds=7d", 604800},
    {"seconds=1000000", 1e6},
    {"real=1", 1},
    {"real=.25", 0.25},
    {"real=1e-3", 0.001},
    {"real=+5", 5},
    {"real=-2.5", -2.5},
    {"real=1E2", 100},
    {"real=0", 0},
    {"real=1.", 1},
    {"real=1e-400", 0},
    {"open=1", 1},
    {"open=1e-300", 1e-300},
    {"open=auto", -1},
    {"open=none", -2},
    {"count=-5", -5},
    {"count=0", 0},
    {"count=1.0", 1},
    {"count=+1", 1},
    {"count=1e1", 10},
    {"count=9e15", 9e15},
    {"count=8999999999999999", 8999999999999999.0},
    {"count=2.5e1", 25},
    {"bytes=64", 64},
    {"bytes=64K", 65536},
    {"bytes=64M", 67108864},
    {"bytes=1G", 1073741824},
    {"bytes=64KiB", 65536},
    {"bytes=64MiB", 67108864},
    {"bytes=1.5K", 1536},
    {"bytes=1e3", 1000},
    {"bytes=2kB", 2000},
    {"bytes=2MB", 2e6},
    {"bytes=1TB", 1e12},
    {"bytes=9B", 9},
    {"flag=0", 0},
    {"flag=1", 1},
    {"flag=no", 0},
    {"flag=yes", 1},
    {"flag=false", 0},
    {"flag=true", 1},
    {"flag=off", 0},
    {"flag=on", 1},
    {"choice=red", 0},
    {"choice=green", 1},
    {"choice=greenish", 2},
};

START_TEST(values_are_read)
{
    if (!choose_locale(_i >= N(numbers)))
        return;
    const char *text = numbers[_i % N(numbers)].text;
    double wanted = numbers[_i % N(numbers)].value;
    for (int k = 0; k < 2; k++) {
        struct values v;
        memset(&v, 1, sizeof v);
        ck_assert_msg(k ? parse(&v, text) : set(&v, text), "%s: %s", text, message);
        double got = option_number(row(text), &v);
        ck_assert_msg(!islessgreater(got, wanted), "%s: %.17g", text, got);
    }
}
END_TEST

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
static const char *const bad_values[] = {
    "rate=fast",        "rate=1gb",       "rate=1gbits",
    "rate=-1",          "rate=1 gbit",    "rate=inf",
    "rate=1,5MB",       "rate=nan",       "rate=1e400",
    "rate=1e16",        "rate=gbit",      "rate=1K",
    "rate=1M",          "rate=1ms",       "rate=1kb",
    "rate=1gbit ",      "rtt=10",         "rtt=10m",
    "rtt=-1ms",         "rtt=101s",       "rtt=s",
    "rtt=1S",           "rtt=0,5s",       "rtt=10msec",
    "seconds=0",        "seconds=50m",    "seconds=999us",
    "seconds=1e7",      "seconds=1K",     "seconds=1,5",
    "seconds=12d",      "seconds=1m",     "seconds=1D",
    "rtt=1min",         "rtt=1d",         "rate=1d",
    "real=0x1",         "real=1,",        "real=--1",
    "real=1e",          "real=.",         "real=1ms",
    "real=1K",          "real=0,5",       "real=1e10",
    "real=-inf",        "real=1.5.5",     "real=+",
    "real=e5",          "real=1 000",     "open=0",
    "open=-1",          "open=1.0001",    "open=auto|none",
    "open=Auto",        "open=-0",        "count=9000000000000001",
    "count=-6",         "count=1.5",      "count=-0.5",
    "count=1K",         "count=1e",       "count=two",
    "count=0x10",       "count=1,0",      "count=99999999999999999999",
    "count=1e-300",     "count=nan",      "bytes=64Q",
    "bytes=64k",        "bytes=64KB/s",   "bytes=8bit",
    "bytes=1.3K",       "bytes=0",        "bytes=0.5",
    "bytes=-1K",        "bytes=1T",       "bytes=64 K",
    "bytes=K",          "bytes=1,5K",     "bytes=2TB",
    "flag=2",           "flag=YES",       "flag=0|1",
    "flag=00",          "flag=maybe",     "choice=gree",
    "choice=red|green", "choice=greenis", "choice=0",
    "choice=RED",       "choice=|",
};

START_TEST(others_are_refused)
{
    if (!choose_locale(_i >= N(bad_values)))
        return;
    const char *text = bad_values[_i % N(bad_values)];
    struct values v, before;
    memset(&v, 1, sizeof v);
    before = v;
    ck_assert_msg(!set(&v, text), "%s", text);
    ck_assert_msg(strstr(message, " at place ") && strstr(message, "allowed: "), "%s",
                  message);
    ck_assert_msg(!parse(&v, text), "%s", text);
    ck_assert_msg(strstr(message, ": allowed is ") != NULL, "%s", message);
    ck_assert_mem_eq(&v, &before, sizeof v);
}
END_TEST

START_TEST(long_values)
{
    struct values v = {.real = 1};
    ck_assert(!set(&v, "real=0." ZEROS "1"));
    ck_assert(v.real > 0.5);
    ck_assert(parse(&v, "real=0." ZEROS "1"));
    ck_assert(v.real > 0 && v.real < 1e-60);
    ck_assert(!parse(&v, "count=" ZEROS "1x"));
    ck_assert(!set(&v, "choice=" ZEROS ZEROS));
    ck_assert(!parse(&v, "choice=" ZEROS ZEROS ZEROS));
    ck_assert_ptr_nonnull(strstr(message, "0000...: allowed is red|green|greenish"));
    ck_assert_uint_lt(strlen(message), 160);
    ck_assert(parse(&v, "text=" ZEROS ZEROS ZEROS) && strlen(v.text) == 192);
}
END_TEST

START_TEST(before_a_value)
{
    struct values v = {0};
    ck_assert(parse(&v, "count= 7") && v.count == 7);
    ck_assert(parse(&v, "text= 7") && strcmp(v.text, " 7") == 0);
    ck_assert(!set(&v, "count= 7"));
    ck_assert(!option_read(row("count"), " 7", &v));
}
END_TEST

/* --- writing --- */

static const struct {
    const char *text, *written;
} texts[] = {
    {"rate=1gbit", "125000000"},
    {"rate=1e15", "1e+15"},
    {"rate=0", "0"},
    {"rtt=50ms", "0.05s"},
    {"rtt=0", "0s"},
    {"seconds=50ms", "0.05"},
    {"seconds=60", "60"},
    {"seconds=1e6", "1000000"},
    {"real=0.1", "0.1"},
    {"real=1e-8", "1e-08"},
    {"real=0.1234567890123", "0.1234567890123"},
    {"real=0.30000000000000004", "0.30000000000000004"},
    {"real=-2.5", "-2.5"},
    {"real=100000", "100000"},
    {"real=1e9", "1e+09"},
    {"open=auto", "auto"},
    {"open=none", "none"},
    {"open=0.7", "0.7"},
    {"count=-5", "-5"},
    {"count=1e9", "1000000000"},
    {"count=8999999999999999", "8999999999999999"},
    {"bytes=64M", "67108864"},
    {"flag=yes", "1"},
    {"flag=off", "0"},
    {"choice=green", "green"},
    {"choice=greenish", "greenish"},
    {"text=a=b c", "a=b c"},
    {"text=", ""},
};

START_TEST(values_are_written)
{
    if (!choose_locale(_i >= N(texts)))
        return;
    const char *text = texts[_i % N(texts)].text;
    struct values v = {0}, again = {0};
    char written[64], short_one[4];
    ck_assert_msg(parse(&v, text), "%s", message);
    ck_assert_str_eq(option_write(row(text), &v, written, sizeof written),
                     texts[_i % N(texts)].written);
    ck_assert(option_read(row(text), written, &again));
    if (row(text)->type != OPTION_TEXT)
        ck_assert_mem_eq(&v, &again, sizeof v);
    option_write(row(text), &v, short_one, sizeof short_one);
    ck_assert_int_eq(strncmp(short_one, written, 2), 0);
}
END_TEST

/* Of a struct that somebody else has filled. */
START_TEST(a_value_that_is_not_allowed_is_written)
{
    const struct values v = {.open = 0, .count = -7, .seconds = 0};
    char text[64];
    ck_assert_str_eq(option_write(row("open"), &v, text, sizeof text), "0");
    ck_assert_str_eq(option_write(row("count"), &v, text, sizeof text), "-7");
    ck_assert_str_eq(option_write(row("seconds"), &v, text, sizeof text), "0");
    ck_assert_str_eq(option_write(row("text"), &v, text, sizeof text), "");
}
END_TEST

START_TEST(json_has_points)
{
    char *text = NULL;
    size_t length = 0;
    struct json json;
    if (!choose_locale(_i))
        return;
    FILE *out = open_memstream(&text, &length);
    json_begin(&json, out);
    json_real(&json, "x", 0.25);
    json_end(&json);
    fclose(out);
    ck_assert_str_eq(text, "{\"x\":0.25}\n");
    free(text);
    ck_assert_str_eq(setlocale(LC_NUMERIC, NULL), _i ? COMMAS : "C");
}
END_TEST

/* A thread's own locale is given back, whichever it is. */
START_TEST(a_locale_comes_back)
{
    struct values v = {0};
    unsetenv("LOCPATH");        /* glibc leaks its copy of this in newlocale */
    locale_t own = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0), other;
    for (int k = 0; k < 2; k++) {
        other = k && own ? own : LC_GLOBAL_LOCALE;
        uselocale(other);
        ck_assert(parse(&v, "real=0.5") && set(&v, "rtt=5ms"));
        ck_assert(uselocale((locale_t)0) == other);
    }
    uselocale(LC_GLOBAL_LOCALE);
    if (own)
        freelocale(own);
}
END_TEST

START_TEST(ranges)
{
    static const char *const wanted[] = {
        "-5 to 9e+15",
        "1 to 1e+12",
        "-1000000 to 1000000000",
        "0 to 1e+15",
        "0.001 to 1000000",
        "0 or 1",
        "red|green|greenish",
        "",
        "0s to 100s",
        "above 0 to 1, or auto|none",
    };
    char text[64];
    for (int k = 0; k < N_TABLE; k++)
        ck_assert_str_eq(option_range(&table[k], text, sizeof text), wanted[k]);
}
END_TEST

/* --- messages --- */

static const struct {
    const char *text, *key, *alone;
} messages[] = {
    {"count=-6",
     "count cannot be '-6' at place 9; allowed: a whole number from -5 to 9e+15",
     "count -6: allowed is a whole number from -5 to 9e+15"},
    {"bytes=64Q",
     "bytes cannot be '64Q' at place 9; allowed: bytes, like 65536, 64K or 64MiB, "
     "from 1 to 1e+12",
     "bytes 64Q: allowed is bytes, like 65536, 64K or 64MiB, from 1 to 1e+12"},
    {"real=x",
     "real cannot be 'x' at place 8; allowed: a number from -1000000 to 1000000000",
     "real x: allowed is a number from -1000000 to 1000000000"},
    {"open=0",
     "open cannot be '0' at place 8; allowed: a number above 0 to 1, or auto|none",
     "open 0: allowed is a number above 0 to 1, or auto|none"},
    {"open=atuo",
     "open cannot be 'atuo' at place 8 (did you mean auto?); allowed: a number above "
     "0 to 1, or auto|none",
     "open atuo: allowed is a number above 0 to 1, or auto|none (did you mean auto?)"},
    {"rate=fast",
     "rate cannot be 'fast' at place 8; allowed: a rate like 1gbit or 2GB, bytes a "
     "second from 0 to 1e+15",
     "rate fast: allowed is a rate like 1gbit or 2GB, bytes a second from 0 to 1e+15"},
    {"rtt=1h", "rtt cannot be '1h' at place 7; allowed: a time like 10ms from 0s to 100s",
     "rtt 1h: allowed is a time like 10ms from 0s to 100s"},
    {"seconds=0",
     "seconds cannot be '0' at place 11; allowed: seconds, or a time like 10ms, from "
     "0.001 to 1000000",
     "seconds 0: allowed is seconds, or a time like 10ms, from 0.001 to 1000000"},
    {"flag=2", "flag cannot be '2' at place 8; allowed: 0 or 1",
     "flag 2: allowed is 0 or 1"},
    {"choice=blue", "choice cannot be 'blue' at place 10; allowed: red|green|greenish",
     "choice blue: allowed is red|green|greenish"},
    {"choice=gren",
     "choice cannot be 'gren' at place 10 (did you mean green?); allowed: "
     "red|green|greenish",
     "choice gren: allowed is red|green|greenish (did you mean green?)"},
    {"count=",
     "count has no value, '' at place 9; allowed: a whole number from -5 to 9e+15",
     "count needs a value: a whole number from -5 to 9e+15"},
    {"flag=", "flag has no value, '' at place 8; allowed: 0 or 1",
     "flag needs a value: 0 or 1"},
};

START_TEST(messages_say_what_is_allowed)
{
    struct values v = {0};
    const char *text = messages[_i % N(messages)].text;
    if (!choose_locale(_i >= N(messages)))
        return;
    ck_assert(!set(&v, text));
    ck_assert_str_eq(message, messages[_i % N(messages)].key);
    ck_assert(!parse(&v, text));
    ck_assert_str_eq(message, messages[_i % N(messages)].alone);
    ck_assert(!option_parse(row(text), strchr(text, '=') + 1, &v, message, 8));
    ck_assert_int_eq(strncmp(message, messages[_i % N(messages)].alone, 7), 0);
    ck_assert_uint_eq(strlen(message), 7);
}
END_TEST

START_TEST(without_a_value)
{
    struct values v = {0};
    ck_assert(option_parse(row("flag"), NULL, &v, message, sizeof message) && v.flag);
    ck_assert(!option_parse(row("text"), NULL, &v, message, sizeof message));
    ck_assert_str_eq(message, "text needs a value");
    ck_assert(!option_parse(row("choice"), NULL, &v, message, sizeof message));
    ck_assert_str_eq(message, "choice needs a value: red|green|greenish");
}
END_TEST

START_TEST(unknown_names)
{
    struct values v = {0};
    ck_assert(!set(&v, "other=1"));
    ck_assert_str_eq(message,
                     "unknown key 'other' at place 3; allowed: count, bytes, real, rate, "
                     "seconds, flag, choice, text, rtt, open");
    ck_assert(!set(&v, "chioce=1"));
    ck_assert_ptr_nonnull(
        strstr(message, "'chioce' at place 3 (did you mean choice?); allowed: "));
    ck_assert(!set(&v, "=1"));
    ck_assert_ptr_nonnull(strstr(message, "unknown key '' at place 3; allowed: count, "));
    const struct option_text one = {"other=1", "other=1", "1", 5, 1};
    ck_assert(!option_set((struct option_table){table, N_TABLE}, &one, &v, message, 16));
    ck_assert_str_eq(message, "unknown key 'ot");
    ck_assert_ptr_null(option_find(table, N_TABLE, "coun", 4));
    ck_assert_ptr_null(option_find(table, N_TABLE, "countt", 6));
    ck_assert_ptr_eq(option_find(table, N_TABLE, "count=1", 5), &table[0]);
    struct guess guess = option_guess(table, N_TABLE, "cuont", 5);
    ck_assert_str_eq(guess_text(&guess, "--"), " (did you mean --count?)");
    guess = option_guess(table, N_TABLE, "zzz", 3);
    ck_assert_str_eq(guess_text(&guess, "--"), "");
}
END_TEST

START_TEST(choices_are_counted)
{
    ck_assert_int_eq(option_choice("a|bc|d", "a"), 0);
    ck_assert_int_eq(option_choice("a|bc|d", "bc"), 1);
    ck_assert_int_eq(option_choice("a|bc|d", "d"), 2);
    ck_assert_int_eq(option_choice("a|bc|d", "b"), -1);
    ck_assert_int_eq(option_choice("a|bc|d", "a|bc"), -1);
    ck_assert_int_eq(option_choice("a|bc|d", ""), -1);
}
END_TEST

int main(void)
{
    find_commas();
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");
    tcase_add_loop_test(tests, values_are_read, 0, 2 * N(numbers));
    tcase_add_loop_test(tests, others_are_refused, 0, 2 * N(bad_values));
    tcase_add_test(tests, long_values);
    tcase_add_test(tests, before_a_value);
    tcase_add_loop_test(tests, values_are_written, 0, 2 * N(texts));
    tcase_add_test(tests, a_value_that_is_not_allowed_is_written);
    tcase_add_loop_test(tests, json_has_points, 0, 2);
    tcase_add_test(tests, a_locale_comes_back);
    tcase_add_test(tests, ranges);
    tcase_add_loop_test(tests, messages_say_what_is_allowed, 0, 2 * N(messages));
    tcase_add_test(tests, without_a_value);
    tcase_add_test(tests, unknown_names);
    tcase_add_test(tests, choices_are_counted);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
