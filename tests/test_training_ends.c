/* SPDX-License-Identifier: MIT */
/* How runs of descant train end, and go on: deaths in the last chunks and at the last evaluation,
 * zombies, signals at every moment, resuming with other settings, and what is refused. */
#include "harness/data.h"
#include "harness/training.h"

#include "train/claims.h"
#include "train/trainer.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* --- deaths --- */

START_TEST(who_dies_in_the_last_chunks_has_an_heir)
{
    struct train_options o = endless();
    pid_t pids[8];
    o.data = held_out;
    o.epochs = 1;
    o.trainers = 2;
    o.depth = 2;
    o.chunk = 300 << 10;            /* four chunks, all of them held from the start */
    o.batch = 2;
    o.bottom = few(256, 64) == 256 ? "256,256" : "64,64";   /* steps that take long */
    o.top = few(256, 64) == 256 ? "512,256" : "128,128";
    o.checkpoint = _i ? model_file : NULL;
    o.sync = _i ? "allreduce" : "none";
    pid_t pid = begin(&o);
    wait_examples(0.6 * EVAL_ROWS);
    if (children_of(pid, pids, 8) == 2) {
        wait_heeding(pids, 2);
        kill(pids[1 - _i], SIGKILL);
    }
    ck_assert_msg(end_within(pid, 60) == 0, "%s", said);
    ck_assert_msg(examples_said() >= EVAL_ROWS, "%s", said);
}
END_TEST

/* 0: none of the parent's children evaluates. */
static pid_t reader(pid_t parent)
{
    pid_t pids[8];
    int n = children_of(parent, pids, 8);
    for (int k = 0; k < n; k++)
        if (has_open(pids[k], fifo))
            return pids[k];
    return 0;
}

static pid_t wait_reader(pid_t parent)
{
    pid_t pid = 0;
    WAIT_UNTIL((pid = reader(parent)) != 0, "%s", (read_said(), said));
    return pid;
}

static struct train_options short_with_fifo(void)
{
    struct train_options o = small();
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    o.eval = fifo;
    o.examples = 3200;
    o.trainers = 2;
    o.checkpoint = model_file;
    return o;
}

/* The one that evaluates waits for a pipe, and dies; another does the last part again. */
START_TEST(the_last_part_has_an_heir)
{
    struct train_options o = short_with_fifo();
    char some[65536];
    ssize_t n;
    pid_t pid = begin(&o);
    pid_t first = wait_reader(pid);
    kill(first, SIGKILL);
    WAIT_UNTIL(!has_open(first, fifo), "process %d", (int)first);
    wait_reader(pid);
    int in = open(held_out, O_RDONLY | O_CLOEXEC), out = open(fifo, O_WRONLY | O_CLOEXEC);
    while ((n = read(in, some, sizeof some)) > 0)
        ck_assert_int_eq(write(out, some, (size_t)n), n);
    close(out);
    close(in);
    ck_assert_msg(end_within(pid, 30) == 0, "%s", said);
    ck_assert_double_eq(examples_said(), 3200);
    says("held-out loss");
}
END_TEST

START_TEST(a_zombie_is_dead)
{
    struct train_options o = endless();
    pid_t pids[2];
    o.epochs = PASSES(30);
    o.checkpoint = NULL;
    for (int k = 0; k < 2; k++)
        pids[k] = begin_rank(&o, k);
    wait_examples(2 * ROWS);
    kill(pids[1], SIGKILL);
    ck_assert_msg(end_within(pids[0], 60) == 0, "%s", said);
    ck_assert_msg(examples_said() >= PASSES(30) * ROWS, "%s", said);
    waitpid(pids[1], NULL, 0);
}
END_TEST

/* --- a rank of an MPI job, and its parent --- */

static pid_t begin_watched(struct train_options *o, pid_t *rank)
{
    o->trainers = 0;
    o->watched = true;
    o->job = "self";
    pid_t pid = begin(o);
    wait_examples(ROWS / 4.0);
    ck_assert_int_eq(children_of(pid, rank, 1), 1);
    return pid;
}

/* A parent that ignores SIGCHLD hands that on to us. The first trainers, or a watched rank. */
START_TEST(ends_are_heard_of_whatever_was_inherited)
{
    struct train_options o = small();
    o.examples = 3200;
    o.trainers = _i ? 0 : 2;
    o.watched = _i;
    o.job = _i ? "self" : NULL;
    FILE *to;
    pid_t pid = fork_saying(&to, SIGTERM);
    if (pid == 0) {
        setpgid(0, 0);
        signal(SIGCHLD, SIG_IGN);       /* not in the test: it waits for a child, too */
        train_know_plan(&o);
        _exit(train_run(&o, to, to, NULL));
    }
    ck_assert_int_eq(end_within(pid, 30), 0);
}
END_TEST

