/* SPDX-License-Identifier: MIT */
/* The standard input of rank 0 feeds the trainers of all hosts: descant train --data - as real
 * processes over TCP, with a real pipe. A receiver that is killed, the reader that is killed,
 * limits, evaluations, compressed input, lines that are bad. */
#include "harness/steps.h"
#include "harness/tcp.h"
#include "harness/training.h"

#define TIMES few(8, 3)         /* over the data, in one pipe */

enum { TRAINERS = 3, RELAX_US = 3000, BLOCK = 32 << 10 };

static char job[300];
static pid_t pids[TRAINERS], writer;

static double logged_of(int host, const char *kind, const char *key)
{
    char first[sizeof log_file];
    snprintf(first, sizeof first, "%s", log_file);
    snprintf(log_file, sizeof log_file, host ? "%.80s.host%d" : "%.80s", first, host);
    double value = access(log_file, R_OK) == 0 ? logged(kind, key) : -1;
    strcpy(log_file, first);
    return value;
}

static struct train_options of_job(void)
{
    struct train_options o = small();
    struct tcp_options at;
    tcp_test_address(&at, "127.0.0.1", TRAINERS);
    snprintf(job, sizeof job, "tcp:127.0.0.1:%s,ranks=%d,dead=5s", at.port, TRAINERS);
    o.data = "-";
    o.job = job;
    o.trainers = 0;
    o.over_tcp = true;
    o.model = MODEL_FM;
    o.sync = "shadow-delta";
    o.workers = 1;
    o.log = log_file;
    o.log_every = 0.05;
    o.checkpoint = model_file;
    return o;
}

/* In a child: the file so many times, with a rest after each block, into the pipe. */
static int write_pipe(const char *path, int times, useconds_t rest_us)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    writer = fork();
    if (writer == 0) {
        static char block[BLOCK];
        close(ends[0]);
        for (int k = 0; k < times; k++) {
            int fd = open(path, O_RDONLY);
            for (ssize_t n; (n = read(fd, block, sizeof block)) > 0; usleep(rest_us))
                for (ssize_t at = 0, more; at < n; at += more)
                    if ((more = write(ends[1], block + at, (size_t)(n - at))) < 0)
                        _exit(1);
            close(fd);
        }
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

/* Rank 0 has the pipe, the others nothing. */
static void begin_all(const struct train_options *o, int input)
{
    int mine = dup(STDIN_FILENO), nothing = open("/dev/null", O_RDONLY);
    for (int k = 0; k < TRAINERS; k++) {
        char number[2] = {(char)('0' + k), 0};
        dup2(k ? nothing : input, STDIN_FILENO);
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", "3", 1);
        pids[k] = begin(o);
    }
    dup2(mine, STDIN_FILENO);
    close(mine);
    close(nothing);
    close(input);
}

static double end_all(int but)
{
    double all = 0;
    for (int k = 0; k < TRAINERS; k++)
        if (k != but) {
            int status = end_within(pids[k], 60);
            ck_assert_msg(status == 0, "trainer %d: %d: %s", k, status, said);
            all += logged_of(k, "summary", "examples");
        }
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    return all;
}

static void never_said(const char *text)
{
    ck_assert_msg(!strstr(said, text), "'%s' is in:\n%s", text, said);
}

/* The checkpoint's: no chunk below the cursor is to be done. */
static uint64_t chunks_done(void)
{
    struct safetensors *file;
    size_t n = 0;
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    const uint64_t *place = safetensors_list(file, "descant.place", SAFETENSORS_U64, &n);
    ck_assert_msg(n == 2, "%zu numbers in the place", n);
    uint64_t cursor = place[0];
    safetensors_close(file);
    return cursor;
}

START_TEST(all_hosts_train_the_pipe)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-delta", "ma,every=2",
                                        "dasgd-delta,every=4,delay=2", "diloco,every=5", "none"};
    struct train_options o = of_job();
    o.sync = plans[_i];
    begin_all(&o, write_pipe(clicks, 2, 0));
    double all = end_all(-1);
    ck_assert_msg(all == 2 * ROWS, "%.0f examples", all);
    ck_assert(_i == 5 || examples_kept() == 2 * ROWS);
    for (int k = 0; k < TRAINERS; k++)
        ck_assert_msg(logged_of(k, "summary", "examples") > 0, "host %d has none", k);
}
END_TEST
enum { PLANS = 6 };

/* It is decompressed once, where it is read. */
START_TEST(a_compressed_pipe)
{
    struct train_options o = of_job();
    char path[128];
    snprintf(path, sizeof path, "%s%s", clicks, _i ? ".zst" : ".gz");
    FILE *to = fopen(path, "wb"), *out = pack_open(to, path), *in = fopen(clicks, "rb");
    for (int c; (c = getc(in)) != EOF;)
        putc(c, out);
    fclose(in);
    fclose(out);
    fclose(to);
    begin_all(&o, write_pipe(path, 1, 0));
    ck_assert_double_eq(end_all(-1), ROWS);
}
END_TEST

START_TEST(a_limit_is_exact)
{
    struct train_options o = of_job();
    o.examples = ROWS + 77;
    begin_all(&o, write_pipe(clicks, TIMES, 0));
    ck_assert_double_eq(end_all(-1), ROWS + 77);
}
END_TEST

