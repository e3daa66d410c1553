/* SPDX-License-Identifier: MIT */
/* Runs of descant train on a bad day: a disk that is slow when a signal or a death comes, forks
 * that fail, files that become others, a trainer that hangs; and the words in which trainers tell
 * each other why they stop.
 *
 * fsync, write, fork, machine_cores, evaluate and model_gradient are those below (the linker's
 * --wrap). */
#include "harness/training.h"

#include "machine/process.h"
#include "train/claims.h"
#include "train/place.h"
#include "train/trainer.h"

#include <pthread.h>
#include <sys/resource.h>

int __real_fsync(int fd);
int __wrap_fsync(int fd);
ssize_t __real_write(int fd, const void *from, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n);
pid_t __real_fork(void);
pid_t __wrap_fork(void);
double __real_machine_cores(void);
double __wrap_machine_cores(void);
descant_status __real_evaluate(const struct evaluation *e, struct held_out *h);
descant_status __wrap_evaluate(const struct evaluation *e, struct held_out *h);
double __real_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *batch, float *g, float *scores);
double __wrap_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *batch, float *g, float *scores);

static char gate[96], waits[128], temporary[128];
static int forks, fork_that_fails;          /* counted from 1; 0: none */
static double cores;
static int multiplier_that_fails;           /* of those forked after cores were counted */

/* The disk is busy with files while there is one of that name, but not for ever. Another says that
 * somebody waits for it. */
int __wrap_fsync(int fd)
{
    struct stat of;
    bool file = fstat(fd, &of) == 0 && S_ISREG(of.st_mode);
    for (int tries = 0; file && *gate && access(gate, F_OK) == 0 && tries < 30000; tries++) {
        if (tries == 0)
            close(open(waits, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        usleep(1000);
    }
    return __real_fsync(fd);
}

/* A worker diverges between the look at a tensor of that size and its writing. */
static float diverging[3];

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
    if (n == sizeof diverging)
        diverging[1] = NAN;
    return __real_write(fd, from, n);
}

/* One of the processes that are forked has a bad start. */
enum bad_start { KILLED, STOPS_THEN_KILLED, NO_FILES, NO_MEMORY, BAD_STARTS };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BAD_STARTS_HERE NO_MEMORY       /* which a sanitizer needs itself */
#else
#define BAD_STARTS_HERE BAD_STARTS
#endif
static int fork_that_suffers;
static enum bad_start bad_start;
static rlim_t memory_left = 64 << 20;

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *in = fopen("/proc/self/statm", "re");
    ck_assert(in && fscanf(in, "%lu", &pages) == 1 && fclose(in) == 0);
    return pages * machine_page();
}

/* Stops, and is killed when the others, who are of one parent with it, wait for it. */
static void stop_and_die(pid_t run)
{
    pid_t victim = getpid(), others[8];
    if (__real_fork() > 0) {
        raise(SIGSTOP);
        return;
    }
    while (state_of(victim) != 'T')
        usleep(1000);
    for (int k = children_of(run, others, 8); k-- > 0;)
        if (others[k] != victim)
            wait_asleep(others[k]);
    kill(victim, SIGKILL);
    _exit(0);
}

static void suffer(void)
{
    struct rlimit files = {6, 6}, memory;
    if (bad_start == NO_FILES)
        setrlimit(RLIMIT_NOFILE, &files);
    else if (bad_start == NO_MEMORY) {
        memory.rlim_cur = memory.rlim_max = address_space() + memory_left;
        setrlimit(RLIMIT_AS, &memory);
    }
    else if (bad_start == KILLED)
        raise(SIGKILL);
    else
        stop_and_die(getppid());
}

pid_t __wrap_fork(void)
{
    bool fails = ++forks == fork_that_fails, suffers = forks == fork_that_suffers;
    errno = EAGAIN;
    pid_t pid = fails ? -1 : __real_fork();
    if (pid == 0 && suffers)
        suffer();
    return pid;
}

/* Asked by descant bench train right before it forks its multipliers. */
double __wrap_machine_cores(void)
{
    if (cores <= 0)
        return __real_machine_cores();
    forks = 0;
    fork_that_fails = multiplier_that_fails;
    return cores;
}

/* How the first evaluation goes, and what it saw; shared with the trainers that are forked. */
enum { AT_ONCE, UNTIL_LATE, UNTIL_TRAINED, OF_ANOTHER };
static struct {
    int how;
    _Atomic int calls;
    _Atomic bool done;
    _Atomic uint64_t given;     /* examples to workers, about */
    uint64_t began, ended;      /* examples trained */
    bool moved;                 /* the dense part did, meanwhile */
} *eval;

static uint64_t trained(const struct evaluation *e)
{
    const struct trainer *t = e->of;
    return board_sum(t->board).n;
}

