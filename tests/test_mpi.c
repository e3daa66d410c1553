/* SPDX-License-Identifier: MIT */
/* The mpi fabric by itself, in real processes: what comes out of its exchanges, and who leaves. */
#include "fabric/fabric.h"
#include "harness/mpi.h"
#include "harness/values.h"

#include "link/pmi.h"
#include "ranks/ranks.h"

#include <sys/socket.h>

enum { N = 120007, GAP_AT = 1000 };

struct mpi_peer {
    struct fabric *f;
    struct extent extents[2];
    struct vector in;
    float *got;
    float alpha;
    int parts;
};

static void fill(struct mpi_peer *p, int r)
{
    for (size_t e = 0; e < p->in.n_extents; e++)
        for (size_t i = 0; i < p->extents[e].n; i++)
            p->extents[e].p[i] = value(p->f->rank, p->extents[e].at + i, r);
}

static void open_peer(struct mpi_peer *p, bool in_place, bool center)
{
    static const struct log log = {.fn = to_stderr, .rank = -1};
    struct fabric_options options = {.rank = -1, .start_s = 30, .log = &log};
    size_t at = fabric_round_up(GAP_AT), n = at + N;
    struct fabric_start start = {.manifest = "plan x\n", .n = n, .room = n,
                                 .in_place = in_place, .collective = !center,
                                 .center = center, .n_outer = center ? 0 : 2, .threads = 1};

    memset(p, 0, sizeof *p);
    NEED(fabric_mpi.open(&p->f, &options) == DESCANT_OK);
    p->extents[0] = (struct extent){0, GAP_AT, NULL};
    p->extents[1] = (struct extent){at, N, NULL};
    for (int e = 0; e < 2 && in_place; e++) {
        p->extents[e].p = fabric_mpi.alloc(p->f, p->extents[e].at, p->extents[e].n);
        NEED(p->extents[e].p);
    }
    NEED(fabric_mpi.start(p->f, &start) == DESCANT_OK);
    for (int e = 0; e < 2 && !in_place; e++)
        p->extents[e].p = p->f->contribution + p->extents[e].at;
    p->in = (struct vector){n, 2, p->extents};
    p->got = calloc(n, sizeof *p->got);
    NEED(p->got);
}

static void close_peer(struct mpi_peer *p)
{
    fabric_mpi.close(p->f);
    free(p->got);
}

static void use(struct mpi_peer *p, const struct fabric_part *part)
{
    p->parts++;
    if (part->own)
        return;
    memcpy(p->got + part->from, part->out, part->n * sizeof *part->out);
    for (size_t e = 0; e < 2 && part->kind == EXCHANGE_ELASTIC; e++)
        for (size_t i = 0; i < part->n; i++) {
            size_t at = part->from + i;
            struct extent *x = &p->extents[e];
            if (at >= x->at && at < x->at + x->n)
                x->p[at - x->at] += p->alpha * (part->out[i] - x->p[at - x->at]);
        }
}

static void exchange(struct mpi_peer *p, struct exchange x)
{
    uint64_t until = clock_now_ns() + 30 * UINT64_C(1000000000);
    struct fabric_part part;

    x.in = &p->in;
    x.n = p->in.n;
    p->parts = 0;
    p->alpha = (float)x.alpha;
    NEED(fabric_mpi.begin(p->f, &x) == DESCANT_OK);
    for (;;) {
        enum fabric_progress progress = fabric_mpi.poll(p->f, &part);
        NEED(progress != FABRIC_FAILED && clock_now_ns() < until);
        if (progress == FABRIC_DONE)
            return;
        if (progress == FABRIC_PART)
            use(p, &part);
        else if (progress == FABRIC_WAITING)
            fabric_mpi.wait(p->f, 0);
    }
}

static bool in_gap(size_t i)
{
    return i >= GAP_AT && i < fabric_round_up(GAP_AT);
}