START_TEST(who_is_killed_is_named)
{
    struct train_options o = endless();
    char host[64] = "", line[256];
    pid_t rank, pid = begin_watched(&o, &rank);
    int status;
    kill(rank, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", status);
    read_said();
    gethostname(host, sizeof host - 1);
    snprintf(line, sizeof line, "descant: rank 0 (%s) was killed by signal 9: the launcher ends "
             "the job; --resume goes on from %s\n", host, model_file);
    says(line);
}
END_TEST

START_TEST(a_watched_rank_is_stopped)
{
    struct train_options o = endless();
    signal(SIGCHLD, SIG_IGN);           /* as some who start programs leave it */
    pid_t rank, pid = begin_watched(&o, &rank);
    signal(SIGCHLD, SIG_DFL);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 20), 128 + SIGTERM);
    says("stopped by signal");
    ck_assert_msg(!strstr(said, "killed"), "%s", said);
}
END_TEST

/* A launcher that kills what it has started kills the rank. */
START_TEST(a_rank_dies_with_its_parent)
{
    struct train_options o = endless();
    pid_t rank, pid = begin_watched(&o, &rank);
    struct pollfd died = {.fd = (int)syscall(SYS_pidfd_open, rank, 0), .events = POLLIN};
    ck_assert_int_ge(died.fd, 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(end_within(pid, 20), 128 + SIGKILL);
    ck_assert_int_eq(poll(&died, 1, 10000), 1);
    read_said();
    ck_assert_msg(!strstr(said, "stopped"), "%s", said);
    close(died.fd);
}
END_TEST

/* --- signals --- */

START_TEST(a_signal_ends_a_wait_for_stdin)
{
    struct train_options o = small();
    int ends[2], kept = dup(0), fd;
    o.data = "-";
    o.trainers = 1 + _i;
    o.checkpoint = model_file;
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_ge(dup2(ends[0], 0), 0);
    pid_t pid = begin(&o);
    dup2(kept, 0);
    char some[200000];
    fd = open(clicks, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(read(fd, some, sizeof some), sizeof some);
    ck_assert_int_eq(write(ends[1], some, sizeof some), sizeof some);    /* most is read by now */
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 20), 128 + SIGTERM);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(a_signal_ends_a_wait_for_others)
{
    struct train_options o = small();
    char name[64];
    pid_t pid = begin_rank(&o, 0);
    snprintf(name, sizeof name, "descant/%s/", o.job + strlen("shm:"));
    WAIT_UNTIL(lines_with("/proc/net/unix", name), "%s", (read_said(), said));
    wait_asleep(pid);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_of(pid), 128 + SIGTERM);
}
END_TEST

START_TEST(a_signal_ends_the_last_evaluation)
{
    struct train_options o = short_with_fifo();
    pid_t pid = begin(&o);
    wait_reader(pid);
    kill(pid, SIGTERM);
    ck_assert_int_eq(end_within(pid, 20), 128 + SIGTERM);
    says("stopped by signal");
    ck_assert(access(model_file, R_OK) == 0);
}
END_TEST

START_TEST(one_signal_stops_all)
{
    struct train_options o = endless();
    pid_t pids[2];
    for (int k = 0; k < 2; k++)
        pids[k] = begin_rank(&o, k);
    wait_examples(ROWS / 4);
    wait_heeding(pids, 2);
    kill(pids[1], SIGTERM);
    ck_assert_int_eq(end_within(pids[1], 30), 128 + SIGTERM);
    ck_assert_int_eq(end_within(pids[0], 30), 128 + SIGTERM);
}
END_TEST

/* --- going on --- */

START_TEST(more_epochs_go_on)
{
    struct train_options o = small();
    struct train_result r;
    o.trainers = _i ? 4 : 1;
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.epochs = 2;
    o.resume = true;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.own.n, ROWS);
    ck_assert_uint_eq(r.seen.n, 2 * ROWS);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.own.n, 0);
}
END_TEST

START_TEST(other_data_begins_anew)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 6400;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.examples = 0;
    o.resume = true;
    if (_i == 0)
        o.chunk = 256 << 10;
    else
        o.data = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    says(_i ? "--data was" : "--chunk was 65536, now it is 262144");
    ck_assert_uint_eq(r.own.n, _i ? EVAL_ROWS : ROWS);
    ck_assert_uint_eq(r.seen.n, 6400 + (_i ? EVAL_ROWS : ROWS));
}
END_TEST

/* It gets what the others have, and reads no checkpoint: this one would be refused. */
START_TEST(who_joins_resumes_nothing)
{
    struct train_options o = endless(), late;
    pid_t pids[2];
    FILE *out = fopen(model_file, "we");
    fputs("this is no checkpoint", out);
    fclose(out);
    o.checkpoint = NULL;
    o.trainers = 0;
    char job[64];
    snprintf(job, sizeof job, "shm:joined-%d", (int)getpid());
    o.job = job;
    late = o;
    late.resume = true;
    late.checkpoint = model_file;
    late.log = NULL;
    begin_and_join(&o, &late, 0, pids);
    for (int k = 0; k < 2; k++)
        ck_assert_msg(end_within(pids[k], 60) == 0, "%s", said);
    ck_assert_double_eq(examples_said(), (double)o.epochs * ROWS);
    says("2 trainers");
}
END_TEST

