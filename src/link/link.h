/* SPDX-License-Identifier: MIT */
/* How messages travel between the ranks of a job: one const table of functions. The
 * protocol in src/ranks/ decides which messages are sent. It knows no link by name, and
 * has its time from here, so that the same protocol runs over MPI and in virtual time.
 *
 * 1. Threads. All functions but sleep are called by one thread at a time; sleep may run
 *    beside them. A process may have several links open, each with a thread of its own.
 * 2. Peers. A peer is (rank, generation). A process that meets again has another
 *    generation. At one end a rank has one generation at a time, so a rank alone names a
 *    peer: another generation comes only after the one before it has been forgotten, and
 *    a generation that was forgotten never comes again.
 * 3. Order. A stream is the messages from one rank to another with one tag and one
 *    series. They arrive in the order in which they were sent, and only at receives of
 *    that series. Messages of other streams may overtake them, and no stream ever waits
 *    for another one: each goes on as long as its receiver opens receives.
 * 4. Memory. The bytes that a message carries stay where they are, unchanged, until the
 *    message has ended.
 * 5. Words. A message of at most LINK_WORD bytes, or of none, leaves at once, and ends
 *    for its sender when the link has a copy. A link has room for LINK_WORDS copies of
 *    each stream. A word for which there is no room stays with its sender until its
 *    receiver has taken one. So a receiver can always read all that has come, and one
 *    ordered connection to each peer is enough.
 * 6. Bulk. A longer message, of INT_MAX bytes at most, leaves only when its receiver has
 *    room for it: an open receive from its sender, or one from LINK_ANY, which the
 *    receiver gives to one message at a time. So bulk is read straight into its receive,
 *    and words go past bulk that waits. MPI copies short bulk, as if it were words.
 * 7. Receives. Receives of one tag are either all from named ranks, and end in the order
 *    in which they were opened (over MPI they are only filled in it), or all from
 *    LINK_ANY, of series 0. A message that is longer than its receive ends it with
 *    LINK_TOO_LONG for its length, and nothing is written beyond the receive. Open MPI 4.1 breaks this: bulk that it moves without
 *    copies is written as a whole, so over it ranks trust each other's lengths.
 * 8. Coming and going. Where the link is `fixed`, all ranks are there from the start, and
 *    a death ends the job. Else no peer is there until collect tells of its coming. The
 *    link tells that a peer is gone once it knows one of these: the process has died; it
 *    has closed its link; it has forgotten this end; it has broken the link's own
 *    protocol; or another generation of its rank has come. A peer that is only silent is
 *    not gone, and the link tells nothing of it: the layer above sends words and finds it
 *    silent. src/ranks/ forgets no peer for its silence, as the peer may be paused: open
 *    messages stay open, however long, and go on when the peer does. So the link does not
 *    tell of a connection that breaks while both processes live, but mends it.
 * 9. Forgetting. Messages with a peer that is gone stay open until it is forgotten, and
 *    receives still take what had left before. Of a peer that closes, each word that had
 *    ended for it still comes, and only then is the peer told as gone. forget gives all
 *    messages with the peer back as failed, and from then on the link touches none of
 *    their bytes. The memory of a failed receive may have been written to in part.
 *    Receives from LINK_ANY stay open, also for messages that have waited for one. The
 *    two ends meet again only when one of them has closed its link and met anew.
 * 10. Series. Work that may be given up, as a round of exchanges, has a series that is
 *    higher than those before. A rank may forget all below a series: its own messages of
 *    lower series end as failed, as in 9, and those of its peers are thrown away when
 *    they come. Series 0 is never given up: only forgetting the peer ends its messages. A
 *    fixed link gives nothing up, so there all series may be one. */
#ifndef LINK_H
#define LINK_H

#include "descant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_TOO_LONG SIZE_MAX
#define LINK_PEER UINT64_MAX        /* every series, and the peer itself */
#define LINK_LAZY_NS UINT64_C(10000000)

enum { LINK_VERSION = 14, LINK_ANY = -1, LINK_NAME_ROOM = 64 };
enum { LINK_WORD = 1024, LINK_WORDS = 16 };
enum { LINK_TAGS = 64 };            /* tags are below it, from 0 on */

struct log;
struct link_type;

/* The head of every link's own struct. */
struct link {
    const struct link_type *type;
};

/* How a rank is to meet the others. */
struct link_entry {
    void *context;                  /* simulated: its world */
    int rank;                       /* of this process; -1: the launcher's, or any */
    double start_s;                 /* the longest wait for the others */
    bool joins;                     /* a rank -1 does not become 0 */
    bool hub;                       /* this process is the star's hub */
    bool threads;                   /* beside will be called: several threads use links */
    bool lazy;                      /* a sender may hear that its bulk has come with the
                                       next message from there, or after LINK_LAZY_NS at a
                                       collect there: fewer wakeups, if the link can */
    double rate;                    /* bytes a second to each peer at most, if the link
                                       can; 0: no limit */
    const struct log *log;
    descant_status status;          /* set and logged by a meet that returns NULL */
    /* between mpi.c and its module: */
    _Atomic bool entered;           /* MPI_Init has returned */
    bool timed_out;                 /* meet has failed since some ranks have not come; */
    char why[256];                  /* else the reason of the failure */
};