static void name_is(const char *path);
static const char *other_clicks(void);

descant_status __wrap_evaluate(const struct evaluation *e, struct held_out *h)
{
    if (!eval || eval->how == AT_ONCE)
        return __real_evaluate(e, h);
    uint64_t began = trained(e);        /* before workers go on */
    if (eval->calls++ > 0)
        return __real_evaluate(e, h);
    if (eval->how == OF_ANOTHER) {
        name_is(other_clicks());
        return __real_evaluate(e, h);
    }
    size_t n = model_floats(e->model);
    float *w = memory_take_array(n, sizeof *w);
    memcpy(w, e->w, n * sizeof *w);
    eval->began = began;
    while (!e->stopped(e->of) && (eval->how == UNTIL_LATE || trained(e) < eval->began + 2 * ROWS))
        usleep(1000);
    eval->ended = trained(e);
    eval->moved = memcmp(w, e->w, n * sizeof *w) != 0;
    memory_give(w);
    descant_status status = __real_evaluate(e, h);
    eval->done = true;
    return status;
}

/* Training is not over before there was an evaluation to see: workers stand still after two passes
 * until it has begun, and, where it is to end before them, after six until it has. */
double __wrap_model_gradient(struct work *work, const float *w, const float *tables,
                             const struct examples *batch, float *g, float *scores)
{
    bool held = eval && (eval->how == UNTIL_LATE || eval->how == UNTIL_TRAINED);
    uint64_t given = held ? atomic_fetch_add(&eval->given, batch->n) : 0;
    while (held && ((given > 2 * ROWS && eval->calls == 0) ||
                    (given > 6 * ROWS && eval->how == UNTIL_TRAINED && !eval->done)))
        usleep(1000);
    return __real_model_gradient(work, w, tables, batch, g, scores);
}

static void setup_eval(void)
{
    set_up_training();
    eval = share_memory(sizeof *eval);
}