/* For who looks at what all ranks say. */
static void tell_bits(const struct mpi_peer *p, int r)
{
    uint64_t hash = 1;
    uint32_t bits;

    for (size_t i = 0; i < p->in.n; i++) {
        memcpy(&bits, &p->got[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    fprintf(stderr, "rank %d, mean %d: bits %016llx\n", p->f->rank, r, (unsigned long long)hash);
}

static void need_mean(const struct mpi_peer *p, const double *weight, int n_in, int r)
{
    double total = 0;

    for (int k = 0; k < n_in; k++)
        total += weight[k];
    for (size_t i = 0; i < p->in.n; i++) {
        double sum = 0, scale = 0;
        for (int k = 0; k < n_in && !in_gap(i); k++) {
            sum += weight[k] / total * value(k, i, r);
            scale += fabs(weight[k] / total * value(k, i, r));
        }
        double ulp = nextafterf(fabsf(p->got[i]), INFINITY) - fabsf(p->got[i]);
        double part = p->f->hosts > 1 ? 0x1p-24 : 1e-14;    /* a host's is rounded, too */
        NEED(fabs(p->got[i] - sum) <= 0.5 * ulp + part * scale);
    }
    tell_bits(p, r);
}

static void means(bool in_place)
{
    struct mpi_peer p;
    double weight[16];

    open_peer(&p, in_place, false);
    int size = p.f->size, last = size - 1;
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    for (size_t i = 0; i < p.in.n && p.f->rank > 0; i++)
        NEED(p.got[i] == (in_gap(i) ? 0 : value(0, i, 0)));
    NEED(p.f->members == size && p.f->machine_threads == size / p.f->hosts);
    for (int r = 1; r <= 4; r++) {
        fill(&p, r);
        for (int k = 0; k < size; k++)
            weight[k] = r == 3 && k == last && last > 0 ? 0 : k + 1;
        if (r == 3 && last > 0 && p.f->rank == last)
            p.extents[1].p[N - 1] = NAN;
        exchange(&p, (struct exchange){.weight = p.f->rank + 1});
        NEED(p.f->own_bad == (r == 3 && last > 0 && p.f->rank == last));
        need_mean(&p, weight, size, r);
    }
    fill(&p, 9);
    exchange(&p, (struct exchange){.weight = p.f->rank + 1, .final = true});
    need_mean(&p, weight, size, 9);
    close_peer(&p);
}

/* (1 - alpha) W + all w stays what it was; all see the same centre at the end. */
static void elastics(bool in_place)
{
    enum { TIMES = 10 };
    const double alpha = 0.25;
    struct mpi_peer p;

    open_peer(&p, in_place, true);
    int size = p.f->size;
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    fill(&p, 1);
    for (int r = 0; r < TIMES; r++) {
        exchange(&p, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = alpha});
        NEED(p.parts > 0);
    }
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE, .final = true});
    float *center = malloc(p.in.n * sizeof *center);
    NEED(center);
    memcpy(center, p.f->center, p.in.n * sizeof *center);
    exchange(&p, (struct exchange){.weight = 1, .final = true});
    for (size_t i = 0; i < p.in.n; i++) {
        double sum = (1 - alpha) * value(0, i, 0);
        for (int k = 0; k < size; k++)
            sum += value(k, i, 1);
        if (!in_gap(i))
            NEED(fabs((1 - alpha) * center[i] + (double)size * p.got[i] - sum) < 1e-4);
        NEED(!in_gap(i) || center[i] == 0);
    }
    for (size_t e = 0; e < 2; e++)
        memcpy(p.extents[e].p, center + p.extents[e].at, p.extents[e].n * sizeof *center);
    exchange(&p, (struct exchange){.weight = 1, .final = true});
    NEED(memcmp(p.got, center, p.in.n * sizeof *center) == 0);
    free(center);
    close_peer(&p);
}

static int part_exchanges(void)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        means(in_place);
        elastics(in_place);
    }
    return 0;
}

/* The last rank leaves early, then the first, who leads; their slices are still served. */
static int part_leavers(void)
{
    double weight[16] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct mpi_peer p;

    for (int center = 0; center < 2; center++) {
        open_peer(&p, false, center);
        int size = p.f->size, last = size - 1;
        fill(&p, 0);
        exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
        for (int r = 1; r <= 2 && p.f->rank < last; r++) {
            fill(&p, r);
            if (center)
                exchange(&p, (struct exchange){.kind = EXCHANGE_ELASTIC, .alpha = 0.5});
            else
                exchange(&p, (struct exchange){.weight = 1});
            if (!center && p.f->members == last)
                need_mean(&p, weight, last, r);
        }
        for (int r = 3; r <= 4 && p.f->rank > 0 && p.f->rank < last; r++) {
            fill(&p, r);
            exchange(&p, (struct exchange){.kind = center ? EXCHANGE_ELASTIC : EXCHANGE_MEAN,
                                           .weight = 1, .alpha = 0.5});
        }
        if (p.f->rank > 0 && p.f->rank < last && size == 3 && !center)
            NEED(p.f->members == 1);
        close_peer(&p);
    }
    return 0;
}

/* Between hosts (tests/cluster). */
static int part_means(void)
{
    means(false);
    means(true);
    return 0;
}

static int part_elastics(void)
{
    elastics(false);
    elastics(true);
    return 0;
}

/* Until a rank is killed. */
static int part_endless(void)
{
    struct mpi_peer p;

    open_peer(&p, false, false);
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    fprintf(stderr, "rank %d is process %d\n", p.f->rank, (int)getpid());
    for (int r = 0; r < INT_MAX; r++)
        exchange(&p, (struct exchange){.weight = 1});
    return 1;
}

/* --- a message that is longer than its receive --- */

static const struct link_type *honest;
static struct link_type forged;

static struct link *meet_forged(struct link_entry *entry, struct link_place *place)
{
    struct link *link = link_mpi.meet(entry, place);

    NEED(link);
    honest = link->type;
    forged.receive = honest->receive;
    forged.collect = honest->collect;
    forged.sleep = honest->sleep;
    forged.forget = honest->forget;
    forged.why = honest->why;
    forged.close = honest->close;
    link->type = &forged;
    return link;
}

