/* SPDX-License-Identifier: MIT */
/* The link over MPI itself (link.h). Compiled once for every MPI library that is there,
 * each time into a module with one symbol; the only source that sees mpi.h.
 *
 * The requests that are open lie together in one array, so that one MPI_Testsome looks at
 * all of them and makes the library's progress once. MPI is initialised with
 * MPI_THREAD_SERIALIZED: one thread at a time calls it, but not always the same one; or,
 * where there will be a link beside this one, with MPI_THREAD_MULTIPLE. It is finalised
 * when the process exits, so that jobs can follow one another, and only when
 * every link has gone down together: a process that failed just exits, and its launcher
 * then ends the others. */
#include "link/link.h"
#include "link/mpi.h"
#include "link/pmi.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROOM_FIRST = 64, HOST_ROOM = LINK_NAME_ROOM, FINALISE_S = 10 };
enum { LEAVE_S = 3600, SETTLE_TURNS = 100 };
enum { REST_LEAST_NS = 50000, REST_MOST_NS = 2000000 };

struct mpi_link {
    struct link link;           /* first */
    MPI_Comm comm;
    char (*hosts)[HOST_ROOM];
    int n, room;
    MPI_Request *requests;      /* n are open */
    void **ops;
    bool *receives;
    int *indices;
    MPI_Status *statuses;
    struct link_ended *ended;   /* (room_ended) of the last collect, until the next one */
    int room_ended;
    char why[MPI_MAX_ERROR_STRING + 64];
};

extern const struct link_type descant_link;

static _Atomic int links_up;    /* and not gone down together */
static _Atomic int links_open;  /* and not gone down */
static pid_t initialised_by;

/* A communicator that not all ranks have asked for yet. MPI writes to it once they have,
 * and cannot be stopped: the next link that goes up waits for it, and asks for none.
 * Guarded by `going_up`: under MPI_THREAD_MULTIPLE threads may open jobs at once. */
static pthread_mutex_t going_up = PTHREAD_MUTEX_INITIALIZER;
static MPI_Comm coming_comm;
static MPI_Request coming = MPI_REQUEST_NULL;

/* --- the process --- */

static void *give_up(void *status)
{
    sleep(FINALISE_S);
    fprintf(stderr,
            "descant: MPI_Finalize has not returned for %d s; all was done before it: "
            "exiting without it\n",
            FINALISE_S);
    _exit(*(int *)status);
}

static void progress(void)
{
    int flag;

    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

/* MPICH over UCX, and over TCP between hosts, waits in MPI_Finalize for messages that UCX
 * no longer moves (github.com/openucx/ucx/issues/8738): such a rank leaves by its
 * launcher alone. Where MPICH was configured with another PMI than its own, its protocol
 * with the launcher is not known. */
static bool leaves_by_launcher(void)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = sizeof library;

    MPI_Get_library_version(library, &length);
    return strstr(library, "ch4:ucx") && !strstr(library, "--with-pmi");
}

/* Some libraries' MPI_Finalize can wait for ever for processes that have gone. Every link
 * has gone down together before, so that nothing is lost by not waiting for it. */
static void finalise(int status, void *unused)
{
    pthread_t watch;
    int finalised = 0;

    (void)unused;
    MPI_Finalized(&finalised);
    if (finalised || links_up != 0 || coming != MPI_REQUEST_NULL ||
        getpid() != initialised_by)
        return;
    if (leaves_by_launcher() && pmi_leave(progress, LEAVE_S * 1000))
        return;
    if (pthread_create(&watch, NULL, give_up, &status) == 0)
        pthread_detach(watch);
    MPI_Finalize();
}

static const char *level_name(int level)
{
    switch (level) {
    case MPI_THREAD_SINGLE:
        return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
        return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
        return "MPI_THREAD_SERIALIZED";
    default:
        return "MPI_THREAD_MULTIPLE";
    }
}

/* UCX, which carries MPICH's messages, sends pieces of 8 KiB over TCP by default, and a
 * mean within a shadow's budget then takes half as long again. */
