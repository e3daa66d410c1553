/* SPDX-License-Identifier: MIT */
/* Agreements: the rule, over every combination of what three trainers may have offered; jobs of
 * one process over self and shm; and each fabric of ranks and of shared memory, in one thread. */
#include "harness/fabrics.h"
#include "harness/jobs.h"
#include "harness/suite.h"
#include "harness/wait.h"
#include "shm/shm.h"
#include "sync/job.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>

/* --- the rule --- */

static struct agree_value mean_of(int n, double first)
{
    struct agree_value value = {.kind = AGREE_MEAN, .n = (uint32_t)n * sizeof(double)};

    for (int i = 0; i < n; i++) {
        double x = first + i;
        memcpy(value.bytes + (size_t)i * sizeof x, &x, sizeof x);
    }
    return value;
}

static struct agree_value any_of(bool flag)
{
    return (struct agree_value){.kind = AGREE_ANY, .n = 1, .bytes = {flag}};
}

static struct agree_value from_of(int from, const char *text)
{
    struct agree_value value = {.kind = AGREE_BROADCAST, .from = from,
                                .n = text ? (uint32_t)strlen(text) + 1 : 0};

    memcpy(value.bytes, text ? text : "", value.n);
    return value;
}

static double mean_at(const struct agree_value *value, int i)
{
    double x;

    memcpy(&x, value->bytes + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* The offer of one of three trainers. To the rule no two of these are the same. */
enum act { ABSENT, SILENT, MEAN_1, MEAN_2, ANY_0, ANY_1, FROM_0, FROM_1, ACTS };
enum { NUMBER = 7 };
static const uint64_t numbers[] = {NUMBER, 0, NUMBER - 2};

static struct agree_value value_of(enum act act, int rank)
{
    static const char *const texts[] = {"zero", "one", "two"};

    switch (act) {
    case MEAN_1:
    case MEAN_2:
        return mean_of(act == MEAN_1 ? 1 : 2, rank + 0.5);
    case ANY_0:
    case ANY_1:
        return any_of(act == ANY_1);
    case FROM_0:
    case FROM_1:
        return from_of(act == FROM_1, rank == (act == FROM_1) ? texts[rank] : NULL);
    case ABSENT:
    case SILENT:
    case ACTS:
        break;
    }
    return (struct agree_value){.kind = AGREE_NONE};
}

static int kind_of(enum act act)
{
    return (int)(act == ANY_1 ? ANY_0 : act);
}

/* The rule once more, from the other end. */
static void check_fold(const enum act *acts, const uint64_t *its_number)
{
    struct agree_value values[3], result;
    struct agree_offer offers[3];
    int n = 0, numbered = 0, kind = -1;
    bool missing = false, in[3] = {false}, differ = false;

    for (int r = 0; r < 3; r++) {
        values[r] = value_of(acts[r], r);
        if (acts[r] == ABSENT)
            continue;
        missing |= acts[r] == SILENT;
        numbered += acts[r] != SILENT && its_number[r] == NUMBER;
        offers[n++] = (struct agree_offer){.rank = r, .number = its_number[r],
                                           .value = acts[r] == SILENT ? NULL : &values[r]};
    }
    bool made = agree_fold(NUMBER, offers, n, &result);
    ck_assert(made == (n > 0 && !missing));
    if (!made)
        return;
    for (int r = 2; r >= 0; r--)
        if (acts[r] != ABSENT && (its_number[r] == NUMBER || !numbered))
            kind = kind_of(acts[r]);
    for (int r = 0; r < 3; r++) {
        bool counts = its_number[r] == NUMBER || !numbered;
        in[r] = acts[r] != ABSENT && (counts || kind_of(acts[r]) == kind);
        differ |= acts[r] != ABSENT && counts && kind_of(acts[r]) != kind;
    }
    for (int i = 0; i < n; i++)
        ck_assert(offers[i].in == in[offers[i].rank]);
    bool gone = kind >= FROM_0 && !in[kind - FROM_0];
    ck_assert_uint_eq(result.status, differ ? DESCANT_MISMATCH : gone ? DESCANT_BAD_RANK : 0);
    ck_assert(agree_is_good(&result, true));
    if (result.status) {
        ck_assert_uint_eq(result.n, strlen((char *)result.bytes) + 1);
        return;
    }
    double sum = 0;
    int k = 0;
    bool any = false;
    for (int r = 0; r < 3; r++) {
        sum += in[r] ? r + 0.5 : 0;
        k += in[r];
        any |= in[r] && acts[r] == ANY_1;
    }
    if (kind == ANY_0)
        ck_assert(result.n == 1 && result.bytes[0] == any);
    else if (kind >= FROM_0)
        ck_assert_str_eq((char *)result.bytes, kind == FROM_0 ? "zero" : "one");
    else
        ck_assert(mean_at(&result, 0) == sum / k &&
                  result.n == (uint32_t)(kind - MEAN_1 + 1) * sizeof(double));
}

START_TEST(every_combination_of_three)
{
    for (int i = 0; i < ACTS * ACTS * ACTS; i++)
        for (int j = 0; j < 27; j++) {
            const enum act acts[] = {(enum act)(i % ACTS), (enum act)(i / ACTS % ACTS),
                                     (enum act)(i / ACTS / ACTS)};
            const uint64_t its[] = {numbers[j % 3], numbers[j / 3 % 3], numbers[j / 9]};
            check_fold(acts, its);
        }
}
END_TEST

START_TEST(who_differs_is_named)
{
    const struct agree_value values[] = {mean_of(3, 0), mean_of(3, 1), any_of(true),
                                         from_of(2, NULL)};
    struct agree_offer offers[3];
    struct agree_value result;

    for (int i = 0; i < 3; i++)
        offers[i] = (struct agree_offer){.rank = 2 * i, .value = &values[i]};
    ck_assert(agree_fold(1, offers, 3, &result));
    ck_assert_str_eq((char *)result.bytes,
                     "trainer 0 asks for a mean of 3 values, and trainer 4 for any: all "
                     "trainers make the same agreements, in the same order");
    offers[0].value = &values[3];
    ck_assert(agree_fold(1, offers, 1, &result));
    ck_assert_ptr_nonnull(strstr((char *)result.bytes, "trainer 2, from which"));
}
END_TEST

/* In another order of additions they have other bits. */
START_TEST(values_are_added_in_the_order_of_ranks)
{
    const struct agree_value values[] = {mean_of(1, 1e16), mean_of(1, 1), mean_of(1, -1e16)};
    struct agree_offer offers[3];
    struct agree_value result;

    for (int i = 0; i < 3; i++)
        offers[i] = (struct agree_offer){.rank = i, .value = &values[i]};
    ck_assert(agree_fold(1, offers, 3, &result));
    ck_assert(mean_at(&result, 0) == (1e16 + 1 - 1e16) / 3);
    ck_assert(agree_fold(1, (struct agree_offer[]){{.value = &values[0]}}, 1, &result));
    ck_assert(mean_at(&result, 0) == 1e16);
}
END_TEST

START_TEST(numbers_out_of_bounds_are_refused)
{
    struct agree_value good[] = {mean_of(AGREE_MOST, 0), any_of(true), from_of(2, "x")};

    for (int i = 0; i < 3; i++) {
        struct agree_value bad = good[i];
        ck_assert(agree_is_good(&good[i], false) && agree_is_good(&good[i], true));
        bad.n = AGREE_BYTES + 8;
        ck_assert(!agree_is_good(&bad, true));
        bad = good[i];
        bad.status = DESCANT_MISMATCH;
        ck_assert(agree_is_good(&bad, true));
        ck_assert(agree_is_good(&bad, false) == (i == 2));   /* a giver that cannot give */
        bad.status = DESCANT_ENDED + 1;
        ck_assert(!agree_is_good(&bad, true));
        bad = good[i];
        bad.kind = i == 0 ? AGREE_NONE : AGREE_BROADCAST + 1;
        ck_assert(!agree_is_good(&bad, true));
    }
    good[0].n--;
    good[1].n = 2;
    good[2].from = -7;
    for (int i = 0; i < 3; i++)
        ck_assert(!agree_is_good(&good[i], false));
    good[0].n = 0;
    good[2].from = -1;
    ck_assert(!agree_is_good(&good[0], false) && !agree_is_good(&good[2], false));
}
END_TEST

/* --- jobs of this process --- */

static struct descant *begin(const char *address, const char *plan, int rank, int size)
{
    struct descant *job = open_job(address, plan, rank, size);

    ck_assert_ptr_nonnull(descant_alloc(job, "w", 100));
    return job;
}

static void check_alone(struct descant *job)
{
    double x[2] = {1.5, -INFINITY};
    int flag = 256;
    char bytes[8] = "abc";
    size_t n = 4;

    ck_assert_int_eq(descant_agree_mean(job, x, 2), DESCANT_OK);
    ck_assert(x[0] == 1.5 && isinf(x[1]));
    ck_assert_int_eq(descant_agree_any(job, &flag), DESCANT_OK);
    ck_assert_int_eq(flag, 1);
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, sizeof bytes, &n, 0), DESCANT_OK);
    ck_assert_str_eq(bytes, "abc");
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, sizeof bytes, &n, 1),
                     DESCANT_BAD_RANK);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "trainer 1"));
    ck_assert_str_eq(bytes, "abc");
}