static void setup_gate(void)
{
    set_up_training();
    snprintf(gate, sizeof gate, "%s/gate", folder);
    snprintf(waits, sizeof waits, "%s/waits", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", model_file);
}

static void close_gate(void)
{
    ck_assert_int_eq(close(open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
}

/* Waits for a checkpoint that stays unfinished before the gate. */
static void wait_writing(void)
{
    wait_file(waits);
    ck_assert_int_eq(access(temporary, F_OK), 0);
}

/* --- signals --- */

START_TEST(a_checkpoint_under_way_delays_no_signal)
{
    struct train_options o = endless();
    o.trainers = 1 + _i;
    pid_t pid = begin(&o);
    wait_examples(ROWS / 4);
    close_gate();
    wait_writing();
    kill(pid, _i ? SIGINT : SIGTERM);
    wait_said(_i ? "SIGINT: the run ends with a last checkpoint"
                 : "SIGTERM: the run ends with a last checkpoint", 1);
    ck_assert_int_eq(access(temporary, F_OK), 0);
    unlink(gate);
    ck_assert_int_eq(end_within(pid, 30), 128 + (_i ? SIGINT : SIGTERM));
    ck_assert_double_eq(examples_kept(), examples_said());
    const char *first = strstr(said, ": the run ends");
    ck_assert_msg(!strstr(first + 1, ": the run ends"), "said twice: %s", said);
}
END_TEST

START_TEST(the_log_goes_on_beside_a_checkpoint)
{
    struct train_options o = endless();
    pid_t pid = begin(&o);
    wait_examples(ROWS / 4);
    close_gate();
    wait_writing();
    double n = logged("interval", "examples");
    wait_examples(n + ROWS);
    ck_assert_int_eq(access(temporary, F_OK), 0);
    unlink(gate);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 30), 128 + SIGTERM);
}
END_TEST

/* One trainer hangs, so the other cannot finish: the same signal twice at once, as a terminal and
 * a parent bring it, is one; a later one ends it. */
START_TEST(a_second_signal_ends_at_once)
{
    struct train_options o = endless();
    pid_t pids[2];
    o.checkpoint_every = 0;
    for (int k = 0; k < 2; k++)
        pids[k] = begin_rank(&o, k);
    wait_examples(ROWS / 4);
    wait_heeding(pids, 2);
    kill(pids[1], SIGSTOP);
    kill(pids[0], SIGINT);
    WAIT_UNTIL(!is_pending(pids[0], SIGINT), "%s", said);       /* both are delivered */
    kill(pids[0], SIGINT);
    wait_said("SIGINT: the run ends", 1);
    usleep(1500000);                    /* later is after a second, by the run's own clock */
    ck_assert_int_eq(waitpid(pids[0], NULL, WNOHANG), 0);
    kill(pids[0], SIGINT);
    ck_assert_int_eq(end_within(pids[0], 5), 128 + SIGINT);
    ck_assert_int_ne(access(model_file, F_OK), 0);
    kill(pids[1], SIGCONT);             /* its heir */
    ck_assert_int_eq(end_within(pids[1], 30), 128 + SIGINT);
    ck_assert_double_eq(examples_kept(), examples_said());
}
END_TEST

/* --- deaths --- */

static void train_some(const struct train_options *o, int examples)
{
    struct train_options few = *o;
    struct train_result r;
    few.examples = examples;
    ck_assert_msg(train(&few, &r) == 0, "%s", said);
}

/* All of them are killed while the last checkpoint is written, of which all or a part is there. */
START_TEST(a_death_at_the_last_checkpoint_loses_only_that)
{
    struct train_options o = endless();
    struct train_result r;
    o.trainers = 2;
    o.checkpoint_every = 0;
    train_some(&o, 3200);
    o.resume = true;
    pid_t pid = begin(&o);
    wait_examples(3200 + ROWS / 4);
    close_gate();
    kill(pid, SIGTERM);
    wait_writing();
    kill_all(pid);
    unlink(gate);
    if (_i)
        ck_assert_int_eq(truncate(temporary, 5000), 0);
    ck_assert_double_eq(examples_kept(), 3200);
    o.epochs = 1;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(r.seen.n >= ROWS && r.seen.n <= ROWS + 2 * 4 * 300, "%llu examples",
                  (unsigned long long)r.seen.n);
    ck_assert_double_eq(examples_kept(), (double)r.seen.n);
    ck_assert_int_ne(access(temporary, F_OK), 0);
}
END_TEST

/* Who fills the board from a checkpoint may die at it: the next does it again, not twice. */
START_TEST(sums_are_resumed_once)
{
    static struct board board;
    struct train_options o = small();
    struct train_result r;
    struct saved saved;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(saved_open(&saved, model_file, NULL), DESCANT_OK);
    struct trainer t = {
        .options = &o, .board = &board, .model = saved.model, .tables = saved.tables,
        .optimizer = o.optimizer, .format = DATA_CRITEO, .hosts = 1, .log = {.rank = -1},
    };
    struct file_mark mark = file_mark(clicks, UINT64_MAX);
    atomic_store(&board.bytes[0], mark.bytes);
    atomic_store(&board.hashes[0], mark.hash);
    t.shape = (struct data_shape){.n_dense = 13, .n_fields = 26, .n_classes = 1};
    ck_assert_int_eq(path_list_init(&t.paths, clicks, NULL), DESCANT_OK);
    size_t rows = model_table_rows(t.model);
    t.table_state = memory_take_array(
        optimizer_row_floats(&t.optimizer, rows, model_table_width(t.model)), sizeof(float));
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(resume_tables(&t), DESCANT_OK);
        struct metrics m = board_sum(&board);
        ck_assert_uint_eq(m.n, 3200);
        ck_assert_uint_eq(m.positive, r.seen.positive);
        ck_assert_uint_eq(m.correct, r.seen.correct);
        ck_assert_double_eq(m.loss, r.seen.loss);
        ck_assert_double_eq(m.predicted, r.seen.predicted);
        ck_assert_uint_gt(atomic_load(&board.next), 0);
        ck_assert_uint_le(atomic_load(&board.n_todo), (unsigned)o.depth);
    }
    memory_give(t.table_state);
    path_list_fini(&t.paths);
    saved_close(&saved);
}
END_TEST

/* The checkpoint at `from` with another place, as of so many hosts. */
static void put_again(const char *from, const char *to, const char *hosts, const char *dealt,
                      const struct safetensor *place)
{
    const struct safetensors_text texts[] = {
        {"hosts", hosts}, {"sums", "0 0 0 0 0"}, {"dealt", dealt}};
    struct safetensor tensors[64] = {*place};
    struct safetensors *file;
    size_t n = 1;
    ck_assert_int_eq(safetensors_open(&file, from, NULL), DESCANT_OK);
    ck_assert_uint_le(safetensors_count(file), 64);
    for (size_t k = 0; k < safetensors_count(file); k++)
        if (strcmp(safetensors_at(file, k)->name, place->name) != 0)
            tensors[n++] = *safetensors_at(file, k);
    ck_assert_int_eq(safetensors_write(to, NULL, tensors, n, texts, dealt ? 3 : 2, NULL),
                     DESCANT_OK);
    safetensors_close(file);
}

/* A checkpoint is input: a place of 50 million chunks in no bytes, and cursors that have an end
 * before them, or are no number of a chunk. */
