/* SPDX-License-Identifier: MIT */
/* descant report: whatever the logs hold, the page is well-formed, and shows what they say; what
 * is no log is refused with its line. */
#include "cli/cli.h"
#include "harness/folder.h"
#include "harness/suite.h"
#include "report/report.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char *said;

/* descant report and the words of the line; a word %N is path N of the folder. */
static int report(const char *line, char *const *paths)
{
    char copy[256], program[] = "descant", command[] = "report", *argv[32] = {program, command};
    size_t n_out, n_said;
    int argc = 2;
    char *out;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && argc < 31; word = strtok(NULL, " "))
        argv[argc++] = word[0] == '%' ? paths[word[1] - '0'] : word;
    free(said);
    FILE *to = open_memstream(&out, &n_out), *err = open_memstream(&said, &n_said);
    int status = cli_main(argc, argv, to, err);
    fclose(to);
    fclose(err);
    if (status == CLI_DONE && n_out) {
        free(said);
        said = out;
    } else {
        free(out);
    }
    return status;
}

static void put_log(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

/* Every tag is closed in order, attributes are quoted, and there is nothing but the entities
 * that report_text makes. Returns NULL or the place that is wrong. */
static const char *malformed(const char *page)
{
    char open[64][24];
    int depth = 0;
    for (const char *at = page; *at; at++) {
        if (*at == '&' && strncmp(at, "&amp;", 5) != 0 && strncmp(at, "&lt;", 4) != 0 &&
            strncmp(at, "&gt;", 4) != 0 && strncmp(at, "&quot;", 6) != 0 &&
            strncmp(at, "&#39;", 5) != 0)
            return at;
        if ((unsigned char)*at < ' ' && *at != '\n')
            return at;
        if (*at != '<' || at[1] == '!')
            continue;
        const char *tag = at;
        bool closes = at[1] == '/';
        char name[24];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1 + closes, " />\n"), at + 1 + closes);
        for (at++; *at && *at != '>'; at++)
            if (*at == '<' || (*at == '"' && (at = strchr(at + 1, '"')) == NULL))
                return tag;
        if (closes && (depth == 0 || strcmp(open[--depth], name) != 0))
            return tag;
        if (!closes && at[-1] != '/') {
            if (depth == 64)
                return tag;
            strcpy(open[depth++], name);
        }
    }
    return depth ? page : NULL;
}

static size_t count(const char *page, const char *what)
{
    size_t n = 0;
    for (const char *at = page; (at = strstr(at, what)) != NULL; at += strlen(what))
        n++;
    return n;
}

static const char finished[] =
    "{\"kind\":\"header\",\"descant\":\"0.1.0\",\"model\":\"dlrm\",\"sync\":\"every,what=mean\","
    "\"trainers\":2,\"workers\":4,\"batch\":128,\"warmup\":0.3,\"data\":\"a&b<c>\"}\n"
    "{\"kind\":\"interval\",\"rank\":0,\"examples\":1000,\"seconds\":1.5,\"loss\":0.7,\"gap\":4,"
    "\"examples_per_s\":666,\"stall_share\":0.125,\"distance\":0.01,\"eval_loss\":0.6}\n"
    "{\"kind\":\"interval\",\"rank\":1,\"examples\":1000,\"seconds\":1.5,\"loss\":77777}\n"
    "{\"kind\":\"interval\",\"rank\":0,\"examples\":2000,\"seconds\":2.5,\"loss\":null,\"gap\":5}\n"
    "{\"kind\":\"something new\",\"loss\":\"text\"}\n"
    "{\"kind\":\"interval\",\"rank\":0,\"examples\":3000,\"seconds\":4,\"loss\":0.5,\"gap\":4}\n"
    "{\"kind\":\"summary\",\"examples\":3000,\"seconds\":125,\"loss\":0.4567,\"ne\":0.81,"
    "\"eval_ne\":0.7788,\"auc\":0.7654,\"examples_per_s\":12345,\"stall_share\":0.125,\"gap_mean\":4.5}\n";
static const char going[] =
    "{\"kind\":\"header\",\"model\":\"dlrm\",\"sync\":\"never\"}\n"
    "{\"kind\":\"interval\",\"examples\":500,\"seconds\":1,\"loss\":0.65}\n"
    "{\"kind\":\"interval\",\"examples\":1000,\"seconds\":2,\"loss\":0.6}\n"
    "{\"kind\":\"interval\",\"examples\":1500,\"sec";

START_TEST(runs_are_compared)
{
    char a[160], b[160], page[160], *paths[] = {a, b, page};
    size_t n;
    strcpy(a, in_folder("one.jsonl"));
    strcpy(b, in_folder("<i>&'\"\1.jsonl"));
    strcpy(page, in_folder("page.html"));
    put_log(a, finished);
    put_log(b, going);
    ck_assert_msg(report("%0 -o %2 %1", paths) == CLI_DONE, "%s", said);
    char *html = get_file(page, &n);
    const char *bad = malformed(html);
    ck_assert_msg(!bad, "malformed at: %.80s", bad);
    static const char *const has[] = {
        "2 training runs compared", "one</title>", "&lt;i&gt;&amp;&#39;&quot; ", "a&amp;b&lt;c&gt;",
        "0.4567", "0.7654", "<th>held-out NE</th>", "0.7788", "12.3 k", "12.5 %", "2 min 05 s", "every,<wbr/>what=mean", "2 × 4",
        "Loss over time", "Gap", "Held-out figures were measured once a run", "not finished", "Options that differ",
        "prefers-color-scheme:dark", "0.6000", ">0.3<"};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        ck_assert_msg(strstr(html, has[i]) != NULL, "no %s", has[i]);
    static const char *const lacks[] = {"<script", ">-0<", "http", "loss, thousands", "nan", "inf<", "<figcaption><b>Age",
                                        "accuracy"};
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++)
        ck_assert_msg(strstr(html, lacks[i]) == NULL, "there is %s", lacks[i]);
    /* not of the held-out loss, nor of what one interval has alone */
    ck_assert_uint_eq(count(html, "<figure>"), 3);
    ck_assert_uint_eq(count(html, "<g class=\"run c1\"><title>"), 3);
    /* the null is a gap in the loss, two dots in each of its charts */
    ck_assert_uint_eq(count(html, "<circle"), 2 + 2);
    free(html);
    ck_assert_int_eq(report("--out=- %0", paths), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(said, "A training run"));
    ck_assert_ptr_null(malformed(said));
    ck_assert_int_eq(report("%0 %0 --out -", paths), CLI_DONE);
    ck_assert_msg(strstr(said, "one.jsonl (2)") != NULL, "same labels are not told apart");
}
END_TEST