static void send_large_segments(void)
{
    setenv("UCX_TCP_TX_SEG_SIZE", "64k", 0);
    setenv("UCX_TCP_RX_SEG_SIZE", "64k", 0);
}

static bool initialise(struct link_entry *entry, const char **threads)
{
    int is_initialised = 0, is_finalised = 0, level = MPI_THREAD_SINGLE;

    MPI_Initialized(&is_initialised);
    MPI_Finalized(&is_finalised);
    if (is_finalised) {
        snprintf(entry->why, sizeof entry->why, "this program has finalised MPI");
        return false;
    }
    if (is_initialised) {
        MPI_Query_thread(&level);
    } else {
        send_large_segments();
        int wanted = entry->threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
        if (MPI_Init_thread(NULL, NULL, wanted, &level) != MPI_SUCCESS) {
            snprintf(entry->why, sizeof entry->why, "MPI_Init_thread has failed");
            return false;
        }
        initialised_by = getpid();
        /* Without these MPICH aborts when one of many requests fails in MPI_Testsome: it
         * asks these two communicators for the handler. A program that has MPI itself
         * chooses its own. */
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        on_exit(finalise, NULL);
    }
    atomic_store(&entry->entered, true);
    *threads = level_name(level);
    if (level == MPI_THREAD_MULTIPLE ||
        (level == MPI_THREAD_SERIALIZED && links_open == 0))
        return true;
    if (level == MPI_THREAD_SERIALIZED) {
        snprintf(entry->why, sizeof entry->why,
                 "this process has a job over MPI open: two at "
                 "once, or one and its tables with owners, call MPI from two threads, "
                 "for which the program must have called MPI_Init_thread with "
                 "MPI_THREAD_MULTIPLE, or have set options.owned");
        return false;
    }
    snprintf(entry->why, sizeof entry->why,
             "MPI runs with %s, and Descant calls it from a thread "
             "of its own: the program must call MPI_Init_thread with "
             "MPI_THREAD_MULTIPLE, or with "
             "MPI_THREAD_SERIALIZED if it calls no MPI itself while a job is open",
             *threads);
    return false;
}

/* --- errors --- */

static bool failed(struct mpi_link *link, const char *call, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    MPI_Error_string(error, text, &length);
    for (char *at = text; (at = strchr(at, '\n'));)    /* MPICH's stack of calls */
        *at = at[1] ? ';' : 0;
    snprintf(link->why, sizeof link->why, "%s: %s", call, text);
    return false;
}

static bool works(struct mpi_link *link, const char *call, int error)
{
    return error == MPI_SUCCESS || failed(link, call, error);
}

/* --- up --- */

static bool grow_array(void *array, size_t room, size_t size)
{
    void *old, *more;

    memcpy(&old, array, sizeof old);
    more = realloc(old, room * size);
    if (more)
        memcpy(array, &more, sizeof more);
    return more != NULL;
}

static bool grow(struct mpi_link *link)
{
    size_t room = link->room ? 2 * (size_t)link->room : ROOM_FIRST;

    if (!grow_array(&link->requests, room, sizeof *link->requests) ||
        !grow_array(&link->ops, room, sizeof *link->ops) ||
        !grow_array(&link->receives, room, sizeof *link->receives) ||
        !grow_array(&link->indices, room, sizeof *link->indices) ||
        !grow_array(&link->statuses, room, sizeof *link->statuses)) {
        snprintf(link->why, sizeof link->why, "no memory for %zu requests", room);
        return false;
    }
    link->room = (int)room;
    return true;
}

static void destroy(struct mpi_link *link)
{
    free(link->hosts);
    free(link->requests);
    free(link->ops);
    free(link->receives);
    free(link->indices);
    free(link->statuses);
    free(link->ended);
    free(link);
}

/* Copies the beginning of "Open MPI v4.1.4, package: ..." or "MPICH
 * Version:\t4.0.2\n...". */
