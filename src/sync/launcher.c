/* SPDX-License-Identifier: MIT */
/* Launchers tell a process its rank by variables: torchrun RANK, WORLD_SIZE and a
 * rendezvous; Open MPI OMPI_COMM_WORLD_*; MPICH PMI_*; Slurm SLURM_*. The caller's values
 * win, then DESCANT_JOB. Without an address
 *
 * 1. ranks of an MPI job meet over MPI, if its module is there. Rank and size come from
 *    MPI;
 * 2. ranks of several hosts, where torchrun or Slurm says that there are several, meet
 *    over TCP at the host of rank 0. torchrun's own port is taken, so the port is one of
 *    those above it; under Slurm it is made from the numbers of the job and of the step.
 *    DESCANT_TCP has the rest of the address, as secret=FILE;
 * 3. other trainers meet on one machine under a name made from the rendezvous;
 * 4. a process without a launcher is a job of its own.
 *
 * The names and ports of 2 and 3 count the jobs that the process has started under the
 * launcher. The count is the same in all trainers: a trainer that attaches again must not
 * meet a job whose last trainer is still closing it. Jobs that did not start are not
 * counted, as others may not have seen them. */
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

static uint64_t hash_variable(uint64_t hash, const char *name)
{
    const char *value = getenv(name);
    hash = fnv_add(hash, value, value ? strlen(value) : 0);
    return fnv_add(hash, "\xff", 1);
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0';
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
        told |= i > 0 && is_set(sources[i]);
        hash = hash_variable(hash, sources[i]);
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

/* --- between hosts, without MPI --- */

enum { PORTS_FROM = 20000, PORTS = 12000 };     /* below those that kernels give away */

/* Of the host and the port of rank 0, an address. A port for each job of this process. */
static descant_status meet_at(struct launcher *l, const char *host, int port,
                              const char *from, const struct log *log)
{
    const char *rest = getenv("DESCANT_TCP");
    bool v6 = strchr(host, ':') != NULL;
    unsigned nth = atomic_load_explicit(&n_started, memory_order_relaxed);
    int n = snprintf(l->address, sizeof l->address, "%s:%s%s%s:%u,ranks=%d%s%s",
                     fabric_tcp.name, v6 ? "[" : "", host, v6 ? "]" : "",
                     (unsigned)port + nth, l->size, rest && *rest ? "," : "",
                     rest ? rest : "");
    if (n < 0 || (size_t)n >= sizeof l->address)
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "%s and DESCANT_TCP make an address of over %zu characters", from,
                        sizeof l->address - 1);
    l->numbered = true;
    snprintf(l->why, sizeof l->why, "from %s", from);
    return DESCANT_OK;
}

/* torchrun, which sets all of these, on several hosts. */
static bool torchrun_has_hosts(int found, int size)
{
    const char *local = getenv("LOCAL_WORLD_SIZE");
    return found == 0 && local != NULL && atoi(local) > 0 && atoi(local) < size;
}

static descant_status meet_by_torchrun(struct launcher *l, const struct log *log)
{
    const char *host = getenv("MASTER_ADDR");
    int port;
    if (!is_set("MASTER_ADDR") || !is_set("MASTER_PORT"))
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "LOCAL_WORLD_SIZE is below WORLD_SIZE, so ranks are on several "
                        "hosts: set MASTER_ADDR and MASTER_PORT to where rank 0 is, or "
                        "DESCANT_JOB to tcp:HOST:PORT");
    descant_status status = number("MASTER_PORT", 1, &port, log, DESCANT_BAD_ADDRESS);
    return status ? status : meet_at(l, host, port + 1, "MASTER_ADDR", log);
}

/* A step's list, or its job's. NULL: srun has not started this process, or a launcher of
 * MPI inside of the step has. */
static const char *slurm_hosts(void)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST"};
    if (!is_set("SLURM_STEP_ID") || is_set("OMPI_COMM_WORLD_SIZE") ||
        is_set("HYDI_CONTROL_FD"))
        return NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (is_set(lists[i]))
            return getenv(lists[i]);
    return NULL;
}

static bool slurm_has_hosts(int found)
{
    char host[LAUNCHER_ADDRESS];
    const char *list = found > 0 ? slurm_hosts() : NULL;
    return list && hostlist_host(list, 1, host, sizeof host) == HOSTLIST_HOST;
}

static descant_status meet_by_slurm(struct launcher *l, const struct log *log)
{
    static const char *const numbers[] = {"SLURM_JOB_ID", "SLURM_STEP_ID"};
    char host[LAUNCHER_ADDRESS];
    uint64_t hash = FNV_BEGIN;
    hostlist_host(slurm_hosts(), 0, host, sizeof host);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        hash = hash_variable(hash, numbers[i]);
    return meet_at(l, host, PORTS_FROM + (int)(hash % PORTS), "Slurm's list of hosts",
                   log);
}

/* --- the address --- */

const char *launcher_job(const char *given)
{
    return given ? given : is_set("DESCANT_JOB") ? getenv("DESCANT_JOB") : NULL;
}

bool launcher_may_be_mpi(const char *given)
{
    const char *job = launcher_job(given);
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

static descant_status take_job(struct launcher *l, const char *job, const char *why,
                               const struct log *log)
{
    if (strlen(job) >= sizeof l->address)
        return log_fail(log, DESCANT_BAD_ADDRESS,
                        "the job address is over %zu characters", sizeof l->address - 1);
    strcpy(l->address, job);
    strcpy(l->why, why);
    return DESCANT_OK;
}

descant_status launcher_read(struct launcher *l, const struct descant_options *o,
                             const struct log *log)
{
    *l = (struct launcher){.rank = o->rank, .size = o->size};
    const char *job = launcher_job(o->job);
    bool names_mpi = job != NULL && launcher_may_be_mpi(job);
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
    if (l->size > 0 && l->rank >= l->size && !takes_more(job))
        return log_fail(log, DESCANT_BAD_RANK, "rank %d of %d trainers: the last is %d",
                        l->rank, l->size, l->size - 1);
    if (job != NULL)
        return take_job(l, job, o->job ? "given" : "from DESCANT_JOB", log);
    if (l->size <= 1)
        return take_job(l, fabric_self.address, "no launcher", log);
    if (torchrun_has_hosts(found, l->size))
        return meet_by_torchrun(l, log);
    if (is_mpi_rank(found) &&
        mpi_module_find(mpi_module_wanted(), module, sizeof module)) {
        status = take_job(l, fabric_mpi.address, "", log);
        snprintf(l->why, sizeof l->why, "from %s", size_names[found]);
        return status;
    }
    return slurm_has_hosts(found) ? meet_by_slurm(l, log) : meet_here(l, found, log);
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