START_TEST(a_place_that_cannot_be)
{
    static const uint64_t at[][2] = {{0, 0}, {7, 1}, {UINT64_C(1) << 62, 0}};
    struct train_options o = small();
    struct train_result r;
    char first[128];
    snprintf(first, sizeof first, "%s/first", folder);
    o.checkpoint = first;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    struct safetensor place = {.name = "descant.place", .type = SAFETENSORS_U64, .n_dims = 2,
                               .dims = {50000000, 0}};
    if (_i)
        place = (struct safetensor){.name = "descant.place", .type = SAFETENSORS_U64, .n_dims = 1,
                                    .dims = {2}, .data = at[_i], .bytes = 16};
    put_again(first, model_file, "1", NULL, &place);
    o.checkpoint = model_file;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.own.n, 3200);
}
END_TEST

/* An earlier version wrote the place of one of several hosts; this one writes that of all. */
START_TEST(the_place_of_one_host_of_several_is_none)
{
    static const uint64_t at[] = {3, 0, 1};
    struct train_options o = small();
    struct train_result r;
    char first[128];
    const struct safetensor place = {.name = "descant.place", .type = SAFETENSORS_U64,
                                     .n_dims = 1, .dims = {3}, .data = at, .bytes = sizeof at};
    snprintf(first, sizeof first, "%s/first", folder);
    o.chunk = 64 << 10;
    o.checkpoint = first;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    put_again(first, model_file, "3", _i ? "1" : NULL, &place);
    o.checkpoint = model_file;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    bool anew = strstr(said, "has the place in the data of one host alone");
    ck_assert_msg(anew == !_i, "%s", said);
    ck_assert_msg(_i ? r.own.n < ROWS : r.own.n == ROWS, "%llu", (unsigned long long)r.own.n);
}
END_TEST

/* A job that gives no outer state says why; it is not for want of memory. */
START_TEST(what_keeps_the_outer_state_is_said)
{
    struct train_options o = small();
    struct descant_options job = descant_options_default();
    struct trainer t = {.options = &o, .log = {.rank = -1}};
    o.checkpoint = model_file;
    ck_assert_int_eq(descant_open(&t.job, &job), DESCANT_OK);
    ck_assert_int_eq(save_keep_outer(&t), DESCANT_ORDER);
    ck_assert_msg(strstr(descant_last_error(), "wants a job that is started"), "%s",
                  descant_last_error());
    descant_close(t.job);
}
END_TEST

START_TEST(what_is_looked_at_is_what_is_written)
{
    const struct safetensor t = {.name = "w", .type = SAFETENSORS_F32, .n_dims = 1, .dims = {3},
                                 .data = diverging, .bytes = sizeof diverging, .finite = true};
    struct safetensors *file;
    ck_assert_int_eq(safetensors_write(model_file, NULL, &t, 1, NULL, 0, NULL), DESCANT_OK);
    ck_assert(isnan(diverging[1]));
    ck_assert_int_eq(safetensors_open(&file, model_file, NULL), DESCANT_OK);
    const float *w = safetensors_find(file, "w")->data;
    ck_assert(isfinite(w[1]));
    safetensors_close(file);
    ck_assert_int_eq(safetensors_write(model_file, NULL, &t, 1, NULL, 0, NULL), DESCANT_INVALID);
}
END_TEST

/* --- why a run stops --- */

START_TEST(the_first_says_why)
{
    static struct board board;
    char longer[400] = "";
    ck_assert_str_eq(board_why(&board), "");
    memset(longer, 'x', sizeof longer - 1);
    board_stop(&board, STOP_EARLY, "%d evaluations %s", 7, longer);
    board_stop(&board, STOP_FAILED, "the second");
    ck_assert(!board_halt(&board, STOP_NAN));
    ck_assert(!board_signalled(&board, SIGTERM));
    ck_assert_int_eq(board_stopped(&board), STOP_EARLY);
    ck_assert_int_eq(strncmp(board_why(&board), "7 evaluations xxx", 17), 0);
    ck_assert_uint_eq(strlen(board_why(&board)), sizeof board.why - 1);
}
END_TEST

START_TEST(a_signal_says_why_once)
{
    static struct board board;
    ck_assert(board_signalled(&board, SIGTERM));
    ck_assert(!board_signalled(&board, SIGINT));
    ck_assert_int_eq(board_stopped(&board), STOP_SIGNAL);
    ck_assert_int_eq(atomic_load(&board.signal), SIGTERM);
    ck_assert_str_eq(board_why(&board), "stopped by signal 15");
}
END_TEST

static void *explain_late(void *of)
{
    wait_asleep(getpid());
    board_explain(of, "the tensor is %s", "w");
    return NULL;
}