START_TEST(one_trainer_agrees_with_itself)
{
    new_address("");
    for (int k = 0; k < 2; k++) {
        struct descant *job = begin(k ? job_address : "self", "shadow-ma", 0, 1);
        double x = 1;
        ck_assert_int_eq(descant_agree_mean(job, &x, 1), DESCANT_ORDER);
        start_job(job);
        check_alone(job);
        ck_assert_int_eq(descant_finish(job, DESCANT_FINAL_MEAN), DESCANT_OK);
        ck_assert_int_eq(descant_agree_mean(job, &x, 1), DESCANT_ORDER);
        descant_close(job);
    }
}
END_TEST

START_TEST(arguments_are_checked)
{
    struct descant *job = begin("self", "none", 0, 1);
    static double x[AGREE_MOST + 1];
    static char bytes[AGREE_BYTES + 1];
    size_t n = AGREE_BYTES;

    start_job(job);
    ck_assert_int_eq(descant_agree_mean(job, x, AGREE_MOST), DESCANT_OK);
    ck_assert_int_eq(descant_agree_mean(job, x, AGREE_MOST + 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_mean(job, x, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_mean(job, NULL, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_mean(NULL, x, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_any(job, NULL), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, sizeof bytes, &n, 0), DESCANT_OK);
    n = AGREE_BYTES + 1;
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, sizeof bytes, &n, 0),
                     DESCANT_INVALID);
    n = 5;
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, 4, &n, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, 4, &n, -1), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_broadcast(job, bytes, 4, NULL, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_agree_broadcast(job, NULL, 4, &n, 0), DESCANT_INVALID);
    descant_close(job);
}
END_TEST