/* The place in an earlier pipe says nothing of this one. */
START_TEST(a_resumed_run_trains_the_next_pipe)
{
    struct train_options o = of_job();
    begin_all(&o, write_pipe(clicks, 1, 0));
    ck_assert_double_eq(end_all(-1), ROWS);
    o = of_job();
    o.resume = true;
    begin_all(&o, write_pipe(clicks, 1, 0));
    end_all(-1);
    ck_assert_msg(examples_kept() == 2 * ROWS, "%.0f, %s", examples_kept(), said);
}
END_TEST

/* The pipe has no end. */
START_TEST(patience_ends_all)
{
    struct train_options o = of_job();
    o.eval = held_out;
    o.eval_every = 2000;
    o.patience = 1;
    o.lr = 5;                   /* no gain */
    each_batch_us = 1000;       /* evaluations take their time, too */
    begin_all(&o, write_pipe(clicks, 1000, 0));
    end_all(-1);
    says("no gain in");
}
END_TEST

/* Which lines are bad is said with their numbers in the whole input, by whoever parses them. */
START_TEST(bad_lines_have_their_numbers)
{
    struct train_options o = of_job();
    FILE *in = fopen(clicks, "r"), *out;
    static char line[4096], path[128];
    char where[32];
    enum { BAD_LINE = ROWS * 3 / 4 };
    snprintf(path, sizeof path, "%s.bad", clicks);
    out = fopen(path, "w");
    for (int k = 1; fgets(line, sizeof line, in); k++)
        fputs(k == BAD_LINE ? "1\t2\n" : line, out);
    fclose(in);
    fclose(out);
    begin_all(&o, write_pipe(path, 1, 0));
    ck_assert_double_eq(end_all(-1), ROWS - 1);
    snprintf(where, sizeof where, "stdin:%d: ", BAD_LINE);
    says(where);
}
END_TEST

/* What it had been sent, and is in no common model, is sent to the others. */
START_TEST(a_receiver_is_killed)
{
    struct train_options o = of_job();
    o.sync = _i ? "dasgd-delta,every=4,delay=2" : "shadow-delta";
    begin_all(&o, write_pipe(clicks, TIMES, RELAX_US));
    WAIT_UNTIL(logged_of(2, "interval", "examples") > ROWS / 8, "%s", (read_said(), said));
    kill(pids[2], SIGKILL);
    end_within(pids[2], 5);
    double others = end_all(2), dead = logged_of(2, "interval", "examples");
    ck_assert_msg(others < TIMES * ROWS, "%.0f", others);
    ck_assert_msg(others + dead > TIMES * ROWS - 4000, "%.0f and %.0f", others, dead);
    uint64_t bytes, chunk = (uint64_t)o.chunk;
    struct stat of;
    ck_assert_int_eq(stat(clicks, &of), 0);
    bytes = (uint64_t)of.st_size * (uint64_t)TIMES;
    ck_assert_uint_ge(chunks_done(), bytes / chunk);
    never_said("is lost");
}
END_TEST

START_TEST(the_reader_is_killed)
{
    struct train_options o = of_job();
    o.sync = _i ? "ma,every=2" : "shadow-easgd";
    begin_all(&o, write_pipe(clicks, 1000, RELAX_US));
    for (int k = 1; k < TRAINERS; k++)
        WAIT_UNTIL(logged_of(k, "interval", "examples") > ROWS / 8, "%s", (read_said(), said));
    kill(pids[0], SIGKILL);
    end_within(pids[0], 5);
    double all = end_all(0);
    ck_assert_double_gt(all, ROWS / 4);
    says(", which read the input, has gone: the input ends here, and all do what they have");
}
END_TEST

/* Its part is trained by then; the others end with what they have. */
START_TEST(the_reader_leaves)
{
    struct train_options o = of_job();
    begin_all(&o, write_pipe(clicks, 1000, RELAX_US));
    for (int k = 0; k < TRAINERS; k++)
        WAIT_UNTIL(logged_of(k, "interval", "examples") > ROWS / 8, "%s", (read_said(), said));
    kill(pids[0], SIGTERM);
    end_all(-1);
    says("has left: SIGTERM");
    says(", which read the input, has gone: the input ends here, and all do what they have");
}
END_TEST

int main(void)
{
    TCase *runs = new_case("runs", 200), *deaths = new_case("deaths", 90);
    make_clicks();
    tcase_add_checked_fixture(runs, set_up_training, remove_folder);
    tcase_add_checked_fixture(deaths, set_up_training, remove_folder);
    tcase_add_loop_test(runs, all_hosts_train_the_pipe, few(0, 1), few(PLANS, few_threads(3, 2)));
    tcase_add_loop_test(runs, a_compressed_pipe, few(0, 1), 2);
    tcase_add_test(runs, a_limit_is_exact);
    tcase_add_test(runs, a_resumed_run_trains_the_next_pipe);
    tcase_add_test(runs, patience_ends_all);
    tcase_add_test(runs, bad_lines_have_their_numbers);
    tcase_add_loop_test(deaths, a_receiver_is_killed, 0, few_threads(2, 1));
    tcase_add_loop_test(deaths, the_reader_is_killed, few_threads(0, 1), 2);
    tcase_add_test(deaths, the_reader_leaves);
    return run_cases(runs, deaths, NULL);
}