static void name_version(const char *library, char *version, size_t room)
{
    const char *number = strstr(library, "Version:");

    if (number)
        number += strcspn(number, " \t") + strspn(number + strcspn(number, " \t"), " \t");
    snprintf(version, room, "%.*s%.*s",
             number ? (int)strcspn(library, " ") + 1 : (int)strcspn(library, "\n,"),
             library, number ? (int)strcspn(number, "\n") : 0, number ? number : "");
}

/* host_number: machines up to this one, from 1. */
static bool share_places(struct mpi_link *link, MPI_Comm local, struct link_place *place)
{
    int leads = place->local_rank == 0;

    return works(link, "MPI_Bcast", MPI_Bcast(&place->host, 1, MPI_INT, 0, local)) &&
           works(link, "MPI_Bcast",
                 MPI_Bcast(place->job, (int)sizeof place->job, MPI_CHAR, 0, local)) &&
           works(link, "MPI_Scan",
                 MPI_Scan(&leads, &place->host_number, 1, MPI_INT, MPI_SUM,
                          link->comm)) &&
           works(link, "MPI_Bcast",
                 MPI_Bcast(&place->host_number, 1, MPI_INT, 0, local)) &&
           works(link, "MPI_Allreduce",
                 MPI_Allreduce(&leads, &place->hosts, 1, MPI_INT, MPI_SUM,
                               link->comm)) &&
           works(link, "MPI_Allreduce",
                 MPI_Allreduce(&place->local_size, &place->most_local, 1, MPI_INT,
                               MPI_MAX, link->comm)) &&
           works(link, "MPI_Allgather",
                 MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, link->hosts,
                               HOST_ROOM, MPI_CHAR, link->comm));
}

/* Finds the ranks of this machine; the lowest of them names the job for all of them. */
static bool look_around(struct mpi_link *link, const char *threads,
                        struct link_place *place)
{
    MPI_Comm local;
    int length = 0;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", name[MPI_MAX_PROCESSOR_NAME] = "";
    struct timespec now = {0};

    MPI_Comm_rank(link->comm, &place->rank);
    MPI_Comm_size(link->comm, &place->size);
    if (!works(link, "MPI_Comm_split_type",
               MPI_Comm_split_type(link->comm, MPI_COMM_TYPE_SHARED, place->rank,
                                   MPI_INFO_NULL, &local)))
        return false;
    MPI_Comm_rank(local, &place->local_rank);
    MPI_Comm_size(local, &place->local_size);
    place->host = place->rank;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(place->job, sizeof place->job, "mpi-%ld-%llx", (long)getpid(),
             (unsigned long long)now.tv_sec * 1000000000u +
                 (unsigned long long)now.tv_nsec);
    MPI_Get_processor_name(name, &length);
    snprintf(link->hosts[place->rank], HOST_ROOM, "%.*s", HOST_ROOM - 1, name);
    if (!share_places(link, local, place))
        return false;
    place->host_number--;
    MPI_Comm_free(&local);
    MPI_Get_library_version(library, &length);
    place->names = (const char (*)[LINK_NAME_ROOM])link->hosts;
    place->generation = 1;
    place->fixed = true;
    name_version(library, place->version, sizeof place->version);
    snprintf(place->about, sizeof place->about, "%s, MPI initialised by %s", threads,
             initialised_by == getpid() ? "Descant" : "the program");
    return true;
}

static uint64_t now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A collective call, so it ends when all ranks have made it. MPI_Comm_dup would wait for
 * that in a loop that has no bound. */
static bool duplicate(struct mpi_link *link, struct link_entry *entry)
{
    uint64_t began = now_ns(), most = (uint64_t)(entry->start_s * 1e9);
    struct timespec rest = {.tv_nsec = REST_LEAST_NS};
    int error = MPI_SUCCESS, done = 0;

    if (coming == MPI_REQUEST_NULL)
        error = MPI_Comm_idup(MPI_COMM_WORLD, &coming_comm, &coming);
    while (error == MPI_SUCCESS && !done && !entry->timed_out) {
        entry->timed_out = now_ns() - began >= most;
        error = MPI_Test(&coming, &done, MPI_STATUS_IGNORE);
        if (!done && !entry->timed_out)
            nanosleep(&rest, NULL);
        rest.tv_nsec = 2 * rest.tv_nsec < REST_MOST_NS ? 2 * rest.tv_nsec : REST_MOST_NS;
    }
    entry->timed_out &= !done;
    link->comm = coming_comm;
    return works(link, "MPI_Comm_idup", error) && done;
}