/* Trainers of this process over shm, each in a thread. */
enum { TRAINERS = 3, ROUNDS = 200 };

struct mate {
    struct descant *job;
    int rank;
    _Atomic int made;
    pthread_t thread;
};

static struct mate mates[TRAINERS];

static void open_mates(const char *plan)
{
    new_address("");
    for (int k = 0; k < TRAINERS; k++)
        mates[k] = (struct mate){.job = begin(job_address, plan, k, TRAINERS), .rank = k};
    for (int k = 0; k < TRAINERS; k++)
        pthread_create(&mates[k].thread, NULL, start_job, mates[k].job);
    for (int k = 0; k < TRAINERS; k++)
        pthread_join(mates[k].thread, NULL);
}

static void close_mates(void)
{
    for (int k = 0; k < TRAINERS; k++)
        descant_close(mates[k].job);
}

static void run_mates(void *(*run)(void *), int from)
{
    for (int k = from; k < TRAINERS; k++)
        pthread_create(&mates[k].thread, NULL, run, &mates[k]);
}

static void join_mates(int from)
{
    for (int k = from; k < TRAINERS; k++)
        pthread_join(mates[k].thread, NULL);
}

static void *agree_often(void *context)
{
    struct mate *mate = context;

    for (int i = 0; i < ROUNDS; i++) {
        double x[2] = {mate->rank, i * mate->rank};
        int flag = i % 4 == mate->rank;
        int bytes[2] = {mate->rank, i};
        size_t n = mate->rank == i % 3 ? sizeof bytes : 0;
        ck_assert_int_eq(descant_agree_mean(mate->job, x, 2), DESCANT_OK);
        ck_assert(x[0] == 1 && x[1] == i);
        ck_assert_int_eq(descant_agree_any(mate->job, &flag), DESCANT_OK);
        ck_assert_int_eq(flag, i % 4 < 3);
        ck_assert_int_eq(
            descant_agree_broadcast(mate->job, bytes, sizeof bytes, &n, i % 3), DESCANT_OK);
        ck_assert(n == sizeof bytes && bytes[0] == i % 3 && bytes[1] == i);
        mate->made++;
    }
    return NULL;
}

