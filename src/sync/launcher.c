/* SPDX-License-Identifier: MIT */
/* Launchers tell a process its rank by variables: torchrun RANK, WORLD_SIZE and a
 * rendezvous; Open MPI OMPI_COMM_WORLD_*; MPICH PMI_*; Slurm SLURM_*. The caller's values
 * win. Without an address, ranks of an MPI job meet over MPI, if its module is there;
 * other trainers on one machine under a name made from the rendezvous and the number of
 * jobs that the process has started under the launcher, which is the same in all
 * trainers: a trainer that attaches again must not meet a job whose last trainer is still
 * closing it. Jobs that did not start are not counted, as others may not have seen them.
 * A process without a launcher is a job of its own. Over MPI, rank and size come from
 * MPI. */
#include "sync/launcher.h"

#include "link/mpi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "SLURM_PROCID"};
static const char *const size_names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_NTASKS"};
enum { N_LAUNCHERS = sizeof rank_names / sizeof *rank_names };

static _Atomic unsigned n_started;      /* any thread; relaxed, it orders nothing else */

void launcher_started(void)
{
    atomic_fetch_add_explicit(&n_started, 1, memory_order_relaxed);
}

static descant_status number(const char *name, int low, int *out, const struct log *log,
                             descant_status wrong)
{
    const struct option variable = {name, OPTION_INT, 0, low, INT_MAX, NULL, NULL};
    char message[256];
    int64_t value;
    if (!option_parse(&variable, getenv(name), &value, message, sizeof message))
        return log_fail(log, wrong, "the variable %s", message);
    *out = (int)value;
    return DESCANT_OK;
}

/* An MPI launcher's rank. torchrun inside of the launcher counts instead. */
static bool is_mpi_rank(int found)
{
    return found > 0 && mpi_module_launcher() != MPI_LAUNCHER_NONE;
}

/* A process that knows its rank and not the size, or the reverse, would train alone.
 * Slurm sets its number of tasks in shells, too. */
static descant_status check_whole(const struct log *log)
{
    const char *rank = getenv(rank_names[0]), *size = getenv(size_names[0]);
    if ((rank == NULL) == (size == NULL) || (size != NULL && strcmp(size, "1") == 0))
        return DESCANT_OK;
    return log_fail(log, rank ? DESCANT_BAD_SIZE : DESCANT_BAD_RANK,
                    "the variable %s is set, but not %s: a launcher sets both",
                    rank ? rank_names[0] : size_names[0],
                    rank ? size_names[0] : rank_names[0]);
}

/* Writes a name that all trainers under this launcher share and no other job has; false
 * where no variable tells this run from another. MASTER_ADDR alone does not, for it is
 * the same in all runs of this machine. */
static bool rendezvous(char *name, size_t room)
{
    static const char *const sources[] = {"MASTER_ADDR",    "TORCHELASTIC_RUN_ID",
                                          "MASTER_PORT",    "OMPI_MCA_ess_base_jobid",
                                          "PMIX_NAMESPACE", "PMI_JOBID",
                                          "SLURM_JOB_ID",   "SLURM_STEP_ID"};
    uint64_t hash = FNV_BEGIN;
    bool told = false;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const char *value = getenv(sources[i]);
        told |= i > 0 && value != NULL && *value != '\0';
        hash = fnv_add(hash, value, value ? strlen(value) : 0);
        hash = fnv_add(hash, "\xff", 1);
    }
    unsigned n = atomic_load_explicit(&n_started, memory_order_relaxed);
    snprintf(name, room, "shm:run-%016llx-%u", (unsigned long long)hash, n);
    return told;
}

/* Trainers meet in the memory of one host, by a name of this run's own. Ranks of MPI come
 * here because there is no module; one of them logs that, since no call fails if they are
 * on several hosts. */
