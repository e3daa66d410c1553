/* SPDX-License-Identifier: MIT */
/* The job that a process belongs to, of what its caller and its launcher say. */
#include "harness/suite.h"
#include "sync/launcher.h"

extern char **environ;

static const struct log quiet;

/* Only what "NAME=value NAME=value" sets. */
static void set_environment(const char *text)
{
    char copy[1024];
    ck_assert_int_eq(clearenv(), 0);
    setenv("DESCANT_MPI_MODULE", "/nowhere", 1);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        ck_assert_ptr_nonnull(equals);
        *equals = 0;
        ck_assert_int_eq(setenv(word, equals + 1, 1), 0);
    }
}

#define TORCHRUN "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_PORT=29500 "
#define SRUN                                                                             \
    "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_JOB_ID=4711 SLURM_STEP_ID=0 "                   \
    "SLURM_JOB_NODELIST=big[1-9] "

static const struct {
    const char *environment, *given, *address, *why;
    int rank, size;
} jobs[] = {
    {"", NULL, "self", "no launcher", -1, 0},
    {"", "shm:x", "shm:x", "given", -1, 0},
    {"DESCANT_JOB=shm:y", NULL, "shm:y", "from DESCANT_JOB", -1, 0},
    {"DESCANT_JOB=shm:y", "shm:x", "shm:x", "given", -1, 0},
    {"DESCANT_JOB=", NULL, "self", "no launcher", -1, 0},
    {"DESCANT_JOB=tcp:a:7000,ranks=8 RANK=3 WORLD_SIZE=8", NULL, "tcp:a:7000,ranks=8",
     "from DESCANT_JOB", 3, 8},
    {"DESCANT_JOB=tcp:a:7000 " TORCHRUN "MASTER_ADDR=b", NULL, "tcp:a:7000",
     "from DESCANT_JOB", 5, 8},
    /* what MPI says counts, not variables */
    {"DESCANT_JOB=mpi RANK=3 WORLD_SIZE=8", NULL, "mpi", "from DESCANT_JOB", -1, 0},
    /* torchrun */
    {TORCHRUN "MASTER_ADDR=head", NULL, "tcp:head:29501,ranks=8", "from MASTER_ADDR", 5, 8},
    {TORCHRUN "MASTER_ADDR=fe80::1", NULL, "tcp:[fe80::1]:29501,ranks=8",
     "from MASTER_ADDR", 5, 8},
    {TORCHRUN "MASTER_ADDR=head DESCANT_TCP=secret=/home/me/s", NULL,
     "tcp:head:29501,ranks=8,secret=/home/me/s", "from MASTER_ADDR", 5, 8},
    {"RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=head MASTER_PORT=1", NULL,
     "shm:run-", "from WORLD_SIZE", 1, 4},
    {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=head MASTER_PORT=1", NULL, "shm:run-",
     "from WORLD_SIZE", 1, 4},
    {"RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=head MASTER_PORT=1", NULL, "self",
     "no launcher", 0, 1},
    /* Slurm */
    {SRUN "SLURM_STEP_NODELIST=n[07-08]", NULL, "tcp:n07:", "from Slurm's list of hosts", 2,
     4},
    {SRUN, NULL, "tcp:big1:", "from Slurm's list of hosts", 2, 4},
    {SRUN "SLURM_STEP_NODELIST=n07", NULL, "shm:run-", "from SLURM_NTASKS", 2, 4},
    {SRUN "SLURM_STEP_NODELIST=n[07-", NULL, "shm:run-", "from SLURM_NTASKS", 2, 4},
    /* PMI, and no module that could use it */
    {SRUN "SLURM_STEP_NODELIST=n[7-8] PMI_RANK=2 PMI_SIZE=4", NULL, "tcp:n7:",
     "from Slurm's list of hosts", 2, 4},
    /* the batch script is no step, and mpirun has ways of its own */
    {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=n[7-8]", NULL,
     "shm:run-", "from SLURM_NTASKS", 0, 4},
    {SRUN "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=x", NULL, "shm:run-",
     "from OMPI_COMM_WORLD_SIZE", 1, 4},
};

START_TEST(a_job)
{
    struct descant_options o = descant_options_default();
    struct launcher l;
    o.job = jobs[_i].given;
    set_environment(jobs[_i].environment);
    ck_assert_msg(launcher_read(&l, &o, &quiet) == DESCANT_OK, "%s", descant_last_error());
    size_t n = strlen(jobs[_i].address);
    bool whole = jobs[_i].address[n - 1] != ':' && jobs[_i].address[n - 1] != '-';
    ck_assert_msg(strncmp(l.address, jobs[_i].address, n + whole) == 0, "%s: %s",
                  jobs[_i].environment, l.address);
    ck_assert_str_eq(l.why, jobs[_i].why);
    ck_assert_int_eq(l.rank, jobs[_i].rank);
    ck_assert_int_eq(l.size, jobs[_i].size);
}
END_TEST

