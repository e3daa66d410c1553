/* SPDX-License-Identifier: MIT */
/* Real processes, started by the mpirun of each MPI library that is there. This program is both
 * sides: under Check it starts itself, with the name of a part and under mpirun, and a part that
 * finds something wrong prints it and exits with 1. */
#include "fabric/mpi_link.h"
#include "fabric/mpi_world.h"

#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 120007, GAP_AT = 1000 };

/* --- the side of the ranks --- */

#define NEED(condition)                                                                       \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                \
                    descant_last_error());                                                    \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static void to_stderr(void *user, enum descant_level level, const char *line)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

struct peer {
    struct fabric *f;
    struct extent extents[2];
    struct vector in;
    float *got;
    float alpha;
    int parts;
};

static float value(int k, size_t i, int r)
{
    return (float)sin((double)i * 0.37 + k * 1.7 + r * 0.9) * (float)(k + 1);
}

static void fill(struct peer *p, int r)
{
    for (size_t e = 0; e < p->in.n_extents; e++)
        for (size_t i = 0; i < p->extents[e].n; i++)
            p->extents[e].p[i] = value(p->f->rank, p->extents[e].at + i, r);
}

static void open_peer(struct peer *p, bool in_place, bool center)
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

static void close_peer(struct peer *p)
{
    fabric_mpi.close(p->f);
    free(p->got);
}

static void use(struct peer *p, const struct fabric_part *part)
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

static void exchange(struct peer *p, struct exchange x)
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

static void need_mean(const struct peer *p, const double *weight, int n_in, int r)
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
        NEED(fabs(p->got[i] - sum) <= 0.5 * ulp + 1e-14 * scale);
    }
}

static void means(bool in_place)
{
    struct peer p;
    double weight[16];

    open_peer(&p, in_place, false);
    int size = p.f->size, last = size - 1;
    fill(&p, 0);
    exchange(&p, (struct exchange){.kind = EXCHANGE_STATE});
    for (size_t i = 0; i < p.in.n && p.f->rank > 0; i++)
        NEED(p.got[i] == (in_gap(i) ? 0 : value(0, i, 0)));
    NEED(p.f->members == size && p.f->machine_threads == size);
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
    struct peer p;

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
    struct peer p;

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
        if (p.f->rank > 0 && p.f->rank < last && size == 3)
            NEED(p.f->members == 1);
        close_peer(&p);
    }
    return 0;
}

static struct descant *open_job(const char *address, const char *plan, const char *name, size_t n)
{
    struct descant *job;
    struct descant_options options = descant_options_default();

    options.job = address;
    options.plan = plan;
    options.start_s = 20;
    options.log = to_stderr;
    if (descant_open(&job, &options) != DESCANT_OK)
        exit(3);
    NEED(descant_alloc(job, name, n));
    return job;
}

/* Through descant.h, one job after the other, without an address. */
static int part_jobs(void)
{
    static const char *const plans[] = {"allreduce", "shadow-ma", "shadow-easgd", "ma,every=2",
                                        "dasgd", "shadow-bmuf"};
    struct descant_members members;
    void *block, *again;

    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        struct descant *job = open_job(NULL, plans[k], "w", 5000);
        NEED(descant_share(job, "block", 100, &block) == DESCANT_OK);
        NEED(descant_share(job, "block", 100, &again) == DESCANT_OK);
        NEED(descant_start(job) == DESCANT_OK);
        NEED(descant_members(job, &members) == DESCANT_OK && members.size > 1);
        atomic_fetch_add((_Atomic int *)block, 1);
        float x[3] = {(float)members.rank, 1, -2};
        if (k == 0) {
            NEED(descant_mean(job, x, 3) == DESCANT_OK);
            NEED(x[0] == (float)(members.size - 1) / 2 && x[1] == 1 && x[2] == -2);
        }
        for (int step = 0; step < 40; step++) {
            NEED(descant_step(job) == DESCANT_OK);
            clock_sleep_until(clock_now_ns() + 100000);
        }
        NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
        NEED(atomic_load((_Atomic int *)block) == members.size);
        NEED(descant_close(job) == DESCANT_OK);
    }
    return 0;
}