START_TEST(all_get_the_same)
{
    static const char *const plans[] = {"shadow-easgd", "shadow-ma", "ma,every=2", "none",
                                        "allreduce", "dasgd"};

    open_mates(plans[_i]);
    run_mates(agree_often, 0);
    join_mates(0);
    close_mates();
}
END_TEST

static void *agree_on_two(void *context)
{
    struct mate *mate = context;
    double x[2] = {mate->rank, 10};

    ck_assert_int_eq(descant_agree_mean(mate->job, x, 2), DESCANT_OK);
    return NULL;
}

static void *differ(void *context)
{
    struct mate *mate = context;
    double x[2] = {0, 0};
    int flag = 0;
    char byte = (char)mate->rank;
    size_t n = mate->rank == 1;

    ck_assert_int_eq(mate->rank == 2 ? descant_agree_any(mate->job, &flag)
                                     : descant_agree_mean(mate->job, x, 2),
                     DESCANT_MISMATCH);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "trainer 0 asks for a mean of 2 values, "
                                                       "and trainer 2 for any"));
    ck_assert_int_eq(descant_agree_mean(mate->job, x, mate->rank == 1 ? 1 : 2),
                     DESCANT_MISMATCH);
    ck_assert_int_eq(descant_agree_broadcast(mate->job, &byte, 1, &n, mate->rank),
                     DESCANT_MISMATCH);
    ck_assert_int_eq(descant_agree_broadcast(mate->job, &byte, 1, &n, 9), DESCANT_BAD_RANK);
    ck_assert_int_eq(descant_agree_broadcast(mate->job, &byte, 1, &n, 1), DESCANT_OK);
    ck_assert(byte == 1 && n == 1);
    return NULL;
}

/* The last agreement's values, for each trainer, and NaN where they are no such mean. */
START_TEST(what_was_agreed_is_known)
{
    double x[2] = {5, 7};
    uint64_t made = 9;

    open_mates("shadow-easgd");
    struct descant *job = mates[1].job;
    ck_assert_int_eq(descant_agreed(job, NULL, NULL, 0), DESCANT_INVALID);
    ck_assert_int_eq(descant_agreed(job, &made, NULL, 1), DESCANT_INVALID);
    ck_assert_int_eq(descant_agreed(job, &made, x, 513), DESCANT_INVALID);
    ck_assert_int_eq(descant_agreed(NULL, &made, x, 2), DESCANT_INVALID);
    ck_assert(made == 9 && x[0] == 5 && x[1] == 7);
    ck_assert_int_eq(descant_agreed(job, &made, x, 2), DESCANT_OK);
    ck_assert(made == 0 && isnan(x[0]) && isnan(x[1]));
    run_mates(agree_on_two, 0);
    join_mates(0);
    for (int k = 0; k < TRAINERS; k++) {
        ck_assert_int_eq(descant_agreed(mates[k].job, &made, x, 2), DESCANT_OK);
        ck_assert(made == 1 && x[0] == 1 && x[1] == 10);
        ck_assert_int_eq(descant_agreed(mates[k].job, &made, x, 1), DESCANT_OK);
        ck_assert(made == 1 && isnan(x[0]));
        ck_assert_int_eq(descant_agreed(mates[k].job, &made, NULL, 0), DESCANT_OK);
    }
    run_mates(differ, 0);
    join_mates(0);
    ck_assert_int_eq(descant_agreed(job, &made, x, 2), DESCANT_OK);
    ck_assert(made == 6 && isnan(x[0]) && isnan(x[1]));
    close_mates();
}
END_TEST

static void *agree_once(void *context)
{
    struct mate *mate = context;
    double x = mate->rank;

    ck_assert_int_eq(descant_agree_mean(mate->job, &x, 1), DESCANT_OK);
    ck_assert(x == (mate->rank ? 1.5 : 1));
    mate->made++;
    return NULL;
}

static void *finish_one(void *context)
{
    struct mate *mate = context;
    ck_assert_int_eq(descant_finish(mate->job, DESCANT_FINAL_MEAN), DESCANT_OK);
    return NULL;
}

/* 0 closes, or begins its finish, while the others wait for it. */
START_TEST(who_leaves_or_finishes_is_not_waited_for)
{
    open_mates("shadow-easgd");
    run_mates(agree_once, 1);
    clock_sleep_until(clock_now_ns() + 20000000);
    ck_assert_int_eq(mates[1].made + mates[2].made, 0);
    if (_i)
        descant_close(mates[0].job);
    else
        pthread_create(&mates[0].thread, NULL, finish_one, &mates[0]);
    join_mates(1);
    if (_i) {
        mates[0].job = NULL;
    } else {
        run_mates(finish_one, 1);
        join_mates(0);
    }
    close_mates();
}
END_TEST