static struct link *go_up(struct link_entry *entry, struct link_place *place)
{
    const char *threads = "";
    int size = 0;

    if (!initialise(entry, &threads))
        return NULL;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    place->size = size;
    struct mpi_link *link = calloc(1, sizeof *link);
    if (link)
        link->hosts = calloc((size_t)size, sizeof *link->hosts);
    if (!link || !link->hosts || !grow(link)) {
        snprintf(entry->why, sizeof entry->why, "no memory for a link of %d ranks", size);
        if (link)
            destroy(link);
        return NULL;
    }
    bool met = duplicate(link, entry);
    if (met) {
        links_up++;             /* a process that fails after this does not finalise */
        MPI_Comm_set_errhandler(link->comm, MPI_ERRORS_RETURN);
        met = look_around(link, threads, place);
    }
    if (!met) {
        snprintf(entry->why, sizeof entry->why, "%.250s", link->why);
        destroy(link);
        return NULL;
    }
    link->link.type = &descant_link;
    links_open++;
    return &link->link;
}

static struct link *meet(struct link_entry *entry, struct link_place *place)
{
    pthread_mutex_lock(&going_up);
    struct link *link = go_up(entry, place);
    pthread_mutex_unlock(&going_up);
    return link;
}

static struct link *beside(const struct link *link, struct link_entry *entry,
                           struct link_place *place)
{
    (void)link;
    return meet(entry, place);
}

static struct mpi_link *of(struct link *link)
{
    return (struct mpi_link *)(void *)link;
}

static const char *why_of(const struct link *link)
{
    return ((const struct mpi_link *)(const void *)link)->why;
}

/* --- messages --- */

static bool opened(struct mpi_link *link, void *op, bool receives)
{
    link->ops[link->n] = op;
    link->receives[link->n] = receives;
    link->n++;
    return true;
}

static bool send_to(struct link *base, const void *p, size_t bytes,
                    const struct link_message *message)
{
    struct mpi_link *link = of(base);

    if (link->n == link->room && !grow(link))
        return false;
    int error = MPI_Isend(p, (int)bytes, MPI_BYTE, message->rank, message->tag,
                          link->comm, &link->requests[link->n]);
    return works(link, "MPI_Isend", error) && opened(link, message->op, false);
}

static bool receive_from(struct link *base, void *p, size_t bytes,
                         const struct link_message *message)
{
    struct mpi_link *link = of(base);

    if (link->n == link->room && !grow(link))
        return false;
    int from = message->rank == LINK_ANY ? MPI_ANY_SOURCE : message->rank;
    int error = MPI_Irecv(p, (int)bytes, MPI_BYTE, from, message->tag, link->comm,
                          &link->requests[link->n]);
    return works(link, "MPI_Irecv", error) && opened(link, message->op, true);
}

static void close_up(struct mpi_link *link)
{
    int kept = 0;

    for (int i = 0; i < link->n; i++) {
        if (link->requests[i] == MPI_REQUEST_NULL)
            continue;
        link->requests[kept] = link->requests[i];
        link->ops[kept] = link->ops[i];
        link->receives[kept++] = link->receives[i];
    }
    link->n = kept;
}

/* A message that is longer than its receive ends as one, with that class of error. */
static bool test_some(struct mpi_link *link, int *n)
{
    *n = 0;
    int error = MPI_Testsome(link->n, link->requests, n, link->indices, link->statuses);
    bool each = error == MPI_ERR_IN_STATUS;

    if (each)
        error = MPI_SUCCESS;
    for (int i = 0; i < *n; i++) {
        int *one = &link->statuses[i].MPI_ERROR, sort = MPI_SUCCESS;
        if (each)
            MPI_Error_class(*one, &sort);
        if (sort != MPI_SUCCESS && sort != MPI_ERR_PENDING && sort != MPI_ERR_TRUNCATE)
            error = *one;
        *one = sort;
    }
    return works(link, "MPI_Testsome", error);
}