static bool is_first(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (int k = 0; k < 2; k++)
        if (getenv(names[k]))
            return atoi(getenv(names[k])) == 0;
    return true;
}

static int start_differently(const char *plan, const char *name, size_t n)
{
    struct descant *job = open_job("mpi", plan, name, n);
    descant_status status = descant_start(job);

    fprintf(stderr, "started: %s\n", descant_status_text(status));
    descant_close(job);
    return status == DESCANT_MISMATCH ? 0 : 1;
}

static int part_plans(void)
{
    return start_differently(is_first() ? "shadow-ma" : "shadow-ma,alpha=0.25", "w", 10);
}

static int part_models(void)
{
    return start_differently("shadow-ma", "w", is_first() ? 10 : 11);
}

/* The program has MPI to itself, before and after. Levels are numbered alike in both libraries. */
static int with_own_mpi(int level)
{
    static const char *const files[] = {"libmpi.so.40", "libmpich.so.12"};
    void *library = dlopen(files[mpi_module_wanted()], RTLD_NOW | RTLD_GLOBAL);
    int given = -1;

    NEED(library);
    int (*start)(int *, char ***, int, int *) =
        (int (*)(int *, char ***, int, int *))dlsym(library, "MPI_Init_thread");
    int (*stop)(void) = (int (*)(void))dlsym(library, "MPI_Finalize");
    NEED(start && stop && start(NULL, NULL, level, &given) == 0 && given == level);
    struct descant *job = open_job("mpi", "shadow-ma", "w", 1000);
    NEED(descant_start(job) == DESCANT_OK);
    NEED(descant_finish(job, DESCANT_FINAL_MEAN) == DESCANT_OK);
    NEED(descant_close(job) == DESCANT_OK);
    return stop();
}

static int part_multiple(void)
{
    return with_own_mpi(3);
}

static int part_funneled(void)
{
    return with_own_mpi(1);
}

static const struct part {
    const char *name;
    int (*run)(void);
} parts[] = {
    {"exchanges", part_exchanges}, {"leavers", part_leavers},   {"jobs", part_jobs},
    {"plans", part_plans},         {"models", part_models},     {"multiple", part_multiple},
    {"funneled", part_funneled},
};

/* --- the side of Check --- */

static char folder[PATH_MAX], program[PATH_MAX], said[1 << 16];

static const struct {
    const char *mpirun, *flags;
} launchers[MPI_LIBRARIES] = {
    {"mpirun.openmpi", "--oversubscribe --bind-to none"},
    {"mpirun.mpich", ""},
};

static bool is_there(enum mpi_library library)
{
    char path[PATH_MAX], command[100];

    snprintf(command, sizeof command, "command -v %s >/dev/null", launchers[library].mpirun);
    if (mpi_module_find(library, path, sizeof path) && system(command) == 0)
        return true;
    printf("%s: not tested, there is no %s or no module\n", mpi_module_name(library),
           launchers[library].mpirun);
    return false;
}