static descant_status meet_here(struct launcher *l, int found, const struct log *log)
{
    char missing[LOG_LINE] = "";
    bool named = rendezvous(l->address, sizeof l->address);

    if (is_mpi_rank(found))
        mpi_module_missing(missing, sizeof missing);
    if (!named && *missing)
        return log_fail(log, DESCANT_UNSUPPORTED, "%d ranks of an MPI launcher: %s",
                        l->size, missing);
    if (!named)
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "%d trainers, and nothing tells this run from another one: set "
                        "the variable MASTER_PORT, or give an address",
                        l->size);
    if (*missing && l->rank == 0)
        log_say(log, DESCANT_WARNING,
                "%d ranks of an MPI launcher can meet on one host only: %s", l->size,
                missing);
    l->numbered = true;
    snprintf(l->why, sizeof l->why, "from %s", found >= 0 ? size_names[found] : "size");
    return DESCANT_OK;
}

bool launcher_may_be_mpi(const char *job)
{
    size_t n = strlen(fabric_mpi.name);
    return job == NULL || (strncmp(job, fabric_mpi.name, n) == 0 &&
                           (job[n] == '\0' || job[n] == ':'));
}

/* Ranks may come to a job over TCP that it does not begin with. */
static bool takes_more(const char *job)
{
    size_t n = strlen(fabric_tcp.name);
    return job && strncmp(job, fabric_tcp.name, n) == 0 && job[n] == ':';
}

descant_status launcher_read(struct launcher *l, const struct descant_options *o,
                             const struct log *log)
{
    *l = (struct launcher){.rank = o->rank, .size = o->size};
    bool names_mpi = o->job != NULL && launcher_may_be_mpi(o->job);
    char module[PATH_MAX];
    int found = -1;
    for (int i = 0; i < N_LAUNCHERS && found < 0 && !names_mpi; i++)
        if (getenv(rank_names[i]) != NULL && getenv(size_names[i]) != NULL)
            found = i;
    bool told = found >= 0 || o->size > 0 || o->rank >= 0 || names_mpi;
    descant_status status = told ? DESCANT_OK : check_whole(log);
    if (found >= 0 && o->size == 0)
        status = number(size_names[found], 1, &l->size, log, DESCANT_BAD_SIZE);
    if (status == DESCANT_OK && found >= 0 && o->rank < 0)
        status = number(rank_names[found], 0, &l->rank, log, DESCANT_BAD_RANK);
    if (status != DESCANT_OK)
        return status;
    if (l->size > 0 && l->rank >= l->size && !takes_more(o->job))
        return log_fail(log, DESCANT_BAD_RANK, "rank %d of %d trainers: the last is %d",
                        l->rank, l->size, l->size - 1);
    if (o->job != NULL) {
        if (strlen(o->job) >= sizeof l->address)
            return log_fail(log, DESCANT_BAD_ADDRESS,
                            "the job address is over %zu characters",
                            sizeof l->address - 1);
        strcpy(l->address, o->job);
        strcpy(l->why, "given");
    } else if (l->size > 1 && is_mpi_rank(found) &&
               mpi_module_find(mpi_module_wanted(), module, sizeof module)) {
        strcpy(l->address, fabric_mpi.address);
        snprintf(l->why, sizeof l->why, "from %s", size_names[found]);
    } else if (l->size > 1) {
        return meet_here(l, found, log);
    } else {
        strcpy(l->address, "self");
        strcpy(l->why, "no launcher");
    }
    return DESCANT_OK;
}

const struct fabric_type *const fabric_types[] = {&fabric_self, &fabric_shm, &fabric_mpi,
                                                  &fabric_tcp, NULL};
const struct fabric_type *const fabric_of_host = &fabric_shm;

descant_status launcher_fabric(const struct launcher *l, const struct fabric_type **type,
                               const char **rest, const struct log *log)
{
    for (int i = 0; fabric_types[i] != NULL; i++) {
        size_t length = strlen(fabric_types[i]->name);
        if (strncmp(l->address, fabric_types[i]->name, length) != 0)
            continue;
        char after = l->address[length];
        if (after != '\0' && after != ':')
            continue;
        *type = fabric_types[i];
        *rest = after ? l->address + length + 1 : l->address + length;
        return DESCANT_OK;
    }
    return log_fail(
        log, DESCANT_BAD_ADDRESS,
        "'%s' is no job address; there are: self, shm:NAME[,rate=1gbit][,rtt=1ms], mpi, "
        "tcp:HOST:PORT",
        l->address);
}