START_TEST(who_asks_waits_for_the_reason)
{
    static struct board board;
    pthread_t thread;
    ck_assert(board_halt(&board, STOP_NAN));
    ck_assert_int_eq(board_stopped(&board), STOP_NAN);
    board_stop(&board, STOP_FAILED, "a consequence");
    ck_assert_int_eq(pthread_create(&thread, NULL, explain_late, &board), 0);
    ck_assert_str_eq(board_why(&board), "the tensor is w");
    pthread_join(thread, NULL);
}
END_TEST

/* --- forks --- */

START_TEST(a_trainer_that_cannot_be_started)
{
    struct train_options o = small();
    struct train_result r;
    char why[64];
    snprintf(why, sizeof why, "trainer %d cannot be started: Resource", _i);
    o.trainers = 3;
    fork_that_fails = forks + 1 + _i;
    ck_assert_int_eq(train(&o, &r), 1);
    says(why);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    fork_that_fails = 0;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
}
END_TEST

/* The parent ends the start at once: nobody waits for who will not come. */
START_TEST(a_trainer_with_a_bad_start)
{
    static const char *const why[] = {
        [NO_FILES] = "Too many open files", [NO_MEMORY] = "emory",
        [KILLED] = "trainer 1 was killed by signal 9 before all had started: the run ends",
        [STOPS_THEN_KILLED] = "trainer 1 was killed by signal 9 before all had started",
    };
    struct train_options o = small();
    o.trainers = 3;
    o.start_s = 600;
    bad_start = (enum bad_start)_i;
    fork_that_suffers = forks + 1 + 2;      /* begin() has the first */
    pid_t pid = begin(&o);
    ck_assert_msg(end_within(pid, 60) == 1, "%s", said);
    says(why[_i]);
    if (_i >= NO_FILES)
        says("descant: trainer 1 could not start: the run ends");
    ck_assert_ptr_null(strstr(said, "examples/s"));
}
END_TEST

/* However little address space a trainer of a model that multiplies has, it trains, or says why it does
 * not; OpenBLAS itself would ask for its buffers for ever. */
START_TEST(a_little_address_space)
{
    struct train_options o = small();
    bool refused = false;
    o.workers = 2;
    o.start_s = 600;
    bad_start = NO_MEMORY;
    for (int k = 0; k < 12; k++) {
        memory_left = (rlim_t)(k < 11 ? 40 + 64 * k : 4000) << 20;
        fork_that_suffers = forks + 1 + 1;      /* begin() has the first */
        pid_t pid = begin(&o);
        int code = end_within(pid, 60);
        ck_assert_msg(code == 0 || code == 1, "%d with %llu: %s", code,
                      (unsigned long long)memory_left, said);
        ck_assert_msg(!strstr(said, "killed"), "%s", said);
        refused |= strstr(said, "no memory for products in 2 threads: OpenBLAS wants") != NULL;
        ck_assert_msg(k < 11 || code == 0, "%s", said);
        unlink(said_file);
    }
    ck_assert(refused);
}
END_TEST

#define ROUNDS(n) \
    "bench train --rows 1000 --rounds " #n " --run-s 0.1 --batch 64 --table-rows 10 --json"
#define BENCH ROUNDS(1)

/* As many as are at work, where there are cores for them. So many workers on two cores step from
 * parameters that are long gone, and with the default optimizers their run may diverge. */
START_TEST(multipliers_are_as_many_as_workers)
{
    int workers = few(33, 9);
    cores = 200;
    ck_assert_msg(program(BENCH " --trainers 2 --workers %d --optimizer adagrad "
                          "--table-optimizer adagrad", workers) == CLI_DONE, "%s", err_text);
    ck_assert_int_eq(forks, 2 * workers + 2);
    cores = 0.5;
    ck_assert_msg(program(BENCH " --trainers 2") == CLI_DONE, "%s", err_text);
    ck_assert_int_eq(forks, 1 + 2);
    ck_assert_ptr_nonnull(strstr(out_text, "\"sgemm_gflops\":"));
    ck_assert_ptr_null(strstr(out_text, "\"sgemm_gflops\":null"));
}
END_TEST

static double number_in(const char *json, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    ck_assert_msg(at, "no %s in %s", name, json);
    return strtod(at + strlen(key), NULL);
}

START_TEST(a_share_of_the_bound_of_its_own_round)
{
    ck_assert_msg(program(BENCH) == CLI_DONE, "%s", err_text);
    double share = number_in(out_text, "of_bound");
    double medians = number_in(out_text, "examples_per_s") /
                     number_in(out_text, "bound_examples_per_s");
    ck_assert_double_eq_tol(share, medians, 1e-6 * medians);    /* of one round */
    ck_assert_msg(program(ROUNDS(3)) == CLI_DONE, "%s", err_text);
    share = number_in(out_text, "of_bound");
    ck_assert_double_gt(number_in(out_text, "of_bound_low"), 0);
    ck_assert_double_le(number_in(out_text, "of_bound_low"), share);
    ck_assert_double_ge(number_in(out_text, "of_bound_high"), share);
}
END_TEST

