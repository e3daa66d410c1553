/* SPDX-License-Identifier: MIT */
/* Calls of MPI that fail, in real processes. This program has some of MPI's functions
 * itself, and exports them, so that the module finds these before the library's: each goes
 * on to the library's (PMPI_...), or returns an error in its place. A handle is an int in
 * one library and a pointer in the other, and fits into void * in both. */
#include "harness/mpi.h"

#include "ranks/ranks.h"

#include <dlfcn.h>

enum { MPI_ERROR = 16 };        /* "other" or "internal", by library */

/* FAILS: the function that fails here; AFTER: once it has been called so often. */
static int ends_badly(const char *name)
{
    static int n_calls;
    const char *fails = getenv("FAILS"), *after = getenv("AFTER");

    return fails && after && strcmp(fails, name) == 0 && n_calls++ >= atoi(after);
}

#define FAILING(name, parameters, arguments)                                              \
    __attribute__((visibility("default"))) int name parameters;                           \
    int name parameters                                                                   \
    {                                                                                     \
        int(*real) parameters;                                                            \
        void *found = dlsym(RTLD_DEFAULT, "P" #name);                                     \
        NEED(found);                                                                      \
        memcpy(&real, &found, sizeof real);                                               \
        return ends_badly(#name) ? MPI_ERROR : real arguments;                            \
    }

FAILING(MPI_Comm_idup, (void *comm, void *out, void *request), (comm, out, request))
FAILING(MPI_Comm_split_type, (void *comm, int type, int key, void *info, void *out),
        (comm, type, key, info, out))
FAILING(MPI_Scan, (void *in, void *out, int n, void *type, void *op, void *comm),
        (in, out, n, type, op, comm))
FAILING(MPI_Isend,
        (void *p, int n, void *type, int to, int tag, void *comm, void *request),
        (p, n, type, to, tag, comm, request))
FAILING(MPI_Irecv,
        (void *p, int n, void *type, int from, int tag, void *comm, void *request),
        (p, n, type, from, tag, comm, request))
FAILING(MPI_Testsome, (int n, void *requests, int *n_ended, int *indices, void *statuses),
        (n, requests, n_ended, indices, statuses))

/* --- the side of the ranks --- */

static const struct log to_all = {.fn = to_stderr, .rank = -1};

static int part_meets(void)
{
    struct fabric_options options = {.rank = -1, .start_s = 30, .log = &to_all};
    struct fabric *f;

    NEED(fabric_mpi.open(&f, &options) == DESCANT_UNSUPPORTED);
    return 5;
}

/* Means until one fails. */
static int part_exchanges(void)
{
    const struct fabric_options options = {.rank = -1, .start_s = 30, .log = &to_all};
    const struct fabric_start start = {.manifest = "plan x\n", .n = 1, .room = 1,
                                       .collective = true, .threads = 1};
    uint64_t until = clock_now_ns() + 30 * UINT64_C(1000000000);
    enum fabric_progress progress = FABRIC_DONE;
    struct fabric_part part;
    struct fabric *f;

    NEED(fabric_mpi.open(&f, &options) == DESCANT_OK);
    NEED(fabric_mpi.start(f, &start) == DESCANT_OK);
    struct extent extent = {0, 1, f->contribution};
    const struct vector in = {1, 1, &extent};
    for (int r = 0; progress != FABRIC_FAILED; r++) {
        const struct exchange x = {.kind = r ? EXCHANGE_MEAN : EXCHANGE_STATE, .in = &in,
                                   .n = 1, .weight = 1};
        if (fabric_mpi.begin(f, &x) != DESCANT_OK)
            break;
        while ((progress = fabric_mpi.poll(f, &part)) != FABRIC_DONE &&
               progress != FABRIC_FAILED && clock_now_ns() < until)
            fabric_mpi.wait(f, until);
        NEED(clock_now_ns() < until);
    }
    NEED(f->status == DESCANT_SYSTEM);
    fabric_mpi.close(f);
    return 5;
}

static const struct mpi_part parts[] = {{"meets", part_meets},
                                        {"exchanges", part_exchanges}};

/* --- the side of Check --- */

/* Ranks say which call has failed, once, and end by themselves; or their launcher ends
 * them, as another one has ended without MPI_Finalize. */
static void fail_in(enum mpi_library library, const char *call, const char *after,
                    const char *part)
{
    char text[64];

    setenv("FAILS", call, 1);
    setenv("AFTER", after, 1);
    int status = launch(library, 2, part);
    ck_assert_msg(status != 0 && status != 124 && !strstr(said, "test_mpi_errors.c:") &&
                      !strstr(said, "rank -1"),
                  "%s in %s: status %d\n%.3000s", call, part, status, said);
    snprintf(text, sizeof text, "%s: ", call);
    says(text);
    const char *first = strstr(said, text), *again = strstr(first + 1, text);
    ck_assert_msg(!again || !strstr(again + 1, text), "%.3000s", said);
}

START_TEST(a_call_that_fails_is_named)
{
    static const char *const meets[] = {"MPI_Comm_idup", "MPI_Comm_split_type", "MPI_Scan"};
    static const char *const exchanges[] = {"MPI_Isend", "MPI_Irecv", "MPI_Testsome"};
    enum mpi_library library = (enum mpi_library)_i;

    for (int k = 0; k < 3 && is_there(library); k++) {
        fail_in(library, meets[k], "0", "meets");
        fail_in(library, exchanges[k], k == 2 ? "100" : "20", "exchanges");
    }
}
END_TEST

int main(int argc, char **argv)
{
    TCase *all = tcase_create("mpi errors");
    tcase_add_loop_test(all, a_call_that_fails_is_named, 0, LIBRARIES_RUN);
    return run_mpi(argc, argv, parts, sizeof parts / sizeof *parts, all);
}