START_TEST(state_of_another_optimizer_is_refused)
{
    struct train_options o = small();
    struct train_result r;
    o.checkpoint = model_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.resume = true;
    if (_i != 1) {
        o.optimizer.kind = OPTIMIZER_SGD;       /* without a state, too */
        o.optimizer.momentum = _i ? 0 : 0.9;
    } else {
        o.optimizer.rows = ROWS_ROWWISE_ADAGRAD;
    }
    ck_assert_int_eq(train(&o, &r), 1);
    says("is of another optimizer");
    says(_i == 1 ? "was adagrad, not rowwise-adagrad" : "--optimizer was adagrad, not sgd");
}
END_TEST

START_TEST(a_model_of_many_tensors_is_kept)
{
    struct train_options o = small();
    struct train_result r;
    char path[128];
    static float dense[200], labels[200];
    static uint32_t ids[200 * 600];
    struct cache_writer *writer;
    struct data_shape shape = {.n_dense = 1, .n_fields = 600, .n_classes = 1};
    struct examples examples = {.n = 200, .n_dense = 1, .n_fields = 600, .dense = dense,
                                .ids = ids, .labels = labels};
    for (size_t i = 0; i < 200 * 600; i++)
        ids[i] = (uint32_t)i * 2654435761u;
    snprintf(path, sizeof path, "%s/many.cache", folder);
    FILE *file = fopen(path, "w");
    ck_assert_int_eq(cache_create(&writer, file, path, &shape, NULL), DESCANT_OK);
    ck_assert_int_eq(cache_add(writer, &examples), DESCANT_OK);
    ck_assert_int_eq(cache_close(writer), DESCANT_OK);
    ck_assert_int_eq(fclose(file), 0);
    o.data = path;
    o.format = DATA_CACHE;
    o.rows = 10;
    o.width = 2;
    o.top = "2";
    o.checkpoint = model_file;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    o.resume = true;
    o.epochs = 2;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, 400);
}
END_TEST

/* --- chunks that come by need --- */

/* Gives each second time a chunk, up to a limit of examples. Chunks whose bit is set were called
 * done; there are 64 at most. */
struct deal {
    bool none;                  /* there never is one */
    uint64_t asked, next, done, limit, granted, spent, grants;
    uint64_t at[FEED_BLOCKS];
    int back, ended;
};

static bool deal_claim(void *of, int place, uint64_t *chunk)
{
    struct deal *d = of;
    if (d->ended)
        return false;
    bool waits = d->none || d->asked++ % 2 == 0;
    *chunk = waits ? FEED_NO_CHUNK : (d->at[place] = d->next++);
    return true;
}

static void deal_ended(void *of, uint64_t chunk)
{
    struct deal *d = of;
    ck_assert_uint_eq(chunk, d->next - 1);
    d->ended++;
}

static void deal_given_up(void *of, int place, bool done)
{
    struct deal *d = of;
    d->done |= done ? UINT64_C(1) << d->at[place] : 0;
    d->back += !done;
}

/* Each fifth time there is none now. */
static size_t deal_grant(void *of, size_t n, struct feed_grant *grant)
{
    struct deal *d = of;
    if (d->grants++ % 5 == 0)
        return FEED_LATER;
    grant->from = d->granted;
    n = d->limit - d->granted < n ? (size_t)(d->limit - d->granted) : n;
    d->granted += n;
    return n;
}

static void deal_spent(void *of, uint64_t from, size_t n)
{
    struct deal *d = of;
    ck_assert(from < d->granted && from + n <= d->granted);
    d->spent += n;
}

static double deal_granted(void *of)
{
    (void)of;
    return -1;
}

static struct feed *deal_to(struct deal *d, struct feed_claims *claims)
{
    static struct log log = {.rank = -1};
    static const char *path = clicks;
    struct feed *feed;
    *claims = (struct feed_claims){.claim = deal_claim, .past_end = deal_ended,
                                   .give_up = deal_given_up, .grant = deal_grant,
                                   .spent = deal_spent,
                                   .granted = deal_granted, .of = d};
    const struct feed_options o = {
        .data = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO, .chunk_bytes = 128 << 10,
                 .log = &log},
        .claims = claims, .depth = 3, .batch = 32, .log = &log,
    };
    ck_assert_int_eq(feed_start(&feed, &o), DESCANT_OK);
    return feed;
}

/* Only a chunk of which each batch was trained is done; the one behind the end goes back, and
 * those that a limit has cut off, or that nobody took, do neither. */
START_TEST(a_chunk_is_done_once_all_of_it_is)
{
    struct feed_claims claims;
    struct feed_batch batch, kept = {.block = -1};
    for (int way = 0; way < 3; way++) {
        struct deal d = {.limit = way == 1 ? ROWS / 4 : ROWS};
        struct feed *feed = deal_to(&d, &claims);
        uint64_t n = 0;
        for (; feed_next(feed, &batch); n += batch.examples.n)
            if (way == 2 && kept.block < 0)
                kept = batch;           /* of the first chunk, and still under way */
            else
                feed_done(feed, &batch);
        ck_assert_uint_eq(n, d.limit);
        if (kept.block >= 0) {
            ck_assert_uint_eq(d.done & 3, 2);
            feed_done(feed, &kept);
        }
        ck_assert_uint_eq(d.spent, d.limit);
        feed_stop(feed);
        uint64_t claimed = (UINT64_C(1) << d.next) - 1;
        ck_assert(d.done && (d.done & (d.done + 1)) == 0);
        ck_assert(way == 1 ? d.done < claimed : d.done == claimed >> 1);
        ck_assert_int_eq(d.back, way != 1);
    }
}
END_TEST