/* Evaluations lie between intervals, as they began, and break none of their curves. */
START_TEST(evaluations_have_curves)
{
    static const char log[] =
        "{\"kind\":\"header\",\"sync\":\"ma\"}\n"
        "{\"kind\":\"interval\",\"examples\":1000,\"seconds\":1,\"loss\":0.7}\n"
        "{\"kind\":\"interval\",\"examples\":2000,\"seconds\":2,\"loss\":0.6}\n"
        "{\"kind\":\"eval\",\"examples\":1500,\"seconds\":1.5,\"eval_loss\":0.65,\"eval_ne\":0.95,"
        "\"auc\":0.61,\"eval_calibration\":1.02}\n"
        "{\"kind\":\"interval\",\"examples\":3000,\"seconds\":3,\"loss\":0.5}\n"
        "{\"kind\":\"interval\",\"examples\":3100,\"seconds\":3.1,\"loss\":0.123}\n"
        "{\"kind\":\"eval\",\"examples\":2900,\"seconds\":2.9,\"eval_loss\":0.55,\"eval_ne\":0.85,"
        "\"auc\":0.71,\"eval_calibration\":null}\n";
    static const char summary[] = "{\"kind\":\"summary\",\"loss\":0.5}\n";
    static const char *const titles[] = {"Held-out loss", "Held-out NE", "Held-out AUC",
                                         "Held-out calibration"};
    char a[160], b[160], text[2048], *paths[] = {a, b};
    strcpy(a, in_folder("going.jsonl"));
    strcpy(b, in_folder("done.jsonl"));
    put_log(a, log);
    snprintf(text, sizeof text, "%s%s", log, summary);
    put_log(b, text);
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(malformed(said));
    for (int k = 0; k < 4; k++) {           /* of calibration there is one value */
        snprintf(text, sizeof text, "<figcaption><b>%s</b>", titles[k]);
        ck_assert_msg((strstr(said, text) != NULL) == (k < 3), "%s", titles[k]);
    }
    ck_assert_uint_eq(count(said, "<circle"), 2 + 2 + 2);
    ck_assert_ptr_null(strstr(said, "were measured once"));
    ck_assert_ptr_nonnull(strstr(said, "0.7100"));
    ck_assert_ptr_nonnull(strstr(said, "3100"));
    /* the last interval is too short to tell of, though an evaluation comes after it */
    ck_assert_ptr_nonnull(strstr(said, "0.1230"));
    ck_assert_int_eq(report("%1 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(strstr(said, "0.1230"));
    remove(b);
}
END_TEST

/* Ranks of a launcher, of which the option --trainers says nothing; logs of one name. */
START_TEST(runs_are_called_what_they_are)
{
    static const char ranks[] =
        "{\"kind\":\"header\",\"sync\":\"ma\",\"trainers\":0,\"size\":3,\"workers\":1}\n";
    static const char summary[] = "{\"kind\":\"summary\",\"loss\":0.5,\"eval_loss\":0.6}\n";
    char a[160], b[160], text[512], *paths[] = {a, b};
    strcpy(a, in_folder("run.jsonl"));
    snprintf(b, sizeof b, "%s/run.jsonl", in_folder("other"));
    ck_assert_int_eq(mkdir(in_folder("other"), 0700), 0);
    put_log(a, ranks);
    snprintf(text, sizeof text, "%s%s", ranks, summary);
    put_log(b, text);
    ck_assert_int_eq(report("%0 %1 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(malformed(said));
    ck_assert_uint_eq(count(said, "3 × 1"), 2);
    ck_assert_uint_eq(count(said, "nothing logged yet"), 1);
    ck_assert_uint_eq(count(said, "not finished"), 0);
    ck_assert_ptr_nonnull(strstr(said, "Held-out figures were measured once a run"));
    for (int k = 0; k < 2; k++) {
        snprintf(text, sizeof text, "</svg>%s<small>", paths[k]);
        ck_assert_msg(strstr(said, text) != NULL, "which run is %s?", paths[k]);
    }
    remove(b);
    remove(in_folder("other"));
}
END_TEST

/* Two runs on one held-out set, by another path, and a better one on another set. */
START_TEST(quality_is_compared_on_one_set)
{
    static const struct {
        const char *name, *model, *eval, *counts, *loss;
    } runs[] = {
        {"a.jsonl", "dlrm", "held.tsv", "\"eval_examples\":4000,\"eval_clicks\":900,", "0.51"},
        {"b.jsonl", "fm", "/data/held.tsv", "\"eval_examples\":4000,\"eval_clicks\":900,", "0.52"},
        {"c.jsonl", "linear", "held.tsv", "\"eval_examples\":4000,\"eval_clicks\":901,", "0.43"},
        {"d.jsonl", "linear", "", "", "null"},
    };
    char names[4][160], text[1024], *paths[] = {names[0], names[1], names[2], names[3]};
    for (int k = 0; k < 4; k++) {
        strcpy(names[k], in_folder(runs[k].name));
        snprintf(text, sizeof text, "{\"kind\":\"header\",\"model\":\"%s\",\"sync\":\"ma\","
                 "\"trainers\":2,\"workers\":1,\"eval\":\"%s\"}\n{\"kind\":\"interval\","
                 "\"examples\":500,\"seconds\":1,\"loss\":0.7,\"eval_loss\":0.69}\n{\"kind\":\"interval\","
                 "\"examples\":1000,\"seconds\":2,\"loss\":0.6,\"eval_loss\":%s}\n"
                 "{\"kind\":\"summary\",\"loss\":0.5,%s\"eval_loss\":%s,\"auc\":%s}\n",
                 runs[k].model, runs[k].eval, runs[k].loss, runs[k].counts, runs[k].loss,
                 runs[k].loss);
        put_log(names[k], text);
    }
    ck_assert_int_eq(report("%0 %1 %2 %3 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(malformed(said));
    static const char *const has[] = {
        "<td><b>0.5100</b></td>", "<td>0.5200</td>", "<td><b>0.5200</b></td>", "<td>0.4300</td>",
        "<th>held-out set</th>", "<td>A: held.tsv, 4000 examples</td>",
        "<td>A: /data/held.tsv, 4000 examples</td>", "<td>B: held.tsv, 4000 examples</td>",
        "<td>–</td>", "dlrm · ma", "linear · ma", "of the same set",
        "<b>Held-out loss</b> On examples kept apart. A: held.tsv",
        "<b>Held-out loss</b> On examples kept apart. B: held.tsv"};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        ck_assert_msg(strstr(said, has[i]) != NULL, "no %s", has[i]);
    ck_assert_ptr_null(strstr(said, "<b>0.4300"));
    ck_assert_int_eq(report("%0 %1 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(strstr(said, "held-out set</th>"));
    ck_assert_ptr_nonnull(strstr(said, "<td><b>0.5100</b></td>"));
    ck_assert_uint_eq(count(said, "<b>Held-out loss</b>"), 1);
    strcpy(names[3], in_folder("e.jsonl"));         /* not finished: the first run's by the path */
    put_log(names[3], "{\"kind\":\"header\",\"model\":\"dlrm\",\"sync\":\"ma\","
            "\"trainers\":2,\"workers\":1,\"eval\":\"/data/held.tsv\"}\n{\"kind\":\"interval\","
            "\"examples\":1000,\"seconds\":1,\"loss\":0.6,\"eval_loss\":0.7}\n");
    ck_assert_int_eq(report("%3 %0 %2 %1 -o -", paths), CLI_DONE);
    ck_assert_uint_eq(count(said, "<td>A: "), 3);
    ck_assert_uint_eq(count(said, "<td>B: held.tsv, 4000 examples</td>"), 1);
    ck_assert_uint_eq(count(said, "<b>Held-out loss</b>"), 2);
}
END_TEST

/* A run that has not counted its set may be of either of two others: it is compared with none, in
 * whatever order they come. */
START_TEST(the_order_of_runs_decides_nothing)
{
    static const struct {
        const char *name, *counts, *loss;
    } runs[] = {{"a.jsonl", "\"eval_examples\":4000,\"eval_clicks\":900,", "0.51"},
                {"b.jsonl", "\"eval_examples\":4000,\"eval_clicks\":901,", "0.43"},
                {"c.jsonl", "", "0.47"},
                {"d.jsonl", "\"eval_examples\":4000,\"eval_clicks\":900,", "0.53"}};
    static const char *const orders[] = {"%0 %1 %2 %3 -o -", "%3 %2 %1 %0 -o -", "%2 %0 %3 %1 -o -",
                                         "%1 %2 %3 %0 -o -"};
    char names[4][160], text[512], *paths[] = {names[0], names[1], names[2], names[3]};
    for (int k = 0; k < 4; k++) {
        strcpy(names[k], in_folder(runs[k].name));
        snprintf(text, sizeof text, "{\"kind\":\"header\",\"model\":\"fm\",\"sync\":\"ma\","
                 "\"trainers\":2,\"workers\":1,\"eval\":\"held.tsv\"}\n{\"kind\":\"summary\","
                 "\"loss\":0.5,%s\"eval_loss\":%s}\n", runs[k].counts, runs[k].loss);
        put_log(names[k], text);
    }
    ck_assert_int_eq(report(orders[_i], paths), CLI_DONE);
    ck_assert_uint_eq(count(said, "<td><b>"), 1);
    ck_assert_ptr_nonnull(strstr(said, "<td><b>0.5100</b></td>"));
    ck_assert_uint_eq(count(said, "held.tsv, 4000 examples</td>"), 3);
    ck_assert_ptr_nonnull(strstr(said, "<td>C: "));
    ck_assert_ptr_null(strstr(said, "<td>D: "));
}
END_TEST

/* A run that was stopped, or killed, is called so and is no best one; what its evaluations say is in
 * the table, and of which set they are. */
START_TEST(what_did_not_finish_is_no_best)
{
    static const struct {
        const char *name, *folder, *stopped, *accuracy;
    } runs[] = {{"a.jsonl", "", "no gain in 2 evaluations; the best loss was 0.4", "0.61"},
                {"b.jsonl", "/x/", "", "0.62"},
                {"c.jsonl", "../", "stopped by signal 2", "0.63"},
                {"d.jsonl", "y/", "trainer 1: the data is bad", "0.64"},
                {"e.jsonl", "./", NULL, "0.65"}};
    char names[5][160], text[1024], *paths[] = {names[0], names[1], names[2], names[3], names[4]};
    for (int k = 0; k < 5; k++) {
        bool whole = k < 2;
        strcpy(names[k], in_folder(runs[k].name));
        int n = snprintf(text, sizeof text, "{\"kind\":\"header\",\"model\":\"linear\",\"eval\":"
                         "\"%sheld.tsv\",\"checkpoint\":\"%d\",\"quiet\":%d}\n{\"kind\":\"eval\","
                         "\"examples\":900,\"seconds\":1,\"eval_examples\":4000,\"eval_clicks\":900,"
                         "\"eval_loss\":0.5,\"eval_accuracy\":%s}\n", runs[k].folder, k, k,
                         runs[k].accuracy);
        if (runs[k].stopped)
            snprintf(text + n, sizeof text - (size_t)n, "{\"kind\":\"summary\",\"eval_examples\":%s,"
                     "\"eval_clicks\":%s,\"eval_accuracy\":%s,\"stopped\":\"%s\"}\n",
                     whole ? "4000" : "null", whole ? "900" : "null",
                     whole ? runs[k].accuracy : "null", runs[k].stopped);
        put_log(names[k], text);
    }
    ck_assert_int_eq(report("%0 %1 %2 %3 %4 -o -", paths), CLI_DONE);
    static const char *const has[] = {
        "<td>0.6100</td>", "<td><b>0.6200</b></td>", "<td>0.6300</td>", "<td>0.6400</td>",
        "<td>0.6500</td>", "<small>stopped by signal 2</small>", "<small>not finished</small>",
        "<small>trainer 1: the data is bad</small>", "A run that did not finish has"};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        ck_assert_msg(strstr(said, has[i]) != NULL, "no %s", has[i]);
    ck_assert_ptr_null(strstr(said, "<small>no gain"));
    ck_assert_ptr_null(strstr(said, "held-out set</th>"));      /* for all have one */
    char *differ = strstr(said, "Options that differ");
    ck_assert_ptr_nonnull(differ);
    *strstr(differ, "<details>") = 0;
    ck_assert_ptr_nonnull(strstr(differ, "<td>eval</td>"));
    ck_assert_ptr_null(strstr(differ, "<td>checkpoint</td>"));
    ck_assert_ptr_null(strstr(differ, "<td>quiet</td>"));
}
END_TEST

/* Labels lie within the picture, and are numbers as people write them. */
/* A run on three hosts, of which one is slow and one leaves. */
START_TEST(hosts_of_a_run_are_shown)
{
    static const char head[] =
        "{\"kind\":\"header\",\"model\":\"fm\",\"hosts\":3,\"trainers\":0,\"size\":3}\n";
    char log[16384], *at = log, a[160], *paths[] = {a};
    strcpy(a, in_folder("hosts.jsonl"));
    at += sprintf(at, "%s", head);
    for (int s = 1; s <= 9; s++) {
        at += sprintf(at, "{\"kind\":\"interval\",\"rank\":0,\"examples\":%d,\"seconds\":%d,"
                      "\"examples_per_s\":1000}\n", 1000 * s, s);
        for (int k = 0; k < 3; k++) {
            bool gone = k == 2 && s > 5;
            at += sprintf(at, "{\"kind\":\"host\",\"seconds\":%d,\"host\":%d,\"name\":\"n<%d>\","
                          "\"state\":\"%s\",\"examples\":%d,\"trained_s\":%d,"
                          "\"examples_per_s\":%s,\"stall_share\":0.01,\"gap\":3,\"age_s\":0.5}\n",
                          s, k, k, gone ? "left" : "trains", (k == 1 ? 100 : 1000) * s, s,
                          gone ? "null" : k == 1 ? "100" : "1000");
        }
        at += sprintf(at, "{\"kind\":\"whole\",\"seconds\":%d,\"hosts\":3,\"hosts_at_work\":%d,"
                      "\"examples\":%d,\"examples_per_s\":%d}\n", s, s > 5 ? 2 : 3, 2100 * s,
                      s > 5 ? 1100 : 2100);
    }
    sprintf(at, "{\"kind\":\"summary\",\"examples\":9000,\"seconds\":9,\"examples_per_s\":1000,"
            "\"job_examples\":15000,\"job_examples_per_s\":1666,\"stopped\":\"\"}\n");
    put_log(a, log);
    ck_assert_msg(report("%0 -o -", paths) == CLI_DONE, "%s", said);
    ck_assert_msg(malformed(said) == NULL, "%.200s", malformed(said));
    ck_assert_ptr_nonnull(strstr(said, "<h2>Hosts of "));
    ck_assert_ptr_nonnull(strstr(said, "<td>2 n&lt;2&gt;</td><td>left</td><td>9000</td>"));
    ck_assert_ptr_nonnull(strstr(said, "<td>1 n&lt;1&gt;</td><td>trains</td><td>900</td>"
                                       "<td>100</td>"));
    ck_assert_ptr_nonnull(strstr(said, "<b>Hosts of "));
    ck_assert_ptr_nonnull(strstr(said, "<title>all hosts</title>"));
    ck_assert_ptr_nonnull(strstr(said, "<title>1 n&lt;1&gt;</title>"));
    ck_assert_ptr_nonnull(strstr(said, "<td>15.0 k</td>"));      /* the job's, not the first host's */
}
END_TEST

START_TEST(odd_hosts_are_refused_or_left_out)
{
    static const struct {
        const char *line, *says;
    } odd[] = {{"{\"kind\":\"host\"}", "host is not a number"},
               {"{\"kind\":\"host\",\"host\":\"a\"}", "host is not a number"},
               {"{\"kind\":\"host\",\"host\":-1}", "host is not a number"},
               {"{\"kind\":\"host\",\"host\":1e9}", "host is not a number"},
               {"{\"kind\":\"host\",\"host\":99999999999}", "host is not a number"},
               {"{\"kind\":\"host\",\"host\":1,\"seconds\":\"x\"}", "seconds is not a number"},
               {"{\"kind\":\"whole\",\"examples_per_s\":[]}", "examples_per_s is not a number"},
               {"{\"kind\":\"host\",\"host\":1,\"name\":7,\"state\":[]}", NULL},
               {"{\"kind\":\"host\",\"host\":1,\"examples\":5,\"trained_s\":0}", NULL},
               {"{\"kind\":\"whole\"}", NULL}};
    char log[512], a[160], *paths[] = {a};
    strcpy(a, in_folder("odd.jsonl"));
    for (int i = 0; i < N(odd); i++) {
        snprintf(log, sizeof log, "{\"kind\":\"header\"}\n%s\n", odd[i].line);
        put_log(a, log);
        int status = report("%0 -o -", paths);
        ck_assert_msg((status == CLI_DONE) == !odd[i].says, "%s: %s", odd[i].line, said);
        ck_assert_msg(!odd[i].says || strstr(said, odd[i].says), "%s: %s", odd[i].line, said);
    }
}
END_TEST

START_TEST(axes_can_be_read)
{
    enum { WIDTH = 640 };
    static const char *const lasts[] = {"1000", "1999", "200000", "0.5"};
    char a[160], *paths[] = {a};
    strcpy(a, in_folder("axes"));
    FILE *f = fopen(a, "w");
    fputs("{\"kind\":\"header\",\"sync\":\"ma\"}\n", f);
    for (int i = 0; i < 3; i++)
        fprintf(f, "{\"kind\":\"interval\",\"examples\":%g,\"seconds\":%g,\"loss\":0.4388%d,"
                "\"gap\":%s,\"distance\":%s,\"stall_share\":0}\n", strtod(lasts[_i], NULL) * i / 2,
                strtod(lasts[_i], NULL) * i / 2, i, i ? "20000" : "90", i ? "0.9" : "0.0009");
    fclose(f);
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(malformed(said));
    double x;
    int labels = 0;
    for (char *at = said; (at = strstr(at, "<text x=")) != NULL; at++) {
        int length = 0;
        sscanf(at, "<text x=\"%lf\" y=\"247\" text-anchor=\"middle\">%n", &x, &length);
        labels += length > 0;
        ck_assert_msg(!length || x + 4 * (double)strcspn(at + length, "<") <= WIDTH, "%.80s", at);
    }
    ck_assert_int_gt(labels, 6);
    ck_assert_ptr_null(strstr(said, "e+0"));
    ck_assert_ptr_null(strstr(said, "e-0"));
    ck_assert_ptr_nonnull(strstr(said, ">10000</text>"));
    ck_assert_ptr_nonnull(strstr(said, ">0.001</text>"));
    ck_assert_ptr_nonnull(strstr(said, ">0.43881"));
    ck_assert_uint_eq(count(said, "It is zero throughout."), 1);
}
END_TEST

/* Of descant bsp run: supersteps, which tell of themselves alone. */
START_TEST(supersteps_are_shown)
{
    static const char log[] =
        "{\"kind\":\"header\",\"name\":\"bsp\",\"modules\":2,\"model\":\"\",\"parameters\":21}\n"
        "{\"kind\":\"superstep\",\"superstep\":1,\"seconds\":0.5,\"gradients\":4,\"examples\":100,"
        "\"staleness_mean\":0.25,\"staleness_max\":1,\"refused_stale\":1,\"refused_not_finite\":0,"
        "\"step_s\":0.001}\n"
        "{\"kind\":\"superstep\",\"superstep\":2,\"seconds\":1,\"gradients\":8,\"examples\":300,"
        "\"staleness_mean\":0.5,\"staleness_max\":2,\"refused_stale\":0,\"refused_not_finite\":2,"
        "\"step_s\":0.002}\n";
    static const char summary[] =
        "{\"kind\":\"summary\",\"supersteps\":2,\"gradients\":12,\"examples\":400,\"seconds\":1,"
        "\"staleness_mean\":0.42,\"staleness_max\":2,\"refused_stale\":1,"
        "\"refused_not_finite\":2}\n";
    char a[160], text[2048], *paths[] = {a};
    strcpy(a, in_folder("steps.jsonl"));
    snprintf(text, sizeof text, "%s%s", log, summary);
    put_log(a, text);
    ck_assert_msg(report("%0 -o -", paths) == CLI_DONE, "%s", said);
    ck_assert_ptr_null(malformed(said));
    static const char *const has[] = {
        "descant bsp run, 21 parameters.", "· 2 modules", "<th>supersteps</th>", "<th>stale</th>", "<td>1</td>",
        "<th>staleness</th>", "<td>0.42</td>", "<b>Gradients of a superstep</b>",
        "<b>Staleness</b>", "<b>Refused</b>", "<b>Time of a superstep</b>"};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        ck_assert_msg(strstr(said, has[i]) != NULL, "no %s", has[i]);
    ck_assert_uint_eq(count(said, "<figure>"), 4);      /* none of the speed: it is known once */
    put_log(a, log);
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(said, "not finished"));
    ck_assert_ptr_nonnull(strstr(said, "<td>400</td>"));        /* examples up to there */
    ck_assert_ptr_nonnull(strstr(said, "<td>600</td>"));        /* a second, in the last one */
}
END_TEST

/* Of descant train under bsp: intervals, of so many supersteps. */
START_TEST(intervals_of_supersteps_are_shown)
{
    static const char log[] =
        "{\"kind\":\"header\",\"model\":\"dlrm\",\"sync\":\"bsp\",\"trainers\":2,\"workers\":1}\n"
        "{\"kind\":\"interval\",\"rank\":0,\"examples\":1000,\"seconds\":1.5,\"loss\":0.7,"
        "\"supersteps\":4,\"gradients\":10,\"staleness_mean\":0.5,\"staleness_max\":3,"
        "\"refused_stale\":0,\"refused_not_finite\":0}\n"
        "{\"kind\":\"interval\",\"rank\":0,\"examples\":1000,\"seconds\":1.7,\"loss\":0.7,"
        "\"supersteps\":2,\"gradients\":5,\"staleness_mean\":0.75,\"staleness_max\":3,"
        "\"refused_stale\":0,\"refused_not_finite\":0}\n"
        "{\"kind\":\"interval\",\"rank\":0,\"examples\":1000,\"seconds\":2,\"loss\":null,"
        "\"supersteps\":0,\"gradients\":0,\"staleness_mean\":null,\"staleness_max\":null,"
        "\"refused_stale\":0,\"refused_not_finite\":0}\n";
    char a[160], *paths[] = {a};
    strcpy(a, in_folder("train.jsonl"));
    put_log(a, log);
    ck_assert_msg(report("%0 -o -", paths) == CLI_DONE, "%s", said);
    ck_assert_ptr_null(malformed(said));
    ck_assert_ptr_nonnull(strstr(said, "<b>Gradients of a superstep</b>"));
    ck_assert_ptr_nonnull(strstr(said, "<td>0.75</td>"));
    ck_assert_ptr_null(strstr(said, "nan"));
}
END_TEST

/* As many as there is room for at first, and then a rank whose supersteps are not shown. */
START_TEST(supersteps_of_another_rank_are_passed_over)
{
    char a[160], *paths[] = {a};
    strcpy(a, in_folder("ranks.jsonl"));
    FILE *f = fopen(a, "w");
    fputs("{\"kind\":\"header\",\"modules\":2,\"parameters\":21}\n", f);
    for (int i = 1; i <= 300; i++)
        fprintf(f, "{\"kind\":\"superstep\",\"rank\":%d,\"seconds\":%d,\"examples\":1000}\n",
                i > 256, i);
    fclose(f);
    ck_assert_msg(report("%0 -o -", paths) == CLI_DONE, "%s", said);
    ck_assert_ptr_null(malformed(said));
    ck_assert_ptr_nonnull(strstr(said, "<td>256 k</td>"));
}
END_TEST

/* Values that differ in their last bits alone: an axis on which a double cannot count. */
START_TEST(values_that_hardly_differ_have_an_axis)
{
    char a[160], *paths[] = {a};
    strcpy(a, in_folder("close.jsonl"));
    FILE *f = fopen(a, "w");
    fputs("{\"kind\":\"header\",\"sync\":\"never\"}\n", f);
    for (int i = 0; i < 3; i++)
        fprintf(f, "{\"kind\":\"interval\",\"examples\":%d,\"seconds\":%d,"
                "\"eval_loss\":%.1f}\n", i, i, 1e19 + 2048 * i);
    fclose(f);
    ck_assert_msg(report("%0 -o -", paths) == CLI_DONE, "%s", said);
    ck_assert_ptr_null(malformed(said));
    ck_assert_uint_lt(count(said, "<text"), 100);
}
END_TEST

START_TEST(logs_torn_anywhere_make_a_page)
{
    char a[160], *paths[] = {a}, text[sizeof finished];
    strcpy(a, in_folder("a"));
    size_t header = (size_t)(strchr(finished, '\n') - finished);
    for (size_t n = 0; n < sizeof finished; n++) {
        memcpy(text, finished, n);
        text[n] = 0;
        put_log(a, text);
        int status = report("%0 -o -", paths);
        ck_assert_msg(status == (n < header ? CLI_FAILED : CLI_DONE), "cut at %zu: %s", n, said);
        ck_assert(status == CLI_FAILED || malformed(said) == NULL);
    }
}
END_TEST

START_TEST(a_run_taken_up_again_has_a_gap)
{
    char a[160], *paths[] = {a}, text[2 * sizeof finished];
    strcpy(a, in_folder("a"));
    snprintf(text, sizeof text, "%s%s", finished, going);
    put_log(a, text);
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_null(malformed(said));
    ck_assert_ptr_nonnull(strstr(said, "not finished"));
    ck_assert_ptr_nonnull(strstr(said, "0.6000"));
    const char *path = strstr(said, "</title><path d=\"");
    ck_assert_ptr_nonnull(path);
    size_t moves = 0;
    for (path += 17; *path != '"'; path++)
        moves += *path == 'M';
    ck_assert_uint_eq(moves, 3);
}
END_TEST

static const struct {
    const char *log, *says;
} bad_logs[] = {
    {"", "/a:0: not a log of descant: it is empty"},
    {"hello\n", "/a:1: not a log of descant: no JSON"},
    {"hello", "/a:1: not a log of descant: no JSON"},
    {"[1]\n", "/a:1: not a log of descant: it does not begin with a header"},
    {"{\"kind\":\"interval\"}\n", "/a:1: not a log"},
    {"{\"kind\":\"header\"}\n\n", "/a:2: damaged: no JSON"},
    {"{\"kind\":\"header\"}\n{\"kind\":\"inter\n{}\n", "/a:2: damaged: no JSON"},
    {"{\"kind\":\"header\"}\n{\"loss\":1}\n", "/a:2: a line without its kind"},
    {"{\"kind\":\"header\"}\n{\"kind\":\"interval\",\"loss\":\"1\"}\n", "/a:2: loss is not a number"},
    {"{\"kind\":\"header\"}\n{\"kind\":\"interval\",\"loss\":NaN}\n", "/a:2: damaged: no JSON"},
};
enum { N_BAD_LOGS = sizeof bad_logs / sizeof *bad_logs };

START_TEST(no_logs_are_refused)
{
    char a[160], page[160], *paths[] = {a, page};
    size_t n;
    strcpy(a, in_folder("a"));
    strcpy(page, in_folder("page.html"));
    put_log(page, "an older page");
    put_log(a, bad_logs[_i].log);
    ck_assert_int_eq(report("%0 -o %1", paths), CLI_FAILED);
    ck_assert_msg(strstr(said, bad_logs[_i].says) != NULL, "said: %s", said);
    ck_assert_uint_eq(count(said, "\n"), 1);
    char *old = get_file(page, &n);
    ck_assert_str_eq(old, "an older page");
    free(old);
}
END_TEST

/* Of two runs of descant train and one of descant bsp run; every @ is a text. */
static const char *const templates[] = {
    "{\"kind\":\"header\",\"descant\":\"@\",\"model\":\"@\",\"sync\":\"@\","
    "\"data\":\"@\",\"eval\":\"@\",\"trainers\":\"@\",\"workers\":\"@\",\"other @\":\"@\"}\n"
    "{\"kind\":\"interval\",\"examples\":10,\"seconds\":1,\"loss\":0.7,\"@\":\"@\"}\n"
    "{\"kind\":\"@\",\"loss\":\"@\"}\n"
    "{\"kind\":\"eval\",\"examples\":10,\"seconds\":1,\"eval_loss\":0.7}\n"
    "{\"kind\":\"interval\",\"examples\":20,\"seconds\":2,\"loss\":0.6}\n"
    "{\"kind\":\"summary\",\"stopped\":\"@\",\"loss\":\"@\",\"eval_loss\":0.6,\"auc\":0.7}\n",
    "{\"kind\":\"header\",\"model\":\"b @\",\"data\":\"b @\",\"eval\":\"b @\"}\n"
    "{\"kind\":\"summary\",\"stopped\":\"@\",\"eval_loss\":0.6}\n",
    "{\"kind\":\"header\",\"modules\":\"@\",\"parameters\":\"@\","
    "\"optimizer\":\"@\"}\n{\"kind\":\"superstep\",\"examples\":10,\"seconds\":1,\"@\":\"@\"}\n",
};

/* The page of these logs, and how many tags it has. */
static char *page_of_texts(const char *value, size_t *tags)
{
    char paths[4][160], *all[4], name[64];
    size_t n;
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, k < 3 ? "log <a'&%d>" : "page", k);
        strcpy(all[k] = paths[k], in_folder(name));
    }
    for (int k = 0; k < 3; k++) {
        FILE *out = fopen(paths[k], "we");
        ck_assert_ptr_nonnull(out);
        for (const char *at = templates[k]; *at; at++)
            *at == '@' ? fputs(value, out) : fputc(*at, out);
        ck_assert_int_eq(fclose(out), 0);
    }
    ck_assert_msg(report("%0 %1 %2 -o %3", all) == CLI_DONE, "%s", said);
    char *page = get_file(paths[3], &n);
    *tags = count(page, "<");
    return page;
}

/* What logs say is text: it brings no tag, whatever it is and wherever it stands. */
START_TEST(texts_of_logs_bring_no_tags)
{
    size_t plain, hostile;
    free(page_of_texts("text", &plain));
    char *page = page_of_texts("<b x=1>&amp; ' \\\" on='y' --></script><x/>", &hostile);
    const char *bad = malformed(page);
    ck_assert_msg(!bad, "malformed at: %.80s", bad);
    ck_assert_uint_eq(plain, hostile);
    ck_assert(!strstr(page, "<b x") && !strstr(page, "\" on=") && !strstr(page, "' on="));
    ck_assert_uint_ge(count(page, "&lt;b x=1&gt;&amp;amp; &#39; &quot; on=&#39;y"), 12);
    free(page);
}
END_TEST

/* A header that was written after a line that a kill or a full disk had torn. */
START_TEST(a_torn_line_before_a_header_is_left_out)
{
    char a[160], page[160], text[1024], *paths[] = {a, page};
    size_t n;
    strcpy(a, in_folder("a"));
    strcpy(page, in_folder("page.html"));
    snprintf(text, sizeof text, "%s%s", going, finished);
    put_log(a, text);
    ck_assert_msg(report("%0 -o %1", paths) == CLI_DONE, "%s", said);
    ck_assert_msg(strstr(said, "/a:4: a line that was torn is left out") != NULL, "%s", said);
    char *html = get_file(page, &n);
    ck_assert_ptr_nonnull(strstr(html, "0.7654"));
    free(html);
}
END_TEST

/* No room for the page: the older one stays, and nothing beside it. */
START_TEST(a_full_disk_keeps_the_older_page)
{
    char a[160], page[160], left[160], *paths[] = {a, page};
    const struct rlimit little = {1000, 1000};
    size_t n;
    strcpy(a, in_folder("a"));
    strcpy(page, in_folder("page.html"));
    snprintf(left, sizeof left, "%.150s.tmp", page);
    put_log(a, finished);
    put_log(page, "an older page");
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &little), 0);
    ck_assert_int_eq(report("%0 -o %1", paths), CLI_FAILED);
    ck_assert_msg(strstr(said, "page.html: File too large") != NULL, "%s", said);
    char *old = get_file(page, &n);
    ck_assert_str_eq(old, "an older page");
    ck_assert_int_ne(access(left, F_OK), 0);
    free(old);
}
END_TEST

START_TEST(bad_use_of_report_is_said)
{
    char a[160], none[160], full[] = "/dev/full", *paths[] = {a, none, full};
    strcpy(a, in_folder("a"));
    strcpy(none, in_folder("none/x"));
    put_log(a, finished);
    ck_assert_int_eq(report("", paths), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(said, "which logs?"));
    ck_assert_int_eq(report("%0 -o", paths), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(said, "--out needs a value"));
    ck_assert_int_eq(report("%0 --colour red", paths), CLI_BAD_USE);
    ck_assert_int_eq(report("%0 -o %0", paths), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(said, "/a would be written over by --out"));
    strcpy(none, in_folder("page.tmp"));
    put_log(none, finished);
    char page[160], *both[] = {none, page};
    strcpy(page, in_folder("page"));
    ck_assert_int_eq(report("%0 -o %1", both), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(said, "page.tmp would be written over by --out, which also writes"));
    ck_assert_int_eq(access(none, F_OK), 0);
    strcpy(none, in_folder("none/x"));
    ck_assert_int_eq(report("%0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0 %0", paths), CLI_BAD_USE);
    ck_assert_ptr_nonnull(strstr(said, "at most 16 logs"));
    ck_assert_int_eq(report("%1 -o -", paths), CLI_FAILED);
    ck_assert_ptr_nonnull(strstr(said, "none/x: cannot open: No such file"));
    ck_assert_int_eq(report("%0 -o %1", paths), CLI_FAILED);
    ck_assert_ptr_nonnull(strstr(said, "none/x cannot be written: No such file"));
    ck_assert_int_eq(report("%0 -o %2", paths), CLI_FAILED);
    ck_assert_ptr_nonnull(strstr(said, "/dev/full: No space left"));
    ck_assert_int_eq(report("--help", paths), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(said, "usage: descant report"));
    for (long k = 1; k <= 8; k++) {
        memory_fail_at(k);
        ck_assert_int_eq(report("%0 -o -", paths), CLI_FAILED);
        ck_assert_ptr_nonnull(strstr(said, "no memory"));
        memory_fail_at(0);
    }
}
END_TEST

/* Jansson's memory for the page's values ends at the k-th time. */
static long left_of_memory;

static void *scarce(size_t n)
{
    return left_of_memory-- > 0 ? malloc(n) : NULL;
}

START_TEST(a_page_is_whole_or_not_there)
{
    struct report_run runs[2];
    FILE *nowhere = fopen("/dev/null", "w");
    long k = -1;
    char *page = NULL, paths[2][160];
    size_t n = 0;
    strcpy(paths[0], in_folder("a"));
    strcpy(paths[1], in_folder("b"));
    put_log(paths[0], finished);
    put_log(paths[1], going);
    for (int r = 0; r < 2; r++)
        ck_assert(report_read(&runs[r], paths[r], nowhere));
    for (bool good = false; !good; free(page)) {
        FILE *out = open_memstream(&page, &n);
        left_of_memory = ++k;
        json_set_alloc_funcs(scarce, free);
        good = report_page(out, runs, 2);
        json_set_alloc_funcs(malloc, free);
        fclose(out);
        ck_assert_msg(good ? malformed(page) == NULL && strstr(page, "0.4567") : n == 0, "at %ld", k);
        ck_assert_msg(good == (left_of_memory >= 0), "at %ld", k);
    }
    ck_assert_int_gt(k, 100);
    for (int r = 0; r < 2; r++)
        report_run_fini(&runs[r]);
    fclose(nowhere);
}
END_TEST

/* Long runs, far values, logarithms, constants, and values that are not for charts. */
START_TEST(odd_curves_stay_on_the_page)
{
    static const char *const losses[] = {"0.5%d", "%d.25", "1e-%d", "1e300", "-1e308", "1e30%d", "0"};
    char paths_room[7][160], *paths[7];
    for (int k = 0; k < 7; k++) {
        char name[16], loss[32];
        snprintf(name, sizeof name, "%d", k);
        paths[k] = strcpy(paths_room[k], in_folder(name));
        FILE *f = fopen(paths[k], "w");
        fputs("{\"kind\":\"header\",\"sync\":\"never\"}\n", f);
        for (int i = 0; i < 900; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(loss, sizeof loss, losses[k], i % 9);
#pragma GCC diagnostic pop
            fprintf(f, "{\"kind\":\"interval\",\"examples\":%d,\"seconds\":%d,\"loss\":%s,\"gap\":%s,\"age_s\":4e-5,"
                    "\"stall_share\":0,\"distance\":0.25}\n", i * 100000, i * 40, i == 3 ? "9" : loss, loss);
        }
        fclose(f);
    }
    for (int k = 0; k < 8; k++) {
        char line[64];
        snprintf(line, sizeof line, k < 7 ? "%%%d -o -" : "%%0 %%1 %%2 %%3 %%4 %%5 %%6 -o -", k);
        ck_assert_msg(report(line, paths) == CLI_DONE, "%s", said);
        ck_assert_msg(malformed(said) == NULL, "%d: %.90s", k, malformed(said));
        ck_assert_msg(!strstr(said, "nan") && !strstr(said, "inf,"), "run %d", k);
        ck_assert_ptr_nonnull(strstr(said, "Means of neighbouring intervals"));
        ck_assert_uint_lt(count(said, "<text"), 400);
        if (k == 0)
            ck_assert_ptr_nonnull(strstr(said, "1 value above the axis"));
        if (k == 2)
            ck_assert_ptr_nonnull(strstr(said, "(logarithmic)"));
        ck_assert_ptr_nonnull(strstr(said, "hours"));
        ck_assert_ptr_nonnull(strstr(said, ">microseconds<"));
        ck_assert_ptr_nonnull(strstr(said, ">0.25</text>"));     /* a mean of equals */
    }
}
END_TEST

/* A last interval of few examples tells no loss; stalls of a millionth are none; a short time is
 * in units that one can read. */
START_TEST(small_things_are_not_made_large)
{
    static const char log[] =
        "{\"kind\":\"header\",\"sync\":\"ma\"}\n"
        "{\"kind\":\"interval\",\"examples\":1000,\"seconds\":1,\"loss\":0.7,\"stall_share\":1e-6,"
        "\"age_s\":4e-5}\n"
        "{\"kind\":\"interval\",\"examples\":2000,\"seconds\":2,\"loss\":0.6,\"stall_share\":2e-6,"
        "\"age_s\":4e-5}\n"
        "{\"kind\":\"interval\",\"examples\":3000,\"seconds\":3,\"loss\":0.5,\"stall_share\":2e-6,"
        "\"age_s\":4e-3}\n"
        "{\"kind\":\"interval\",\"examples\":3100,\"seconds\":3.1,\"loss\":0.9,\"stall_share\":2e-6,"
        "\"age_s\":4e-5}\n";
    char a[160], *paths[] = {a}, text[2 * sizeof log];
    strcpy(a, in_folder("a"));
    snprintf(text, sizeof text, "%s{\"kind\":\"summary\",\"examples\":3100,\"stall_share\":2e-6,"
             "\"gap_mean\":0.999}\n", log);
    put_log(a, text);
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(said, "<td>0 %</td>"));
    ck_assert_ptr_nonnull(strstr(said, "<td>1.0</td>"));
    ck_assert_ptr_nonnull(strstr(said, ">milliseconds (logarithmic)<"));
    ck_assert_ptr_nonnull(strstr(said, ">0.05</text>"));
    ck_assert_ptr_nonnull(strstr(said, ">1.0</text>"));
    ck_assert_ptr_null(strstr(said, "e-0"));
    const char *path = strstr(said, "</title><path d=\"");
    size_t points = 0;
    for (path += 17; *path != '"'; path++)
        points += *path == 'L' || *path == 'M';
    ck_assert_uint_eq(points, 3);
    put_log(a, log);                    /* it goes on: all that there is is shown */
    ck_assert_int_eq(report("%0 -o -", paths), CLI_DONE);
    ck_assert_ptr_nonnull(strstr(said, ">0.9</text>"));
}
END_TEST

int main(void)
{
    TCase *pages = new_case("report", 60);
    tcase_add_checked_fixture(pages, make_folder, remove_folder);
    tcase_add_test(pages, runs_are_compared);
    tcase_add_test(pages, hosts_of_a_run_are_shown);
    tcase_add_test(pages, odd_hosts_are_refused_or_left_out);
    tcase_add_test(pages, evaluations_have_curves);
    tcase_add_test(pages, runs_are_called_what_they_are);
    tcase_add_test(pages, supersteps_are_shown);
    tcase_add_test(pages, supersteps_of_another_rank_are_passed_over);
    tcase_add_test(pages, values_that_hardly_differ_have_an_axis);
    tcase_add_test(pages, intervals_of_supersteps_are_shown);
    tcase_add_test(pages, quality_is_compared_on_one_set);
    tcase_add_test(pages, what_did_not_finish_is_no_best);
    tcase_add_loop_test(pages, axes_can_be_read, 0, 4);
    tcase_add_loop_test(pages, the_order_of_runs_decides_nothing, 0, 4);
    tcase_add_test(pages, logs_torn_anywhere_make_a_page);
    tcase_add_test(pages, a_run_taken_up_again_has_a_gap);
    tcase_add_loop_test(pages, no_logs_are_refused, 0, N_BAD_LOGS);
    tcase_add_test(pages, texts_of_logs_bring_no_tags);
    tcase_add_test(pages, a_torn_line_before_a_header_is_left_out);
    tcase_add_test(pages, a_full_disk_keeps_the_older_page);
    tcase_add_test(pages, bad_use_of_report_is_said);
    tcase_add_test(pages, a_page_is_whole_or_not_there);
    tcase_add_test(pages, odd_curves_stay_on_the_page);
    tcase_add_test(pages, small_things_are_not_made_large);
    return run_cases(pages, NULL);
}