static bool send_longer(struct link *link, const void *p, size_t bytes,
                       const struct link_message *message)
{
    int tag = message->tag;
    static char longer[1 << 16];

    NEED(bytes < sizeof longer);
    memcpy(longer, p, bytes);
    return honest->send(link, longer, bytes + (tag == TAG_MANIFEST), message);
}

/* All are told who it was. */
static int part_longer(void)
{
    static const struct log log = {.fn = to_stderr, .rank = -1};
    const struct fabric_options options = {.rank = -1, .start_s = 30, .log = &log,
                                           .link = &forged};
    const struct fabric_start start = {.manifest = "plan x\n", .n = 1, .room = 1,
                                       .collective = true, .threads = 1};
    uint64_t until = clock_now_ns() + 30 * UINT64_C(1000000000);
    struct fabric_part part;
    struct fabric *f;

    forged = link_mpi;
    forged.meet = meet_forged;
    forged.send = send_longer;
    NEED(fabric_mpi.open(&f, &options) == DESCANT_OK);
    forged.send = f->rank == 1 ? send_longer : honest->send;
    NEED(fabric_mpi.start(f, &start) == DESCANT_OK);
    struct extent extent = {0, 1, f->contribution};
    const struct vector in = {1, 1, &extent};
    const struct exchange x = {.kind = EXCHANGE_STATE, .in = &in, .n = 1};
    NEED(fabric_mpi.begin(f, &x) == DESCANT_OK);
    while (fabric_mpi.poll(f, &part) != FABRIC_FAILED && clock_now_ns() < until)
        fabric_mpi.wait(f, until);
    NEED(f->status == DESCANT_MISMATCH);
    _exit(strstr(descant_last_error(), "rank 1 (") ? 0 : 1);
}

static const struct mpi_part parts[] = {
    {"exchanges", part_exchanges}, {"leavers", part_leavers}, {"means", part_means},
    {"elastics", part_elastics},   {"endless", part_endless},   {"longer", part_longer},
};

START_TEST(exchanges_are_exact)
{
    static const int sizes[] = {1, 2, 3, 5};
    for (int k = 0; k < 4 && is_there((enum mpi_library)_i); k++)
        need_good((enum mpi_library)_i, sizes[k], "exchanges");
}
END_TEST

START_TEST(who_sends_too_much_is_named)
{
    if (!is_there((enum mpi_library)_i))
        return;
    launch((enum mpi_library)_i, 3, "longer");
    says("breaks the protocol: a manifest of too many bytes, where");
}
END_TEST

START_TEST(leavers_serve_to_the_end)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "leavers");
}
END_TEST

START_TEST(what_is_missing_is_named)
{
    struct fabric *f;
    struct fabric_options options = {.rank = -1};

    setenv("DESCANT_MPI_MODULE", "/nowhere", 1);
    ck_assert_int_eq(fabric_mpi.open(&f, &options), DESCANT_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(descant_last_error(), "libopenmpi-dev"));
}
END_TEST

static int moved;

static void move(void)
{
    moved++;
}

/* A launcher that answers, one that answers to the barrier alone, one that never does, and one that
 * is gone: this process waits for none of them without end. */
START_TEST(a_silent_launcher_is_left)
{
    static const char *const answers[] = {"cmd=barrier_out\ncmd=finalize_ack\n",
                                          "cmd=barrier_out\n", "cmd=barr", ""};
    char fd[16], asked[64] = "";
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(fd, sizeof fd, "%d", pair[0]);
    setenv("PMI_FD", fd, 1);
    ck_assert_int_eq(write(pair[1], answers[_i], strlen(answers[_i])), (int)strlen(answers[_i]));
    if (!*answers[_i])
        close(pair[1]);
    ck_assert(pmi_leave(move, 50) == (_i == 0));
    ck_assert(moved > 0 || !*answers[_i]);
    if (*answers[_i])
        ck_assert_int_gt(read(pair[1], asked, sizeof asked - 1), 0);
    ck_assert_str_eq(asked, _i < 2 ? "cmd=barrier_in\ncmd=finalize\n"
                                   : *answers[_i] ? "cmd=barrier_in\n" : "");
}
END_TEST

/* The descriptor may be another one by now. */
START_TEST(what_is_no_launcher_is_not_spoken_to)
{
    char fd[16], asked[64];
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(fd, sizeof fd, "%d", pair[0]);
    setenv("PMI_FD", fd, 1);
    ck_assert(!pmi_leave(move, 50));
    pmi_abort(1);
    ck_assert_int_eq(recv(pair[1], asked, sizeof asked, MSG_DONTWAIT), -1);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("mpirun");
    tcase_add_loop_test(all, exchanges_are_exact, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, who_sends_too_much_is_named, 0, LIBRARIES_RUN);
    tcase_add_loop_test(all, leavers_serve_to_the_end, 0, LIBRARIES_RUN);
    tcase_add_test(all, what_is_missing_is_named);
    tcase_add_loop_test(all, a_silent_launcher_is_left, 0, 4);
    tcase_add_test(all, what_is_no_launcher_is_not_spoken_to);
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