START_TEST(a_benchmark_without_processes)
{
    fork_that_fails = forks + 1;
    ck_assert_int_eq(program(BENCH), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "trainer 0 cannot be started: Resource"), "%s", err_text);
    cores = 4;
    multiplier_that_fails = 3;
    ck_assert_int_eq(program(BENCH " --workers 4"), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "no process to multiply in: Resource"), "%s", err_text);
    ck_assert_int_eq(forks, 3);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_str_eq(out_text, "");
    fork_that_fails = forks + 2;
    ck_assert_int_eq(program("bench overlap --bytes 64K --pairs 1 --run-s 0.02"), CLI_FAILED);
    ck_assert_msg(strstr(err_text, "trainer 1 cannot be started: Resource"), "%s", err_text);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

/* --- files that become others --- */

static char some_file[96];

/* The name, that tells no format, is that of another file from now on. */
static void name_is(const char *path)
{
    char new[128];
    snprintf(some_file, sizeof some_file, "%s/some", folder);
    snprintf(new, sizeof new, "%s/new", folder);
    ck_assert_int_eq(symlink(path, new), 0);
    ck_assert_int_eq(rename(new, some_file), 0);
}

static const char *other_clicks(void)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/other.svm", folder);
    FILE *out = fopen(path, "we");
    for (int k = 0; k < 1000; k++)
        fprintf(out, "%d 3:1 7:%d\n", k & 1, k);
    fclose(out);
    return path;
}

START_TEST(a_held_out_set_that_becomes_another)
{
    struct train_options o = endless();
    struct train_result r;
    o.format = DATA_AUTO;
    o.checkpoint = NULL;
    name_is(held_out);
    o.eval = some_file;
    o.eval_every = 2000;
    eval->how = OF_ANOTHER;
    ck_assert_int_eq(train(&o, &r), 1);
    says(" has 0 dense features, 1 field and 1 class; the model takes 13, 26 and 1");
}
END_TEST

/* A chunk of the dead lies behind, so the file is opened anew, and is another. */
START_TEST(data_that_becomes_other_data)
{
    static struct board board;
    struct log log = {.rank = -1};
    const char *path = some_file, *why;
    struct feed *feed;
    struct feed_batch batch;
    uint64_t n = 0;
    pid_t dead = fork();
    if (dead == 0)
        _exit(0);
    waitpid(dead, NULL, 0);
    name_is(clicks);
    struct claims claims = {.board = &board, .seat = board_sit(&board, 0)};
    struct feed_options o = {
        .data = {.paths = &path, .n_paths = 1, .chunk_bytes = 64 << 10, .log = &log},
        .claims = claims_begin(&claims), .depth = 2, .batch = 32, .log = &log,
    };
    board_sit(&board, 1);
    atomic_store(&board.seats[1].process, (uint64_t)dead << 40);
    atomic_store(&board.seats[1].claimed[0], 1);
    atomic_store(&board.next, 1);
    ck_assert_int_eq(feed_start(&feed, &o), DESCANT_OK);
    while (feed_next(feed, &batch)) {
        ck_assert_int_eq(batch.examples.n_fields, 26);
        if (n == 0)
            name_is(other_clicks());
        n += batch.examples.n;
        feed_done(feed, &batch);
    }
    ck_assert_msg(feed_status(feed, &why) == DESCANT_MISMATCH, "%s", why);
    ck_assert_str_eq(why, "the files changed while they were read");
    ck_assert_int_eq(board_stopped(&board), STOP_FAILED);
    ck_assert_msg(n > ROWS / 2 && n < ROWS, "%llu examples", (unsigned long long)n);
    feed_stop(feed);
}
END_TEST

/* The process whose number it was has died, and another one has it now. */
START_TEST(a_seat_is_not_held_by_who_has_its_number_now)
{
    static struct board board;
    struct seat *mine = board_sit(&board, 1);
    uint64_t chunk;

    board_sit(&board, 0);
    atomic_store(&board.seats[0].claimed[0], 8);
    ck_assert(!board_reports(&board, mine));
    ck_assert(!board_orphaned(&board));
    atomic_store(&board.seats[0].process, process_self(NULL) + 1);
    ck_assert(board_reports(&board, mine));
    ck_assert(board_orphaned(&board) && board_inherit(&board, mine, 0, &chunk));
    ck_assert_uint_eq(chunk, 7);
    atomic_store(&board.summary.who, process_self(NULL) + 1);
    ck_assert(board_begin(&board.summary));
    board_end(&board.summary, true);
    ck_assert(board_done(&board.summary) && !board_begin(&board.summary));
}
END_TEST