START_TEST(a_feed_that_waits_for_chunks_can_be_stopped)
{
    struct feed_claims claims;
    struct deal d = {.none = true};
    feed_stop(deal_to(&d, &claims));
    ck_assert_uint_eq(d.next, 0);
}
END_TEST

/* --- schedules and plans --- */

/* The places of the batches of a whole feed: they rise, from near 0 to near 1. */
static void assert_places(const struct feed_options *options, uint64_t n)
{
    struct feed *feed;
    struct feed_batch batch;
    uint64_t seen = 0;
    double first = -1, last = -1;
    ck_assert_int_eq(feed_start(&feed, options), DESCANT_OK);
    while (feed_next(feed, &batch)) {
        first = first < 0 ? batch.place : first;
        ck_assert_msg(batch.place > last, "%g after %g", batch.place, last);
        last = batch.place;
        seen += batch.examples.n;
        feed_done(feed, &batch);
    }
    feed_stop(feed);
    ck_assert_uint_eq(seen, n);
    ck_assert_msg(first > 0 && first < 0.02 && last > 0.98 && last < 1, "%g to %g", first, last);
}

START_TEST(batches_know_their_place)
{
    static struct board board;
    struct log log = {.rank = -1};
    const char *path = clicks;
    struct claims claims = {.board = &board, .seat = board_sit(&board, 0)};
    struct feed_options o = {
        .data = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO, .chunk_bytes = 64 << 20,
                 .log = &log},
        .claims = claims_begin(&claims), .depth = 3, .batch = 32, .log = &log,
    };
    assert_places(&o, ROWS);            /* all of it is one chunk */
    memset(&board, 0, sizeof board);
    board_sit(&board, 0);
    o.data.chunk_bytes = 64 << 10;
    claims.limit = ROWS / 4;
    assert_places(&o, ROWS / 4);
}
END_TEST

static struct feed *feed_at(int k, struct claims *claims, const char *path, int feeds,
                            bool goes_on)
{
    static struct board board;
    static struct log log = {.rank = -1};
    struct feed *feed;
    if (k == 0)
        memset(&board, 0, sizeof board);
    claims->board = &board;
    claims->seat = board_sit(&board, k);
    const struct feed_options o = {
        .data = {.paths = &path, .n_paths = 1, .format = DATA_CRITEO, .chunk_bytes = 256 << 10,
                 .log = &log},
        .claims = claims_begin(claims), .depth = 1, .batch = 32, .feeds = feeds, .goes_on = goes_on,
        .log = &log,
    };
    ck_assert_int_eq(feed_start(&feed, &o), DESCANT_OK);
    return feed;
}

/* Two feeds share the chunks. The second one's first chunk lies behind the first one's; for both
 * own begins with nothing, or, where a feed goes on, is the place. Of packed data nobody knows how
 * many chunks there are. In the last two cases the feeds count as slow: as if their own part
 * were nothing. */
START_TEST(a_feed_knows_how_far_it_is_itself)
{
    bool limited = _i & 1, goes_on = _i & 2, is_packed = _i & 4, is_slow = _i & 8;
    struct claims claims[2] = {{.limit = limited ? ROWS / 2 : 0}};
    struct feed *feeds[2];
    struct feed_batch batch;
    double own[2] = {-1, -1}, place = 0, first = 0;
    uint64_t seen[2] = {0};
    const char *path = clicks;
    char packed[100], command[400];
    if (is_packed) {
        snprintf(packed, sizeof packed, "%s/clicks.tsv.gz", folder);
        snprintf(command, sizeof command, "gzip -c '%s' >'%s'", clicks, packed);
        ck_assert_int_eq(system(command), 0);
        path = packed;
    }
    claims[1].limit = claims[0].limit;
    for (int k = 0; k < 2; k++) {
        feeds[k] = feed_at(k, &claims[k], path, is_slow ? 0 : 2, goes_on);
        ck_assert(feed_next(feeds[k], &batch));         /* so that it holds a chunk */
        ck_assert_msg(k == 0 || batch.place > 0.02, "%g", batch.place);
        first = batch.place;
        ck_assert_msg(goes_on ? fabs(batch.own - batch.place) < 1e-9
                              : batch.own > 0 && batch.own < 0.01,
                      "%g at %g", batch.own, batch.place);
        for (bool more = true; more; more = seen[k] < 800 && feed_next(feeds[k], &batch)) {
            ck_assert_msg(batch.own > own[k], "%g after %g", batch.own, own[k]);
            if (k == 0 && !limited && !goes_on && !is_slow)     /* both feeds hand out as much */
                ck_assert_double_eq_tol(batch.own, 2 * batch.place, 1e-9);
            own[k] = batch.own;
            seen[k] += batch.examples.n;
            feed_done(feeds[k], &batch);
        }
    }
    while (feed_next(feeds[1], &batch)) {
        ck_assert(goes_on || batch.own >= own[1]);
        own[1] = batch.own;
        place = batch.place;
        feed_done(feeds[1], &batch);
    }
    ck_assert(place > 0.9);
    if (goes_on)
        ck_assert_double_eq_tol(own[1], place, 0.01);
    else if (is_slow)
        ck_assert_double_eq_tol(own[1], 0.5 * (place - first), 0.01);
    else                                        /* it has handed out nearly all */
        ck_assert_double_ge(own[1], 1.5);
    feed_stop(feeds[0]);
    feed_stop(feeds[1]);
}
END_TEST