struct link_place {
    int rank, size;                 /* size: the most ranks that there can be */
    uint64_t generation;            /* of this rank; not 0 */
    bool fixed;                     /* no rank comes later, and a death ends the job */
    bool star;                      /* the last rank is a hub: it alone is near, and the
                                       others reach each other through it */
    bool wakes;                     /* a sleep ends at the latest when there is news */
    int host;                       /* the lowest rank of this machine */
    int local_rank, local_size;     /* among those of this machine */
    int hosts, host_number;         /* the number of machines; this one's, from 0 */
    int most_local;                 /* ranks on the machine that has the most */
    /* The name of each rank's machine, or its address, as meet knows it: read by any
     * thread, and unchanged until close. */
    const char (*names)[LINK_NAME_ROOM];
    char job[64];                   /* a name that no other job's ranks here have */
    char version[128];              /* of the library or system that carries messages, */
    char about[96];                 /* and a remark on it */
    const char *unbind;             /* advice how ranks run on all cores; NULL: they do */
};

struct link_message {
    int rank;                       /* the other rank; a receive: or LINK_ANY */
    int tag;
    uint64_t series;
    void *op;                       /* handed back when the message has ended */
};

struct link_ended {
    void *op;                       /* as it was given to send or receive */
    int from;                       /* receive: its sender */
    size_t bytes;                   /* receive: its length, or LINK_TOO_LONG */
    bool failed;                    /* its peer is not there, or was forgotten */
};

struct link_peer {
    int rank;
    uint64_t generation;
    bool gone;                      /* else it has come */
    const char *host;               /* the name of its host, where that was not known at
                                       the meeting; else NULL */
};

/* Events since the last collect. Both lists are the link's, until the next collect. A
 * peer that has come did so before the first of its messages ended. now_ns is set even
 * where collect returns false. */
struct link_news {
    uint64_t now_ns;                /* never 0 */
    const struct link_ended *ended;
    int n_ended;
    const struct link_peer *peers;
    int n_peers;
};

struct link_type {
    int version;                    /* LINK_VERSION */
    const char *name;               /* of the library or system that carries messages */

    /* Meets the job. A fixed link waits for all ranks, asleep. Another one waits until it
     * knows this rank and the job's size, for which it may have to hear one peer that is
     * known to be there; collect tells of peers. NULL: it has failed. A rank for which
     * the others came too late may call meet again, and meets those that have come
     * meanwhile. */
    struct link *(*meet)(struct link_entry *entry, struct link_place *place);

    /* Meets the same ranks by another link, which another thread may use; entry has no
     * context. NULL in the table: there is none beside this one. */
    struct link *(*beside)(const struct link *link, struct link_entry *entry,
                           struct link_place *place);

    /* Begin to send to, or to receive from, another rank, and return. A receive takes at
     * most `bytes`, from a rank or from LINK_ANY. If the peer is not there, the message
     * ends as failed. False: the link has failed. */
    bool (*send)(struct link *link, const void *p, size_t bytes,
                 const struct link_message *message);
    bool (*receive)(struct link *link, void *p, size_t bytes,
                    const struct link_message *message);

    /* Lets the messages move, without blocking, and tells what has happened and the time.
     * All that has come is read, so that a sleep ends only for something new. False: the
     * link has failed. */
    bool (*collect)(struct link *link, struct link_news *news);

    /* Sleeps for most_ns at most, and not beyond until_ns (0: no bound). Where the link
     * `wakes`, the sleep ends at the latest when collect would have news; it may end
     * sooner, as when a message can move on. */
    void (*sleep)(struct link *link, uint64_t most_ns, uint64_t until_ns);

    /* Ends the sleep, or else the next one; for any thread. NULL where the link does not
     * wake. */
    void (*wake)(struct link *link);

    /* Ends messages with this peer, or, for LINK_ANY, with all peers: those below a
     * series (10), or, for LINK_PEER, all messages with one peer (9). It may be called
     * whether the peer is there, has gone or never came. False: the link is fixed and
     * cannot let go of its peer's messages, which may still be read and written; the job
     * is to end. */
    bool (*forget)(struct link *link, int rank, uint64_t below);

    /* The reason why a function has returned false. */
    const char *(*why)(const struct link *link);

    /* Gives up all messages that are open. A link that still has copies of words to write
     * writes them first, for a bounded time (9). together: all ranks call close now; else
     * the state that ranks share is kept. False, of a fixed link alone: messages are
     * still under way, and the link may read and write their bytes at any time from now
     * on. */
    bool (*close)(struct link *link, bool together);
};

/* --- the links --- */

extern const struct link_type link_mpi;         /* mpi.c */
extern const struct link_type link_simulated;   /* simulated.c: a world in virtual time */
extern const struct link_type link_tcp;         /* tcp.c: hosts that come and go */

#endif