static const struct {
    const char *environment, *says;
    descant_status status;
} refused[] = {
    {TORCHRUN, "ranks are on several hosts: set MASTER_ADDR and MASTER_PORT",
     DESCANT_BAD_ADDRESS},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=x",
     "the variable MASTER_PORT x: allowed is", DESCANT_BAD_ADDRESS},
    {"RANK=8 WORLD_SIZE=8 DESCANT_JOB=shm:x", "rank 8 of 8 trainers", DESCANT_BAD_RANK},
};

START_TEST(what_is_refused)
{
    const struct descant_options o = descant_options_default();
    struct launcher l;
    set_environment(refused[_i].environment);
    ck_assert_int_eq(launcher_read(&l, &o, &quiet), refused[_i].status);
    ck_assert_msg(strstr(descant_last_error(), refused[_i].says) != NULL, "%s",
                  descant_last_error());
}
END_TEST

START_TEST(an_address_that_is_too_long)
{
    struct descant_options o = descant_options_default();
    struct launcher l;
    char text[2 * LAUNCHER_ADDRESS];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    set_environment("");
    o.job = text;
    ck_assert_int_eq(launcher_read(&l, &o, &quiet), DESCANT_BAD_ADDRESS);
    o.job = NULL;
    set_environment(TORCHRUN "MASTER_ADDR=head");
    setenv("DESCANT_TCP", text, 1);
    ck_assert_int_eq(launcher_read(&l, &o, &quiet), DESCANT_BAD_ADDRESS);
}
END_TEST

static int port_of(const char *environment)
{
    const struct descant_options o = descant_options_default();
    struct launcher l;
    set_environment(environment);
    ck_assert_int_eq(launcher_read(&l, &o, &quiet), DESCANT_OK);
    ck_assert(l.numbered);
    return atoi(strrchr(l.address, ':') + 1);
}

/* All ranks of a step have one, other steps and jobs others, and a process's next job the
 * next one. */
START_TEST(ports_are_a_steps_own)
{
    enum { STEPS = 50 };
    char text[256];
    int ports[STEPS], same = 0;
    for (int k = 0; k < STEPS; k++) {
        snprintf(text, sizeof text,
                 "SLURM_PROCID=%02d SLURM_NTASKS=100 SLURM_JOB_ID=%d SLURM_STEP_ID=%d "
                 "SLURM_STEP_NODELIST=a,b", k, 1000 + k / 10, k % 10);
        ports[k] = port_of(text);
        ck_assert_int_ge(ports[k], 20000);
        ck_assert_int_lt(ports[k], 32000);
        for (int i = 0; i < k; i++)
            same += ports[i] == ports[k];
        memcpy(strstr(text, "PROCID=") + 7, "7", 1);
        ck_assert_int_eq(port_of(text), ports[k]);
    }
    ck_assert_int_le(same, 2);
    launcher_started();
    ck_assert_int_eq(port_of(text), ports[STEPS - 1] + 1);
    ck_assert_int_eq(port_of(TORCHRUN "MASTER_ADDR=head"), 29502);
}
END_TEST

START_TEST(may_be_mpi)
{
    set_environment("");
    ck_assert(launcher_may_be_mpi(NULL) && launcher_may_be_mpi("mpi:messages"));
    ck_assert(!launcher_may_be_mpi("tcp:a:1") && !launcher_may_be_mpi("mpis"));
    set_environment("DESCANT_JOB=tcp:a:1");
    ck_assert(!launcher_may_be_mpi(NULL) && launcher_may_be_mpi("mpi"));
    set_environment("DESCANT_JOB=mpi");
    ck_assert(launcher_may_be_mpi(NULL) && !launcher_may_be_mpi("shm:x"));
}
END_TEST

int main(void)
{
    TCase *all = new_case("launcher", 60);
    tcase_add_loop_test(all, a_job, 0, N(jobs));
    tcase_add_loop_test(all, what_is_refused, 0, N(refused));
    tcase_add_test(all, an_address_that_is_too_long);
    tcase_add_test(all, ports_are_a_steps_own);
    tcase_add_test(all, may_be_mpi);
    return run_cases(all, NULL);
}