/* A small model of images of 9 pixels, with chunks of 24, all of whose parameters are dense. */
static struct train_options on_images(void)
{
    struct train_options o = small(), usual = train_options_default();
    o.format = DATA_IDX;
    o.model = MODEL_MLP;
    o.bottom = usual.bottom;
    o.rows = usual.rows;
    o.width = usual.width;
    o.chunk = 24 * SIDE * SIDE;
    o.depth = 1;
    o.batch = 1;
    o.sync = "allreduce";
    return o;
}

/* Parameters, and the optimizer's state. */
static void assert_alike(const char *const kept[2], float most)
{
    struct safetensors *files[2];
    size_t floats = 0;
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(safetensors_open(&files[k], kept[k], NULL), DESCANT_OK);
    for (size_t k = 0; k < safetensors_count(files[0]); k++) {
        const struct safetensor *one = safetensors_at(files[0], k);
        const struct safetensor *two = safetensors_find(files[1], one->name);
        const float *a = one->data, *b = two->data;
        if (one->type != SAFETENSORS_F32)
            continue;
        ck_assert_uint_eq(one->bytes, two->bytes);
        for (size_t i = 0; i < one->bytes / sizeof *a; i++, floats++)
            ck_assert_msg(fabsf(a[i] - b[i]) <= most, "%s: %g, %g", one->name, a[i], b[i]);
    }
    ck_assert_uint_gt(floats, 2 * (9 * 16 + 16));
    safetensors_close(files[0]);
    safetensors_close(files[1]);
}

/* Under allreduce all trainers make the same steps, also where one's chunk is far behind the
 * other's. With one chunk for each, all is the same in each run, whoever has which. */
START_TEST(replicas_stay_alike_while_rates_change)
{
    struct train_options o = on_images();
    struct train_result r;
    const char *const kept[] = {in_folder("local"), in_folder("mean")};
    o.data = put_images("each", 0, 48, 0);
    o.schedule = SCHEDULE_LINEAR;
    o.trainers = 2;
    for (int k = 0; k < 2; k++) {
        o.final = k ? FINAL_MEAN : FINAL_LOCAL;
        o.checkpoint = kept[k];
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        ck_assert_uint_eq(r.seen.n, 48);
    }
    assert_alike(kept, 0);
}
END_TEST

static struct safetensors *open_kept(const char *path, double *steps)
{
    struct safetensors *file;
    ck_assert_int_eq(safetensors_open(&file, path, NULL), DESCANT_OK);
    *steps = strtod(safetensors_text(file, "steps"), NULL);
    return file;
}

/* Adagrad's sums only grow, and so they do from a checkpoint of the first trainer to that of the
 * one that has joined it, which writes it once the first has been killed. The first goes on from
 * a run of more steps than the two make. */
START_TEST(who_joins_steps_as_the_others)
{
    struct train_options o = endless(), late;
    struct train_result r;
    const char *first = in_folder("first");
    char job[64];
    double before, steps;
    pid_t pids[2];
    size_t sums = 0;
    o.sync = "allreduce";
    o.batch = 1;
    o.epochs = PASSES(5);
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_int_eq(unlink(log_file), 0);
    snprintf(job, sizeof job, "shm:steps-%d", (int)getpid());
    o.batch = 32;
    o.trainers = 0;
    o.job = job;
    late = o;
    o.resume = true;
    begin_and_join(&o, &late, PASSES(5) * ROWS, pids);
    ck_assert_int_eq(link(model_file, first), 0);
    kill_all(pids[0]);
    ck_assert_msg(end_within(pids[1], 60) == 0, "%s", said);
    struct safetensors *was = open_kept(first, &before), *is = open_kept(model_file, &steps);
    ck_assert_msg(steps > before, "%g steps, %g before", steps, before);
    for (size_t k = 0; k < safetensors_count(was); k++) {
        const struct safetensor *one = safetensors_at(was, k);
        const struct safetensor *two = safetensors_find(is, one->name);
        const float *a = one->data, *b = two->data;
        if (!strstr(one->name, "optimizer"))
            continue;
        for (size_t i = 0; i < one->bytes / sizeof *a; i++, sums++)
            ck_assert_msg(b[i] >= a[i], "%s: %g, %g before", one->name, b[i], a[i]);
    }
    ck_assert_uint_gt(sums, 16 * 13 + 16);
    safetensors_close(was);
    safetensors_close(is);
}
END_TEST

/* All images are the same one, so two trainers with one chunk each make the steps of one with one
 * chunk, if their rates rise as its does. */