/* The list grows here, not in grow, for messages are sent while the list of the ended is
 * read. */
static bool grow_ended(struct mpi_link *link)
{
    if (link->room_ended < link->room &&
        !grow_array(&link->ended, (size_t)link->room, sizeof *link->ended)) {
        snprintf(link->why, sizeof link->why, "no memory for %d messages", link->room);
        return false;
    }
    link->room_ended = link->room;
    return true;
}

static bool collect(struct link *base, struct link_news *news)
{
    struct mpi_link *link = of(base);
    int n = 0;

    *news = (struct link_news){.now_ns = now_ns()};
    if (!grow_ended(link) || !test_some(link, &n))
        return false;
    if (n == MPI_UNDEFINED || n == 0)
        return true;
    for (int i = 0; i < n; i++) {
        int k = link->indices[i], bytes = 0;
        link->ended[i] = (struct link_ended){.op = link->ops[k]};
        if (!link->receives[k])
            continue;
        MPI_Get_count(&link->statuses[i], MPI_BYTE, &bytes);
        link->ended[i].from = link->statuses[i].MPI_SOURCE;
        link->ended[i].bytes = link->statuses[i].MPI_ERROR == MPI_ERR_TRUNCATE
                                   ? LINK_TOO_LONG
                                   : (size_t)bytes;
    }
    close_up(link);
    news->ended = link->ended;
    news->n_ended = n;
    return true;
}

/* MPI neither reports a death nor gives up a send. */
static bool forget(struct link *base, int rank, uint64_t below)
{
    struct mpi_link *link = of(base);

    (void)below;
    snprintf(link->why, sizeof link->why, "MPI cannot go on without rank %d", rank);
    return false;
}

/* Nothing wakes a sleeper: MPI's own waits burn a core. */
static void sleep_for(struct link *link, uint64_t most_ns, uint64_t until_ns)
{
    uint64_t now = now_ns();

    (void)link;
    if (until_ns && until_ns <= now)
        return;
    if (until_ns && until_ns - now < most_ns)
        most_ns = until_ns - now;
    struct timespec rest = {.tv_sec = (time_t)(most_ns / 1000000000u),
                            .tv_nsec = (long)(most_ns % 1000000000u)};
    nanosleep(&rest, NULL);
}

/* A receive for which nothing was sent ends by being cancelled; a receive that has begun,
 * and a send, need the other rank, which may be gone. */
static void settle(struct mpi_link *link)
{
    int n;

    for (int turn = 0; turn < SETTLE_TURNS && link->n > 0 && test_some(link, &n); turn++)
        close_up(link);
}

static bool close_link(struct link *base, bool together)
{
    struct mpi_link *link = of(base);

    for (int i = 0; i < link->n; i++)
        if (link->receives[i])
            MPI_Cancel(&link->requests[i]);
    int error = MPI_SUCCESS;
    if (together)
        error = MPI_Waitall(link->n, link->requests, link->statuses);
    else
        settle(link);
    bool quiet = together ? error == MPI_SUCCESS || error == MPI_ERR_IN_STATUS
                          : link->n == 0;
    links_open--;
    if (together) {
        MPI_Comm_free(&link->comm);
        links_up--;
    }
    if (quiet)
        destroy(link);
    return quiet;
}

__attribute__((visibility("default"))) const struct link_type descant_link = {
    .version = LINK_VERSION,
#ifdef OPEN_MPI
    .name = "Open MPI",
#else
    .name = "MPICH",
#endif
    .meet = meet,
    .beside = beside,
    .send = send_to,
    .receive = receive_from,
    .collect = collect,
    .sleep = sleep_for,
    .forget = forget,
    .why = why_of,
    .close = close_link,
};