/* Two trainers of one seat die, the second one after it has claimed one of the first one's
 * chunks anew: the third one gets all of them, and each once, before anything new. */
START_TEST(no_death_loses_what_another_has_left)
{
    static struct board board;
    struct seat *seat = board_sit(&board, 0);
    uint64_t chunk, cursor, held[BOARD_CHUNKS], seen = 0;
    enum { OLD = 3 };
    for (int k = 0; k < OLD; k++)
        ck_assert(board_claim(&board, seat, 2 * k + 1, &chunk));
    for (int trainer = 0; trainer < 2; trainer++) {
        struct claims claims = {.board = &board, .seat = seat};
        const struct feed_claims *calls = claims_begin(&claims);
        ck_assert_uint_eq(board_held(&board, &cursor, held, BOARD_CHUNKS), OLD);
        for (int place = 0; place < (trainer ? OLD : 1); place++) {
            /* where another old one lies */
            ck_assert(calls->claim(calls->of, trainer ? place : 2 * OLD - 1, &chunk));
            ck_assert_uint_eq(board_held(&board, &cursor, held, BOARD_CHUNKS), OLD);
            seen |= trainer ? UINT64_C(1) << chunk : 0;
        }
        if (!trainer)
            continue;
        ck_assert_uint_eq(seen, (1 << OLD) - 1);
        ck_assert(calls->claim(calls->of, OLD, &chunk) && chunk == OLD);
    }
}
END_TEST

START_TEST(a_resumed_run_does_first_what_was_left)
{
    static struct board board = {.next = 6, .n_todo = 2, .todo = {2, 4 | DATA_REST}};
    struct seat *seat = board_sit(&board, 0);
    uint64_t chunk, cursor, held[BOARD_CHUNKS];
    static const uint64_t claimed[] = {2, 4 | DATA_REST, 6, 7};
    ck_assert_uint_eq(board_part(&board, 2), 2);
    ck_assert_uint_eq(board_part(&board, 4), 4 | DATA_REST);
    for (int k = 0; k < N(claimed); k++) {
        ck_assert(board_claim(&board, seat, k, &chunk));
        ck_assert_uint_eq(chunk, claimed[k]);
    }
    board_release(seat, 2);
    ck_assert_uint_eq(board_held(&board, &cursor, held, BOARD_CHUNKS), 3);
    ck_assert_uint_eq(cursor, 8);
    atomic_store(&board.todo_next, 0);      /* as one who looked before the claim has it */
    ck_assert_uint_eq(board_held(&board, &cursor, held, BOARD_CHUNKS), 3);
}
END_TEST

/* The trainers of a machine hand out the limit together, to the last example. */
START_TEST(trainers_share_a_limit)
{
    for (uint64_t limit = 1; limit <= 40; limit++) {
        static struct board board;
        struct claims claims[3];
        struct feed_grant grant;
        uint64_t all = 0;
        size_t n = 0, more;
        memset(&board, 0, sizeof board);
        for (int k = 0; k < 3; k++)
            claims[k] = (struct claims){.board = &board, .seat = board_sit(&board, k),
                                        .limit = limit};
        do {
            more = n = 0;
            for (int k = 0; k < 3; k++, all += n, more += n) {
                const struct feed_claims *calls = claims_begin(&claims[k]);
                n = calls->grant(calls->of, 3, &grant);
                ck_assert(!n || grant.from == all);
            }
        } while (more > 0);
        ck_assert_uint_eq(all, limit);
    }
}
END_TEST

/* --- evaluations beside training --- */

static struct train_options evaluated(int plan)
{
    struct train_options o = small();
    o.sync = plan == 0 ? "shadow-easgd" : plan == 1 ? "allreduce" : "bsp,period=2ms";
    o.trainers = 2;
    o.eval = held_out;
    o.eval_every = ROWS;
    o.epochs = 8;
    o.log = log_file;
    return o;
}

/* The log's evaluations: the k-th of them, from 0; false: there are fewer. */
static bool eval_line(int k, char *line, size_t room)
{
    FILE *in = fopen(log_file, "re");
    bool found = false;
    while (!found && fgets(line, (int)room, in))
        found = strstr(line, "\"kind\":\"eval\"") && k-- == 0;
    fclose(in);
    return found;
}

static double figure_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    ck_assert_msg(at != NULL, "no %s in %s", key, line);
    return strtod(at + strlen(key), NULL);
}