START_TEST(a_warmup_of_two_trainers_is_that_of_one)
{
    struct train_options o = on_images();
    struct train_result r;
    const char *const kept[] = {in_folder("one"), in_folder("two")};
    unsigned char images[16 + 48 * SIDE * SIDE] = {0, 0, 8, 3}, labels[8 + 48] = {0, 0, 8, 1};
    images[11] = images[15] = SIDE;
    for (int i = 0; i < 48 * SIDE * SIDE; i++)
        images[16 + i] = (unsigned char)(20 * (i % (SIDE * SIDE)));
    memset(labels + 8, 1, 48);
    o.warmup = 0.9;
    for (int k = 0; k < 2; k++) {
        size_t n = k ? 48 : 24;
        images[7] = labels[7] = (unsigned char)n;
        put_packed(0, k ? "two-labels-idx1-ubyte" : "one-labels-idx1-ubyte", labels, 8 + n);
        o.data = put_packed(0, k ? "two-images-idx3-ubyte" : "one-images-idx3-ubyte", images,
                            16 + n * SIDE * SIDE);
        o.trainers = k + 1;
        o.checkpoint = kept[k];
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        ck_assert_uint_eq(r.seen.n, n);
    }
    assert_alike(kept, 1e-5f);
}
END_TEST

/* All places of the second epoch are behind the warm-up. */
START_TEST(a_run_that_goes_on_is_warm)
{
    struct train_options o = on_images();
    struct train_result r;
    const char *const kept[] = {in_folder("cold"), in_folder("warm")};
    o.data = put_images("each", 0, 24, 0);
    for (int k = 0; k < 2; k++) {
        o.checkpoint = kept[k];
        o.epochs = 1;
        o.warmup = 0;
        o.resume = false;
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        o.epochs = 2;
        o.warmup = k ? 0.5 : 0;
        o.resume = true;
        ck_assert_msg(train(&o, &r) == 0, "%s", said);
        ck_assert_uint_eq(r.own.n, 24);
    }
    assert_alike(kept, 0);
}
END_TEST

START_TEST(a_warmup_within_one_chunk_learns)
{
    struct train_options o = small();
    struct train_result r;
    o.chunk = 64 << 20;
    o.warmup = 0.1;
    o.eval = held_out;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(r.held_out.auc > 0.55, "AUC %g", r.held_out.auc);
}
END_TEST

static const struct {
    const char *sync;
    bool merges;
} spelt[] = {
    {"when=every,what=gradient,every=1", true},
    {"allreduce,what=mean", true},
    {"when=never", false},
};
enum { N_SPELT = sizeof spelt / sizeof *spelt };

START_TEST(a_plan_is_what_it_means)
{
    struct train_options o = small();
    struct train_result r;
    o.trainers = 2;
    o.optimizer.kind = OPTIMIZER_SGD;
    o.sync = spelt[_i].sync;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_uint_eq(r.seen.n, ROWS);
    ck_assert_msg((r.figures.rounds > 10) == spelt[_i].merges, "%s: %g rounds", o.sync,
                  r.figures.rounds);
}
END_TEST

/* --- refused --- */

START_TEST(pipes_are_for_one)
{
    struct train_options o = small();
    struct train_result r;
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    o.data = fifo;
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 2);
    says("give it as stdin, --data -");
    o.trainers = 1;
    o.schedule = SCHEDULE_LINEAR;
    ck_assert_int_eq(train(&o, &r), 2);
    says("give --examples");
    o.schedule = SCHEDULE_CONSTANT;
    pid_t pid = begin(&o);
    char some[65536];
    ssize_t n;
    int in = open(held_out, O_RDONLY | O_CLOEXEC), out = open(fifo, O_WRONLY | O_CLOEXEC);
    while ((n = read(in, some, sizeof some)) > 0)
        ck_assert_int_eq(write(out, some, (size_t)n), n);
    close(out);
    close(in);
    ck_assert_msg(end_within(pid, 20) == 0, "%s", said);
    ck_assert_double_eq(examples_said(), EVAL_ROWS);
}
END_TEST

/* Evaluated again and again, or at the same time trained on. */
START_TEST(what_can_be_read_once_is_evaluated_once)
{
    struct train_options o = small();
    struct train_result r;
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    o.eval = _i ? "-" : fifo;
    o.eval_every = 1000;
    ck_assert_int_eq(train(&o, &r), 2);
    says(_i ? "--eval-every: stdin can be read only once" : "fifo.tsv can be read only");
    o.eval_every = 0;
    o.eval = "-";
    o.data = "-";
    ck_assert_int_eq(train(&o, &r), 2);
    says("stdin cannot be both --data and --eval");
}
END_TEST

START_TEST(a_foreign_held_out_set)
{
    struct train_options o = small();
    struct train_result r;
    char path[128];
    snprintf(path, sizeof path, "%s/other.svm", folder);
    FILE *out = fopen(path, "we");
    fputs("1 3:1 7:2\n0 1:1\n", out);
    fclose(out);
    o.format = DATA_AUTO;
    o.eval = path;
    ck_assert_int_eq(train(&o, &r), 1);
    says("other.svm, read as libsvm, has 0 dense features, 1 field and 1 class; the model "
                "takes 13, 26 and 1");
    ck_assert_uint_eq(r.seen.n, 0);
}
END_TEST