/* The job goes on. */
START_TEST(calls_that_differ_fail_for_all)
{
    open_mates("ma,every=3");
    run_mates(differ, 0);
    join_mates(0);
    close_mates();
}
END_TEST

static descant_status take_it(struct fabric *f, const struct agree_value *value)
{
    (void)f, (void)value;
    return DESCANT_OK;
}

static bool give_another(struct fabric *f, struct agree_value *result)
{
    (void)f;
    *result = mean_of(512, 7);
    return true;
}

/* Of a coordinator that lies, or of one that has not waited for this trainer. */
START_TEST(another_result_is_refused)
{
    static const struct fabric_agree other = {.offer = take_it, .look = give_another};
    struct descant *job = begin("self", "none", 0, 1);
    struct fabric_type type = *job->fabric->type;
    double x[2] = {1, 2};
    int flag = 0;
    size_t n = 0;

    type.agree = &other;
    job->fabric->type = &type;          /* until close */
    start_job(job);
    ck_assert_int_eq(descant_agree_mean(job, x, 1), DESCANT_MISMATCH);
    ck_assert_int_eq(descant_agree_any(job, &flag), DESCANT_MISMATCH);
    ck_assert_int_eq(descant_agree_broadcast(job, x, sizeof x, &n, 1), DESCANT_MISMATCH);
    ck_assert(x[0] == 1 && x[1] == 2 && flag == 0 && n == 0);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "another agreement without this"));
    descant_close(job);
}
END_TEST

START_TEST(one_thread_at_a_time)
{
    struct descant *job = begin("self", "none", 0, 1);
    char waits[200];
    int flag = 0;

    start_job(job);
    atomic_store(&job->agreeing, true);         /* as another thread does that waits */
    ck_assert_int_eq(descant_agree_any(job, &flag), DESCANT_ORDER);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "another thread"));
    descant_waits(job, waits, sizeof waits);
    ck_assert_ptr_nonnull(strstr(waits, "trainer 0 waits for the others to agree"));
    atomic_store(&job->agreeing, false);
    ck_assert_int_eq(descant_agree_any(job, &flag), DESCANT_OK);
    descant_waits(job, waits, sizeof waits);
    ck_assert_ptr_null(strstr(waits, "agree"));
    descant_close(job);
}
END_TEST

/* Their slots are in another order. */
START_TEST(shared_memory_adds_in_the_order_of_ranks)
{
    static const int ranks[TRAINERS] = {2, 0, 1};
    static const double brings[TRAINERS] = {1e16, 1, -1e16};

    new_address("");
    for (int k = 0; k < TRAINERS; k++)
        mates[k] = (struct mate){.job = begin(job_address, "none", ranks[k], TRAINERS),
                                 .rank = ranks[k]};
    for (int k = 0; k < TRAINERS; k++)
        pthread_create(&mates[k].thread, NULL, start_job, mates[k].job);
    join_mates(0);
    for (int k = 0; k < TRAINERS; k++) {
        const struct agree_value value = mean_of(1, brings[ranks[k]]);
        shm_agree.offer(mates[k].job->fabric, &value);
    }
    struct agree_value result;
    ck_assert(shm_agree.look(mates[0].job->fabric, &result));
    ck_assert(mean_at(&result, 0) == 0);
    close_mates();
}
END_TEST

static _Atomic int refused;

static int agree_in_event(void *user, const struct descant_event *event)
{
    int flag = 0;

    (void)event;
    refused = descant_agree_any(*(struct descant **)user, &flag);
    return 0;
}

START_TEST(no_callback_of_events_makes_one)
{
    struct descant_options o = descant_options_default();
    struct descant *job;

    new_address("");
    o.job = job_address;
    o.plan = "shadow-ma";
    o.on_event = agree_in_event;
    o.event_user = &job;
    ck_assert_int_eq(descant_open(&job, &o), DESCANT_OK);
    ck_assert_ptr_nonnull(descant_alloc(job, "w", 100));
    start_job(job);
    struct descant *other = begin(job_address, "shadow-ma", 1, 0);
    start_job(other);
    WAIT_UNTIL(refused, "no event");
    ck_assert_int_eq(refused, DESCANT_INVALID);
    descant_close(other);
    descant_close(job);
}
END_TEST