/* Runs the part on so many ranks; its exit status, and what it said in `said`. */
static int launch_bound(const char *binding, enum mpi_library library, int ranks,
                        const char *part)
{
    char command[3 * PATH_MAX];
    size_t n = 0, got;

    snprintf(command, sizeof command, "timeout -k 5 60 %s %s %s -n %d %s %s 2>&1", binding,
             launchers[library].mpirun, launchers[library].flags, ranks, program, part);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    while ((got = fread(said + n, 1, sizeof said - 1 - n, out)) > 0)
        n += got;
    said[n] = 0;
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int launch(enum mpi_library library, int ranks, const char *part)
{
    return launch_bound("", library, ranks, part);
}

static void need_good(enum mpi_library library, int ranks, const char *part)
{
    int status = launch(library, ranks, part);
    ck_assert_msg(status == 0, "%s, %s on %d ranks: status %d\n%s", mpi_module_name(library), part,
                  ranks, status, said);
}

static void need_said(const char *text)
{
    ck_assert_msg(strstr(said, text), "\"%s\" was not said, but\n%s", text, said);
}

START_TEST(exchanges_are_exact)
{
    static const int sizes[] = {1, 2, 3, 5};
    for (int k = 0; k < 4 && is_there((enum mpi_library)_i); k++)
        need_good((enum mpi_library)_i, sizes[k], "exchanges");
}
END_TEST

START_TEST(leavers_serve_to_the_end)
{
    if (is_there((enum mpi_library)_i))
        need_good((enum mpi_library)_i, 3, "leavers");
}
END_TEST

START_TEST(jobs_need_no_address)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "jobs");
    need_said("job mpi (from ");
    need_said("2 ranks on 1 host");
    need_said(_i == MPI_LIBRARY_OPENMPI ? "mpi: Open MPI" : "mpi: MPICH");
}
END_TEST

START_TEST(too_few_cores_are_named)
{
    if (!is_there((enum mpi_library)_i) || sysconf(_SC_NPROCESSORS_ONLN) < 2)
        return;
    cpu_set_t set;
    char binding[64];
    int core = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET((size_t)core, &set))
        core++;
    snprintf(binding, sizeof binding, "taskset -c %d", core);
    launch_bound(binding, (enum mpi_library)_i, 2, "jobs");
    need_said("runs 2 threads and is bound to 1 of");
    need_said(_i == MPI_LIBRARY_OPENMPI ? "mpirun --bind-to none" : "mpirun -bind-to none");
}
END_TEST

START_TEST(who_differs_is_told)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "plans");
    need_said("rank 1 (");
    need_said("plan shadow-ma,alpha=0.25");
    need_good((enum mpi_library)_i, 2, "models");
    need_said("\"segment w 11\", rank 0");
    need_said("\"segment w 10\"");
}
END_TEST

START_TEST(a_program_may_have_its_own_mpi)
{
    if (!is_there((enum mpi_library)_i))
        return;
    need_good((enum mpi_library)_i, 2, "multiple");
    need_said("MPI_THREAD_MULTIPLE, MPI initialised by the program");
    ck_assert_int_ne(launch((enum mpi_library)_i, 2, "funneled"), 0);
    need_said("MPI runs with MPI_THREAD_FUNNELED");
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

static void find_program(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        exit(1);
    snprintf(folder, sizeof folder, "%.*s/..", (int)(strrchr(program, '/') - program), program);
    setenv("DESCANT_MPI_MODULE", folder, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);        /* MPI's own */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

int main(int argc, char **argv)
{
    for (size_t k = 0; argc > 1 && k < sizeof parts / sizeof *parts; k++)
        if (strcmp(argv[1], parts[k].name) == 0)
            return parts[k].run();
    find_program();
    Suite *suite = suite_create("mpi");
    TCase *all = tcase_create("mpirun");
    tcase_set_timeout(all, 200);
    tcase_add_loop_test(all, exchanges_are_exact, 0, MPI_LIBRARIES);
    tcase_add_loop_test(all, leavers_serve_to_the_end, 0, MPI_LIBRARIES);
    tcase_add_loop_test(all, jobs_need_no_address, 0, MPI_LIBRARIES);
    tcase_add_loop_test(all, too_few_cores_are_named, 0, MPI_LIBRARIES);
    tcase_add_loop_test(all, who_differs_is_told, 0, MPI_LIBRARIES);
    tcase_add_loop_test(all, a_program_may_have_its_own_mpi, 0, MPI_LIBRARIES);
    tcase_add_test(all, what_is_missing_is_named);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