START_TEST(what_cannot_be_written_is_said_first)
{
    struct train_options o = small();
    struct train_result r;
    char path[128];
    snprintf(path, sizeof path, "%s/nowhere/x", folder);
    *(_i ? &o.checkpoint : &o.log) = path;
    ck_assert_int_eq(train(&o, &r), 1);
    says("cannot be written: No such file");
    ck_assert_uint_eq(r.seen.n, 0);
}
END_TEST

START_TEST(a_full_disk_is_seen)
{
    struct train_options o = small();
    struct train_result r;
    o.examples = 3200;
    o.log = "/dev/full";
    o.checkpoint = model_file;
    ck_assert_int_eq(train(&o, &r), 1);
    says("/dev/full: the log could not be written, and ends here: No space left on device");
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out /dev/full", model_file,
                             held_out), 1);
    ck_assert_msg(strstr(err_text, "/dev/full: No space"), "%s", err_text);
}
END_TEST

/* Where a file may not grow any more: nobody dies by SIGXFSZ. */
START_TEST(a_limit_of_sizes_is_seen)
{
    struct rlimit limit = {4096, 4096};
    struct train_options o = small();
    struct train_result r;
    char cache[128], scores[128];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    snprintf(scores, sizeof scores, "%s/scores", folder);
    ck_assert_int_eq(program("train --data %s --model linear --rows 100 --checkpoint %s", clicks,
                             model_file), 0);
    signal(SIGXFSZ, SIG_DFL);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(program("train --data %s --model linear --checkpoint %s", clicks, model_file), 1);
    ck_assert_msg(!strstr(err_text, "killed"), "%s", err_text);
    ck_assert_int_eq(program("gen cache --data %s --out %s", clicks, cache), 1);
    ck_assert_msg(strstr(err_text, "File too large"), "%s", err_text);
    ck_assert_int_eq(program("predict --checkpoint %s --data %s --out %s", model_file, held_out,
                             scores), 1);
    ck_assert_msg(strstr(err_text, "File too large"), "%s", err_text);
    o.checkpoint = model_file;      /* trainers say it elsewhere than program() looks */
    ck_assert_int_eq(train(&o, &r), 1);
    says("model.safetensors.tmp: cannot write: File too large");
    o.checkpoint = NULL;
    o.log = log_file;
    limit.rlim_cur = 1000;          /* less than its header */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(train(&o, &r), 1);
    says("could not be written, and ends here: File too large");
    o.log = NULL;
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    o.trainers = 2;
    ck_assert_int_eq(train(&o, &r), 1);
    says("File too large; the limit of files' sizes holds for it, too");
}
END_TEST

/* A name that is a link stays one: what is replaced is the file that it leads to, there or not yet,
 * and what is kept beside it is beside that. */