/* --- every fabric, in one thread --- */

static struct agree_value got[MOST];
static bool has[MOST];

static const struct fabric_agree *agree_of(struct job *job)
{
    return job->row->type->agree;
}

static void offer(struct job *job, int k, struct agree_value value)
{
    has[k] = false;
    ck_assert_int_eq(agree_of(job)->offer(job->peers[k].f, &value), DESCANT_OK);
}

/* Until all from..to-1 have their results, or for so long; exchanges go on meanwhile. */
static bool agree_all(struct job *job, int from, int to, double seconds)
{
    uint64_t end = job_now(job) + (uint64_t)(seconds * 1e9);

    while (job_now(job) <= end) {
        struct peer *last = NULL;
        bool moved = false, open = false;
        for (int k = 0; k < MOST; k++) {
            struct peer *peer = &job->peers[k];
            if (!peer->f)
                continue;
            if (peer->open || job->ranks)
                moved |= peer_turn(job, peer);
            if (peer->f->type->serve)
                peer->f->type->serve(peer->f);
            if (k >= from && k < to && !has[k])
                has[k] = agree_of(job)->look(peer->f, &got[k]);
            open |= (k >= from && k < to && !has[k]) || peer->open;
            last = peer;
        }
        if (!open)
            return true;
        if (!moved)
            job->row->type->wait(last->f, job_now(job) + 1000000);
    }
    return false;
}

static void check_same(int from, int to)
{
    for (int k = from; k < to; k++) {
        ck_assert_uint_eq(got[k].status, DESCANT_OK);
        ck_assert_uint_eq(got[k].n, got[from].n);
        ck_assert_mem_eq(got[k].bytes, got[from].bytes, got[from].n);
    }
}

/* All know how many there have been, and the last one. */
static void check_made(struct job *job, uint64_t number)
{
    struct agree_value last;
    uint64_t made = 0;
    bool ready = false;

    for (int k = 0; k < job->row->size; k++) {
        ck_assert_int_eq(agree_of(job)->made(job->peers[k].f, &ready, &made, &last), DESCANT_OK);
        ck_assert(ready && made == number);
        ck_assert_uint_eq(last.n, got[k].n);
        ck_assert_mem_eq(last.bytes, got[k].bytes, got[k].n);
    }
}