/* An evaluation that never ends: training does, with every example, and its end gives it up. */
START_TEST(no_worker_waits_for_an_evaluation)
{
    struct train_options o = evaluated(_i);
    struct train_result r;
    char line[4096];
    eval->how = UNTIL_LATE;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, 8 * ROWS);
    ck_assert_uint_ge(eval->ended, eval->began + ROWS);
    ck_assert(!eval->moved);
    ck_assert(eval_line(0, line, sizeof line));
    ck_assert_double_eq(figure_of(line, "\"examples\":"), 8 * ROWS);
    ck_assert(!eval_line(1, line, sizeof line));
}
END_TEST

/* A slow one is of the moment when it began, in the log and on the terminal; the last point of the
 * curve has the final figures. */
START_TEST(an_evaluation_is_of_when_it_began)
{
    struct train_options o = evaluated(_i);
    struct train_result r;
    char line[4096], next[4096];
    o.quiet = false;
    eval->how = UNTIL_TRAINED;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert(!eval->moved);
    ck_assert(eval_line(0, line, sizeof line));
    double at = figure_of(line, "\"examples\":");
    ck_assert_msg(at >= ROWS && at <= (double)eval->began, "%g, began %llu", at,
                  (unsigned long long)eval->began);
    ck_assert_uint_ge(eval->ended, eval->began + 2 * ROWS);
    ck_assert(isfinite(figure_of(line, "\"eval_ne\":")) && isfinite(figure_of(line, "\"auc\":")) &&
              isfinite(figure_of(line, "\"eval_calibration\":")));
    says("held out at ");
    for (int k = 1; eval_line(k, next, sizeof next); k++) {
        double was = at;
        at = figure_of(next, "\"examples\":");
        /* the last one may be due at the end, and so be there twice */
        ck_assert_msg(at > was || at == (double)r.seen.n, "%g after %g", at, was);
        strcpy(line, next);
    }
    ck_assert_double_eq(at, (double)r.seen.n);
    ck_assert_double_eq_tol(figure_of(line, "\"eval_loss\":"), r.held_out.loss, 1e-6);
    ck_assert_double_eq_tol(figure_of(line, "\"auc\":"), r.held_out.auc, 1e-6);
    ck_assert_double_eq_tol(figure_of(line, "\"eval_calibration\":"), r.held_out.calibration, 1e-6);
}
END_TEST

int main(void)
{
    TCase *evals = new_case("evaluations", 120);
    tcase_add_checked_fixture(evals, setup_eval, remove_folder);
    tcase_add_loop_test(evals, no_worker_waits_for_an_evaluation, 0, few(3, 1));
    tcase_add_loop_test(evals, an_evaluation_is_of_when_it_began, 0, few(3, 1));
    tcase_add_test(evals, a_held_out_set_that_becomes_another);
    TCase *slow = new_case("slow", 180), *quick = new_case("quick", 60);
    tcase_add_checked_fixture(slow, setup_gate, remove_folder);
    tcase_add_checked_fixture(quick, set_up_training, remove_folder);
    tcase_add_loop_test(slow, a_checkpoint_under_way_delays_no_signal, 0, 2);
    tcase_add_test(slow, the_log_goes_on_beside_a_checkpoint);
    tcase_add_test(slow, a_second_signal_ends_at_once);
    tcase_add_loop_test(slow, a_death_at_the_last_checkpoint_loses_only_that, 0, 2);
    tcase_add_test(quick, sums_are_resumed_once);
    tcase_add_loop_test(quick, a_place_that_cannot_be, 0, 3);
    tcase_add_loop_test(quick, the_place_of_one_host_of_several_is_none, 0, 2);
    tcase_add_test(quick, what_keeps_the_outer_state_is_said);
    tcase_add_test(quick, what_is_looked_at_is_what_is_written);
    tcase_add_test(quick, the_first_says_why);
    tcase_add_test(quick, a_signal_says_why_once);
    tcase_add_test(quick, who_asks_waits_for_the_reason);
    tcase_add_loop_test(quick, a_trainer_that_cannot_be_started, 0, 3);
    tcase_add_loop_test(quick, a_trainer_with_a_bad_start, 0, BAD_STARTS_HERE);
    if (BAD_STARTS_HERE > NO_MEMORY)
        tcase_add_test(quick, a_little_address_space);
    tcase_add_test(quick, multipliers_are_as_many_as_workers);
    tcase_add_test(quick, a_share_of_the_bound_of_its_own_round);
    tcase_add_test(quick, a_benchmark_without_processes);
    tcase_add_test(quick, a_seat_is_not_held_by_who_has_its_number_now);
    tcase_add_test(quick, no_death_loses_what_another_has_left);
    tcase_add_test(quick, a_resumed_run_does_first_what_was_left);
    tcase_add_test(quick, trainers_share_a_limit);
    tcase_add_test(quick, data_that_becomes_other_data);
    make_clicks();
    return run_cases(evals, slow, quick, NULL);
}