START_TEST(a_link_to_a_checkpoint_stays_one)
{
    char store[128], link[128], path[160];
    struct stat of;
    snprintf(store, sizeof store, "%s/store", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    ck_assert_int_eq(mkdir(store, 0700) | symlink("store/model", link), 0);
    for (int k = 0; k < 2; k++) {
        ck_assert_msg(program("train --data %s --model linear --rows 100 --checkpoint %s", clicks,
                              link) == 0, "%s", err_text);
        ck_assert(lstat(link, &of) == 0 && S_ISLNK(of.st_mode));
        snprintf(path, sizeof path, "%s/model", store);
        ck_assert(lstat(path, &of) == 0 && S_ISREG(of.st_mode));
    }
    snprintf(path, sizeof path, "%s/model.old", store);
    ck_assert_int_eq(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s.old", link);
    ck_assert_int_ne(access(path, F_OK), 0);
    /* the one before is found beside the target */
    char command[512];
    snprintf(command, sizeof command, "cd %s && mv model.old model.previous && rm model", store);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(program("eval --checkpoint %s --data %s", link, held_out), 1);
    ck_assert_msg(strstr(err_text, "store/model.previous would score") != NULL, "%s", err_text);
    ck_assert_msg(program("train --data %s --rows 100 --checkpoint %s --resume", clicks, link) == 0,
                  "%s", err_text);
    ck_assert_int_eq(program("train --data %s --checkpoint %s --log %s/model.old", clicks, link,
                             store), 2);
    snprintf(path, sizeof path, "%s/cache", folder);
    ck_assert_int_eq(symlink("store/cache", path), 0);
    ck_assert_msg(program("gen cache --data %s --out %s", clicks, path) == 0, "%s", err_text);
    ck_assert(lstat(path, &of) == 0 && S_ISLNK(of.st_mode));
    snprintf(path, sizeof path, "%s/round", folder);
    ck_assert_int_eq(symlink("round", path), 0);
    ck_assert_int_eq(program("train --data %s --checkpoint %s", clicks, path), 2);
    ck_assert_msg(strstr(err_text, "/round: Too many levels of symbolic links"), "%s", err_text);
}
END_TEST

START_TEST(names_do_not_steer_the_terminal)
{
    char path[160];
    snprintf(path, sizeof path, "%s/\033]0;x\007\033[2J", folder);
    static const char *const lines[] = {
        "train --data %s", "train --data x --model %s", "report %s", "%s",
        "eval --checkpoint %s --data x", "train --config %s", "gen ctr --out %s/x", "bench %s", "plans %s",
    };
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        ck_assert_int_ne(program(lines[k], path), 0);
#pragma GCC diagnostic pop
        ck_assert_msg(strstr(err_text, "\\x1b]0;x\\x07\\x1b[2J") && !strchr(err_text, 033), "%s: %s",
                      lines[k], err_text);
    }
    ck_assert_int_eq(symlink(clicks, path), 0);
    ck_assert_msg(program("train --data %s --model linear --log %s --checkpoint %s.m", path, log_file,
                          path) == 0, "%s", err_text);
    ck_assert_msg(program("report %s -o -", log_file) == 0, "%s", err_text);
    ck_assert_ptr_null(strchr(out_text, 033));
}
END_TEST

START_TEST(no_example_is_no_run)
{
    struct train_options o = small();
    struct train_result r;
    char path[128];
    snprintf(path, sizeof path, "%s/empty.tsv", folder);
    fclose(fopen(path, "we"));
    o.data = path;
    o.checkpoint = model_file;
    ck_assert_int_eq(train(&o, &r), 1);
    says("there is no example in");
    ck_assert(access(model_file, F_OK) != 0);
}
END_TEST

/* A name that is no UTF-8, and one that a fixed room would cut within a character. */
START_TEST(any_name_can_be_kept)
{
    struct train_options o = small();
    struct train_result r;
    static char names[9000];
    char path[128];
    snprintf(path, sizeof path, "%s/\xff\xc3.tsv", folder);
    ck_assert_int_eq(symlink(held_out, path), 0);
    strcpy(names, path);
    for (int k = 0; _i && k < 200; k++)
        sprintf(names + strlen(names), ",%s", path);
    o.data = names;
    o.checkpoint = model_file;
    o.log = log_file;
    o.examples = 3200;
    ck_assert_msg(train(&o, &r) == 0, "%s", said);
    ck_assert_msg(program("eval --checkpoint %s --data %s", model_file, held_out) == 0, "%s",
                  err_text);
    ck_assert_msg(program("report %s -o %s/page.html", log_file, folder) == 0, "%s", err_text);
}
END_TEST

int main(void)
{
    TCase *deaths = new_case("deaths", 180), *rest = new_case("rest", 120);
    tcase_add_checked_fixture(deaths, set_up_training, remove_folder);
    tcase_add_checked_fixture(rest, set_up_training, remove_folder);
    tcase_add_loop_test(deaths, who_dies_in_the_last_chunks_has_an_heir, 0, 2);
    tcase_add_test(deaths, the_last_part_has_an_heir);
    tcase_add_test(deaths, a_zombie_is_dead);
    tcase_add_test(deaths, who_is_killed_is_named);
    tcase_add_loop_test(deaths, ends_are_heard_of_whatever_was_inherited, 0, 2);
    tcase_add_test(deaths, a_watched_rank_is_stopped);
    tcase_add_test(deaths, a_rank_dies_with_its_parent);
    tcase_add_loop_test(deaths, a_signal_ends_a_wait_for_stdin, 0, 2);
    tcase_add_test(deaths, a_signal_ends_a_wait_for_others);
    tcase_add_test(deaths, a_signal_ends_the_last_evaluation);
    tcase_add_test(deaths, one_signal_stops_all);
    tcase_add_loop_test(rest, more_epochs_go_on, 0, 2);
    tcase_add_loop_test(rest, other_data_begins_anew, 0, 2);
    tcase_add_test(rest, who_joins_resumes_nothing);
    tcase_add_loop_test(rest, state_of_another_optimizer_is_refused, 0, 3);
    tcase_add_test(rest, a_model_of_many_tensors_is_kept);
    tcase_add_test(rest, a_chunk_is_done_once_all_of_it_is);
    tcase_add_test(rest, a_feed_that_waits_for_chunks_can_be_stopped);
    tcase_add_test(rest, batches_know_their_place);
    tcase_add_loop_test(rest, a_feed_knows_how_far_it_is_itself, 0, 10);
    tcase_add_test(rest, replicas_stay_alike_while_rates_change);
    tcase_add_test(rest, who_joins_steps_as_the_others);
    tcase_add_test(rest, a_warmup_of_two_trainers_is_that_of_one);
    tcase_add_test(rest, a_run_that_goes_on_is_warm);
    tcase_add_test(rest, a_warmup_within_one_chunk_learns);
    tcase_add_loop_test(rest, a_plan_is_what_it_means, 0, N_SPELT);
    tcase_add_test(rest, pipes_are_for_one);
    tcase_add_loop_test(rest, what_can_be_read_once_is_evaluated_once, 0, 2);
    tcase_add_test(rest, a_foreign_held_out_set);
    tcase_add_loop_test(rest, what_cannot_be_written_is_said_first, 0, 2);
    tcase_add_test(rest, a_full_disk_is_seen);
    tcase_add_test(rest, a_limit_of_sizes_is_seen);
    tcase_add_test(rest, a_link_to_a_checkpoint_stays_one);
    tcase_add_test(rest, names_do_not_steer_the_terminal);
    tcase_add_test(rest, no_example_is_no_run);
    tcase_add_loop_test(rest, any_name_can_be_kept, 0, 2);
    make_clicks();
    return run_cases(deaths, rest, NULL);
}