START_TEST(every_fabric_agrees)
{
    struct job job;
    job_init(&job, _i, 3000, false);
    if (agree_of(&job)) {
        job_form(&job);
        struct agree_value none;
        uint64_t made = 1;
        bool ready = false;
        ck_assert_int_eq(agree_of(&job)->made(job.peers[0].f, &ready, &made, &none), DESCANT_OK);
        ck_assert(ready && made == 0);
        int size = job.row->size;
        double weight[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
        for (int r = 1; r <= 4; r++) {
            fill_all(&job, r);
            begin_all(&job, (struct exchange){.weight = 1});
            for (int k = 0; k < size; k++)
                offer(&job, k, r == 1   ? mean_of(AGREE_MOST, k)
                               : r == 2 ? any_of(k == size - 1)
                               : r == 3 ? from_of(size - 1, k == size - 1 ? "last" : NULL)
                                        : any_of(false));
            ck_assert(agree_all(&job, 0, size, BOUND_S));
            check_same(0, size);
            check_made(&job, (uint64_t)r);
            check_mean(&job, &job.peers[0], weight, size, r);
            if (r == 1)
                ck_assert(mean_at(&got[0], AGREE_MOST - 1) ==
                          AGREE_MOST - 1 + (size - 1) / 2.0);
            else if (r == 3)
                ck_assert_str_eq((char *)got[0].bytes, "last");
            else
                ck_assert_uint_eq(got[0].bytes[0], r == 2);
        }
    }
    job_fini(&job);
}
END_TEST

START_TEST(nobody_is_answered_before_all_have_offered)
{
    struct job job;
    job_init(&job, _i, 100, false);
    int size = job.row->size;
    if (agree_of(&job) && size > 1) {
        job_form(&job);
        for (int first = 0; first < size; first++) {
            for (int k = 0; k < size; k++)
                if (k != first)
                    offer(&job, k, mean_of(2, k));
            for (int k = 0; k < size; k++)
                ck_assert(k == first || (!agree_all(&job, k, k + 1, 0.01) && !has[k]));
            for (int k = 0; k < size; k++) {
                struct awaited late = {.n = 0};
                if (k != first)
                    agree_of(&job)->missing(job.peers[k].f, &late);
                if (k != first && (k == 0 || !job.ranks))     /* 0 coordinates */
                    ck_assert(late.n == 1 && late.ranks[0] == first);
                else
                    ck_assert_int_eq(late.n, 0);
            }
            offer(&job, first, mean_of(2, first));
            ck_assert(agree_all(&job, 0, size, BOUND_S));
            check_same(0, size);
            ck_assert(mean_at(&got[0], 1) == 1 + (size - 1) / 2.0);
        }
    }
    job_fini(&job);
}
END_TEST

/* One of them begins its finish, or leaves. */
START_TEST(only_those_at_work_are_waited_for)
{
    struct job job;
    bool leaves = _i >= N_ROWS;
    job_init(&job, _i % N_ROWS, 100, false);
    int size = job.row->size, last = size - 1;
    if (agree_of(&job) && size > 1) {
        job_form(&job);
        for (int k = 0; k < last; k++)
            offer(&job, k, mean_of(1, k));
        ck_assert(!agree_all(&job, 0, last, 0.01));
        if (leaves)
            peer_close(&job, last);
        else
            begin_final(&job, last);
        for (int tries = 0; tries < 2 && !has[0]; tries++) {
            bool open = job.peers[last].open;
            job.peers[last].open = false;       /* its exchange is not waited for here */
            agree_all(&job, 0, last, BOUND_S);
            job.peers[last].open = open;
        }
        ck_assert(has[0] && has[last - 1]);
        check_same(0, last);
        ck_assert(mean_at(&got[0], 0) == (last - 1) / 2.0);
    }
    job_fini(&job);
}
END_TEST

/* Bulk leaves only while its sender polls, which one that has its result need not do. */
START_TEST(who_has_the_result_is_not_needed)
{
    struct job job;
    job_init(&job, _i, 100, false);
    int size = job.row->size, left = size;
    if (agree_of(&job)) {
        job_form(&job);
        for (int k = 0; k < size; k++)
            offer(&job, k, mean_of(AGREE_MOST, k));
        for (int turn = 0; turn < 100000 && left > 0; turn++)
            for (int k = 0; k < size; k++) {
                if (has[k])
                    continue;
                if (job.peers[k].f->type->serve)
                    job.peers[k].f->type->serve(job.peers[k].f);
                has[k] = agree_of(&job)->look(job.peers[k].f, &got[k]);
                left -= has[k];
                if (!has[k])
                    job.row->type->wait(job.peers[k].f, job_now(&job) + 100000);
            }
        ck_assert_int_eq(left, 0);
        check_same(0, size);
    }
    job_fini(&job);
}
END_TEST

/* And not the next trainer's of its rank, which may have its place. */
START_TEST(an_offer_ends_with_its_trainer)
{
    struct job job;
    job_init(&job, _i, 100, false);
    int last = job.row->size - 1;
    if (agree_of(&job) && takes_joiners(&job) && last > 0) {
        job_form(&job);
        offer(&job, last, mean_of(1, 100));
        agree_all(&job, last, last + 1, 0.01);
        peer_close(&job, last);
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        finish(&job);
        peer_again(&job, last, 1);
        ck_assert(!drive(&job, -1, 0.02));
        for (int k = 0; k < last; k++)
            peer_begin(&job, k, (struct exchange){.weight = 1});
        ck_assert(drive(&job, last, BOUND_S));
        peer_begin(&job, last, (struct exchange){.weight = 1});
        finish(&job);
        for (int k = 0; k < last; k++)
            offer(&job, k, mean_of(1, 2));
        ck_assert(!agree_all(&job, 0, last, 0.02));
        offer(&job, last, mean_of(1, 2));
        ck_assert(agree_all(&job, 0, last + 1, BOUND_S));
        ck_assert(mean_at(&got[0], 0) == 2);
    }
    job_fini(&job);
}
END_TEST

/* A newcomer's first call is the next of the others' that is like it. */
START_TEST(a_newcomer_joins_in)
{
    struct job job;
    job_init(&job, _i, 100, false);
    int size = job.row->size;
    if (agree_of(&job) && takes_joiners(&job)) {
        job_form(&job);
        for (int r = 0; r < 3; r++) {
            for (int k = 0; k < size; k++)
                offer(&job, k, mean_of(1, 3));
            ck_assert(agree_all(&job, 0, size, BOUND_S));
        }
        peer_again(&job, size, 1);
        ck_assert(!drive(&job, -1, 0.02));      /* nobody has begun */
        begin_all(&job, (struct exchange){.weight = 1});
        ck_assert(drive(&job, size, BOUND_S));
        peer_begin(&job, size, (struct exchange){.weight = 1});
        finish(&job);
        for (int k = 0; k < size; k++)
            offer(&job, k, any_of(false));
        ck_assert(!agree_all(&job, 0, size, 0.01));     /* it is at work */
        offer(&job, size, mean_of(1, 10));
        ck_assert(agree_all(&job, 0, size, BOUND_S) && !has[size]);
        check_same(0, size);
        for (int k = 0; k < size; k++)
            offer(&job, k, mean_of(1, 0));
        ck_assert(agree_all(&job, 0, size + 1, BOUND_S));
        check_same(0, size + 1);
        ck_assert(mean_at(&got[0], 0) == 10.0 / (size + 1));
        for (int k = 0; k <= size; k++)                 /* and now it has their number */
            offer(&job, k, k == size ? any_of(true) : mean_of(1, 0));
        ck_assert(agree_all(&job, 0, size + 1, BOUND_S));
        for (int k = 0; k <= size; k++)
            ck_assert_uint_eq(got[k].status, DESCANT_MISMATCH);
    }
    job_fini(&job);
}
END_TEST

/* --- shared memory: who folds dies before the result counts --- */

static void die(enum step step, unsigned slot)
{
    (void)slot;
    if (step == STEP_AGREED)
        _exit(9);
}

START_TEST(who_folds_may_die)
{
    double x = 4;
    int status;

    new_address("");
    pid_t pid = fork();
    shm_hook = pid == 0 ? die : NULL;   /* before there is a shadow, which reads it */
    struct descant *job = begin(job_address, "shadow-ma", pid == 0, 2);
    start_job(job);
    if (pid == 0) {
        clock_sleep_until(clock_now_ns() + 50000000);   /* the other one has offered */
        x = 100;
        descant_agree_mean(job, &x, 1);
        _exit(1);                       /* the other one has folded */
    }
    ck_assert_int_eq(descant_agree_mean(job, &x, 1), DESCANT_OK);
    waitpid(pid, &status, 0);
    ck_assert(WIFEXITED(status));
    ck_assert(x == (WEXITSTATUS(status) == 9 ? 4 : 52));
    ck_assert_int_eq(descant_agree_mean(job, &x, 1), DESCANT_OK);
    descant_close(job);
}
END_TEST

int main(void)
{
    TCase *rule = new_case("rule", 60), *jobs = new_case("jobs", 60),
          *fabrics = new_case("fabrics", 60);

    tcase_add_test(rule, every_combination_of_three);
    tcase_add_test(rule, who_differs_is_named);
    tcase_add_test(rule, values_are_added_in_the_order_of_ranks);
    tcase_add_test(rule, numbers_out_of_bounds_are_refused);
    tcase_add_test(jobs, one_trainer_agrees_with_itself);
    tcase_add_test(jobs, arguments_are_checked);
    tcase_add_loop_test(jobs, all_get_the_same, 0, 6);
    tcase_add_loop_test(jobs, who_leaves_or_finishes_is_not_waited_for, 0, 2);
    tcase_add_test(jobs, calls_that_differ_fail_for_all);
    tcase_add_test(jobs, what_was_agreed_is_known);
    tcase_add_test(jobs, another_result_is_refused);
    tcase_add_test(jobs, one_thread_at_a_time);
    tcase_add_test(jobs, who_folds_may_die);
    tcase_add_test(jobs, shared_memory_adds_in_the_order_of_ranks);
    tcase_add_test(jobs, no_callback_of_events_makes_one);
    add_thirds(fabrics, every_fabric_agrees, N_ROWS);
    add_thirds(fabrics, nobody_is_answered_before_all_have_offered, N_ROWS);
    add_thirds(fabrics, only_those_at_work_are_waited_for, 2 * N_ROWS);
    add_thirds(fabrics, who_has_the_result_is_not_needed, N_ROWS);
    add_thirds(fabrics, an_offer_ends_with_its_trainer, N_ROWS);
    add_thirds(fabrics, a_newcomer_joins_in, N_ROWS);
    return run_cases(rule, jobs, fabrics, NULL);
}
