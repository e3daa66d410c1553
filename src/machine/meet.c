/* SPDX-License-Identifier: MIT */
/* Meeting by names (name.c), which the kernel takes back by itself.
 *
 *   1. The door is a name that one process can hold. Its holder changes slots, founds,
 *      compares manifests, adds blocks; the others sleep on a connection to it, which
 *      breaks when the holder lets go or dies.
 *   2. A joiner tells every member the slot and generation that it will take, and has
 *      their answers, before it takes the slot: from its first moment all of them notice
 *      its death.
 *   3. A member's death is its pidfd becoming readable: a child that it forked may hold
 *      its sockets on for as long as it likes. A cut line tells that it has become
 *      another program.
 *   4. A slot that is alive in the roster but whose name no living process holds is
 *      buried by the next joiner: its trainer died before it had told all members.
 *   5. A name that another user holds is no trainer's. At the door the job is refused at
 *      once, with that user's number; joiners pass over such a slot, as long as others
 *      are free.
 *
 * The doormen of trainers that are here answer joiners (doorman.c).
 *
 * Left out on purpose: a process that forks while it holds the door keeps it shut until
 * that child ends; the joiners' waiting is bounded. */
#include "machine/meet.h"

#include "machine/message.h"
#include "machine/name.h"
#include "machine/process.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CALL_NS 2000000000u     /* that a living member has to answer */
#define TOUCH_NS 100000000u
/* after which an end that cannot be reached is looked up */
#define REFUSED_NS 50000000u

enum { TRIES = 3 };             /* of calls that are hung up on */

/* --- the door --- */

void meet_init(struct meet *meet, const char *name, double start_s, const struct log *log)
{
    memset(meet, 0, sizeof *meet);
    arena_init(&meet->arena, log);
    meet->log = log;
    meet->n_regions = MACHINE_REGIONS;
    meet->start_s = start_s > 0 ? start_s < 1e9 ? start_s : 1e9 : 0;
    snprintf(meet->name, sizeof meet->name, "%s", name);
    meet->door = meet->listener = meet->stop = meet->pidfd = -1;
    for (int s = 0; s < MACHINE_SLOTS; s++)
        meet->lines[s] = meet->peers[s] = -1;
    for (int k = 0; k < MEET_CALLERS; k++)
        meet->callers[k] = (struct meet_caller){-1, -1, 0};
}

/* Logs which part of the job another user holds, and that user, where it is known. */
static descant_status refuse_stranger(const struct meet *meet, const char *what,
                                      bool many, const struct holder *who)
{
    char by[64] = "a process of an unknown user";

    if (who && who->pid)
        snprintf(by, sizeof by, "user %u (process %d)", who->uid, who->pid);
    else if (who)
        snprintf(by, sizeof by, "user %u", who->uid);
    return log_fail(meet->log, DESCANT_SYSTEM,
                    "%s of job \"%s\" %s held by %s, this process is of "
                    "user %u: give the job another name",
                    what, meet->name, many ? "are" : "is", by, (unsigned)getuid());
}

/* Sleeps until the door may be free. Its holder is of the same user, or the job is
 * refused. A holder that cannot be reached is looked at again, for the holder may just be
 * changing, or the queue long; *since: the first such look. */
static descant_status await_door(const struct meet *meet, uint64_t until_ns,
                                 uint64_t *since)
{
    int fd = name_reach(meet->name, NAME_DOOR);
    uint64_t now = clock_now_ns();
    struct holder who;
    bool told = fd >= 0 && name_peer(fd, &who);

    *since = fd >= 0 ? 0 : *since ? *since : now;
    if (fd < 0 && now - *since > REFUSED_NS)
        told = name_holder(meet->name, NAME_DOOR, &who);
    bool stranger = told ? who.uid != getuid() : fd < 0 && now - *since > CALL_NS;
    if (fd < 0 && !stranger)
        nap();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (fd >= 0 && !stranger)
        poll(&p, 1, ms_until(until_ns));
    if (fd >= 0)
        close(fd);
    return stranger ? refuse_stranger(meet, "the door", false, told ? &who : NULL)
                    : DESCANT_OK;
}

descant_status meet_door_take(struct meet *meet)
{
    uint64_t since = 0, until_ns = clock_now_ns() + (uint64_t)(meet->start_s * 1e9);

    for (;;) {
        meet->door = name_hold(meet->name, NAME_DOOR);
        if (meet->door >= 0)
            return DESCANT_OK;
        if (errno != EADDRINUSE)
            return log_fail(meet->log, DESCANT_SYSTEM, "no socket for job \"%s\": %s",
                            meet->name, machine_why(errno));
        if (clock_now_ns() >= until_ns)
            return log_fail(meet->log, DESCANT_TIMEOUT,
                            "another process has been joining job \"%s\" all the time",
                            meet->name);
        descant_status status = await_door(meet, until_ns, &since);
        if (status)
            return status;
    }
}

void meet_door_give(struct meet *meet)
{
    fd_close(&meet->door);
}

/* --- calling --- */

enum peer_kind { PEER_STRANGER, PEER_DEAD, PEER_OURS };

/* The kind of process at the other end; of a living trainer also a pidfd, if there is
 * one. */
static enum peer_kind look_at_peer(int fd, int *pidfd)
{
    struct holder who;

    *pidfd = -1;
    if (!name_peer(fd, &who) || who.uid != getuid())
        return PEER_STRANGER;
    *pidfd = process_watch(who.pid);
    if (*pidfd < 0 ? errno != ESRCH : !pidfd_dead(*pidfd))
        return PEER_OURS;
    fd_close(pidfd);
    return PEER_DEAD;
}

/* Whether a stranger has the name of a slot that cannot be reached. */
static bool strange_slot(const struct meet *meet, unsigned slot)
{
    struct holder who;
    int why = errno;
    bool stranger = name_holder(meet->name, (int)slot, &who) && who.uid != getuid();
    errno = why;
    return stranger;
}

/* Connects to a slot and says hello; its line is then open. A slot that cannot be told
 * from an empty one is `silent`: no job may be founded beside it. */
static descant_status call_slot(struct meet *meet, unsigned slot, uint64_t until_ns)
{
    struct message hello = message_of(WHAT_HELLO, 0, 0);
    int fd, pidfd;

    while ((fd = name_reach(meet->name, (int)slot)) < 0 && errno == EAGAIN &&
           clock_now_ns() < until_ns && !strange_slot(meet, slot))
        nap();
    if (fd < 0 &&
        (errno == ECONNREFUSED || (errno == EAGAIN && strange_slot(meet, slot))))
        meet->unreachable |= slot_bit(slot);
    else if (fd < 0 && errno == EAGAIN)
        meet->deaf |= slot_bit(slot);
    else if (fd < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "slot %u cannot be called: %s", slot,
                        machine_why(errno));
    if (fd < 0)
        return DESCANT_OK;
    enum peer_kind peer = look_at_peer(fd, &pidfd);
    if (peer == PEER_OURS && pidfd < 0) {
        int why = errno;
        close(fd);
        return log_fail(meet->log, DESCANT_SYSTEM, "no pidfd for slot %u: %s", slot,
                        strerror(why));
    }
    if (peer == PEER_OURS && message_say(fd, &hello, &meet->pidfd, 1)) {
        meet->lines[slot] = fd;
        meet->peers[slot] = pidfd;
        return DESCANT_OK;
    }
    if (peer != PEER_OURS)
        meet->unreachable |= slot_bit(slot);
    else
        meet->deaf |= slot_bit(slot);
    fd_close(&pidfd);
    close(fd);
    return DESCANT_OK;
}

/* True if fd is the arena that this process has entered. */
static bool same_arena(const struct meet *meet, int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(meet->arena.fd, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

static descant_status map_roster(struct meet *meet, enum arena_use use)
{
    void *p = NULL;
    descant_status status = arena_map(&meet->arena, region_at(REGION_ROSTER),
                                      sizeof *meet->roster, use, &p);
    meet->roster = p;
    return status;
}

/* A new job: the arena, and the roster in it, all zeros: no slot has lived. */
static descant_status found(struct meet *meet)
{
    descant_status status = arena_found(&meet->arena, meet->n_regions);
    return status ? status : map_roster(meet, ARENA_TAKE);
}

/* fd is the arena's from here on, also after a failure. */
static descant_status enter(struct meet *meet, int fd)
{
    descant_status status = arena_enter(&meet->arena, fd, meet->n_regions);
    return status ? status : map_roster(meet, ARENA_WRITE);
}

static void hang_up(struct meet *meet, unsigned slot)
{
    fd_close(&meet->lines[slot]);
    fd_close(&meet->peers[slot]);
}

/* Marks slots that have not answered. Their lines stay, and they will read the messages
 * on them. */
static void pass_over(struct meet *meet, uint64_t waiting)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        if (!(waiting & slot_bit(s)))
            continue;
        if (pidfd_dead(meet->peers[s]))
            hang_up(meet, s);
        else
            meet->silent |= slot_bit(s);
    }
}

/* Reads one trainer's answer. The first answer brings the arena; a later one with another
 * arena is not of this job, and is hung up on. The pidfd of the answer replaces the one
 * that call_slot has made by number: it is surely of the process that answered. */
static descant_status take_answer(struct meet *meet, unsigned slot)
{
    struct message answer;
    int fds[2];
    descant_status status = DESCANT_OK;

    enum heard heard = message_hear(meet->lines[slot], &answer, fds, 2);
    if (heard == HEARD_CUT)
        return log_fail(meet->log, DESCANT_SYSTEM,
                        "no descriptors for the answer of slot %u: %s", slot,
                        machine_why(EMFILE));
    if (heard != HEARD) {
        if (!pidfd_dead(meet->peers[slot]))
            meet->deaf |= slot_bit(slot);
        hang_up(meet, slot);
        return DESCANT_OK;
    }
    if (answer.version != MACHINE_VERSION || answer.slot != slot)
        status = log_fail(meet->log, DESCANT_MISMATCH,
                          "job \"%s\" is of version %u of the protocol, this is %u",
                          meet->name, answer.version, MACHINE_VERSION);
    else if (meet->arena.fd < 0)
        status = enter(meet, fds[0]);
    else if (!same_arena(meet, fds[0]))
        hang_up(meet, slot);
    if (meet->arena.fd != fds[0])
        close(fds[0]);
    if (status || meet->lines[slot] < 0) {
        close(fds[1]);
        return status;
    }
    fd_close(&meet->peers[slot]);
    meet->peers[slot] = fds[1];
    meet->peer_generations[slot] = answer.generation;
    return DESCANT_OK;
}

/* Waits until lines marked have something to hear, or are gone. */
static uint64_t await_lines(struct meet *meet, uint64_t slots, uint64_t until_ns)
{
    struct pollfd p[MACHINE_SLOTS];
    unsigned slot[MACHINE_SLOTS];
    uint64_t ready = 0;
    nfds_t n = 0;       /* no more than there are descriptors: poll refuses that */

    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (slots & slot_bit(s)) {
            slot[n] = s;
            p[n++] = (struct pollfd){.fd = meet->lines[s], .events = POLLIN};
        }
    if (poll(p, n, ms_until(until_ns)) > 0)
        for (nfds_t k = 0; k < n; k++)
            if (p[k].revents)
                ready |= slot_bit(slot[k]);
    return ready;
}

/* One try: calls every slot, then waits for the answers of those that took the call. Each
 * slot ends as one of these: its line is open and has answered; `silent`, with an open
 * line; hung up on, and `deaf` if its trainer lives; or `unreachable`. */
static descant_status call_all(struct meet *meet)
{
    uint64_t until = clock_now_ns() + CALL_NS, ready = 1, waiting = 0;
    descant_status status = DESCANT_OK;

    meet->silent = meet->unreachable = meet->deaf = 0;
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        hang_up(meet, s);
    for (unsigned s = 0; s < MACHINE_SLOTS && !status; s++)
        status = call_slot(meet, s, until);
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        waiting |= meet->lines[s] >= 0 ? slot_bit(s) : 0;
    while (waiting && !status && (ready || clock_now_ns() < until)) {
        /* tries once more when the time is up */
        ready = await_lines(meet, waiting, until);
        for (unsigned s = 0; s < MACHINE_SLOTS && !status; s++)
            if (ready & slot_bit(s))
                status = take_answer(meet, s);
        waiting &= ~ready;
    }
    pass_over(meet, waiting);
    for (unsigned s = 0; s < MACHINE_SLOTS && meet->roster; s++)
        if (meet->silent & slot_bit(s))
            meet->peer_generations[s] = life_generation(slot_life(meet->roster, s));
    return status;
}

/* Calls again while a living trainer hangs up, as a leaver does. No job is founded beside
 * a trainer that does not answer. */
descant_status meet_call(struct meet *meet)
{
    uint64_t until = clock_now_ns() + CALL_NS;
    descant_status status;

    meet->pidfd = process_watch(getpid());
    if (meet->pidfd < 0)
        return log_fail(meet->log, DESCANT_SYSTEM, "no pidfd: %s", machine_why(errno));
    for (int tries = 1;; tries++) {
        status = call_all(meet);
        uint64_t doubt = meet->deaf | (meet->arena.fd < 0 ? meet->silent : 0);
        if (status || !doubt)
            return status || meet->roster ? status : found(meet);
        if (clock_now_ns() >= until && (tries >= TRIES || !meet->deaf))
            return log_fail(
                meet->log, DESCANT_TIMEOUT,
                "a trainer of job \"%s\" is alive (slot %d) and does not answer",
                meet->name, __builtin_ctzll(doubt));
        nap();
    }
}

/* --- taking a slot --- */

/* Sends the slot on all lines. Trainers that do not answer in time find it in their queue
 * when they wake, and watch this process from then on. False: a living trainer has hung
 * up. */
static bool announce(struct meet *meet, unsigned slot, uint32_t generation)
{
    struct message seat = message_of(WHAT_SEAT, slot, generation), answer;
    uint64_t waiting = 0, cut = 0, ready = 1, until = clock_now_ns() + CALL_NS;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        if (meet->lines[s] < 0)
            continue;
        if (!message_say(meet->lines[s], &seat, NULL, 0))
            cut |= slot_bit(s);
        else if (!(meet->silent & slot_bit(s)))
            waiting |= slot_bit(s);
    }
    while (waiting && (ready || clock_now_ns() < until)) {
        ready = await_lines(meet, waiting, until);
        for (unsigned s = 0; s < MACHINE_SLOTS; s++)
            if (ready & slot_bit(s) &&
                message_hear(meet->lines[s], &answer, NULL, 0) != HEARD)
                cut |= slot_bit(s);
        waiting &= ~ready;
    }
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        /* dying or leaving: soon no trainer any more */
        while (cut & slot_bit(s)) {
            uint64_t life = slot_life(meet->roster, s);
            if (!life_alive(life) || life_generation(life) != meet->peer_generations[s] ||
                pidfd_dead(meet->peers[s]))
                break;
            if (clock_now_ns() >= until)
                return false;
            nap();
        }
    return true;
}

/* Whether a joiner may have the slot. The memory of a dead one must not be read any more:
 * `life` was read before the user is asked, and a reader reads lives after it has told
 * the user. */
static bool slot_vacant(const struct meet *meet, uint64_t life)
{
    bool read = meet->type && meet->type->reads_dead(meet->user);
    return life_state(life) == LIFE_FREE || (life_state(life) == LIFE_DEAD && !read);
}

static bool all_touched(const struct roster *roster)
{
    return !slot_untouched(roster, MACHINE_SLOTS);
}

/* Whether a process may be about to change the slot's bit, or to give back its pages. */
static bool await_slot(const struct meet *meet, unsigned slot, bool dead)
{
    const struct roster *roster = meet->roster;
    uint64_t now = clock_now_ns(), until = now + TOUCH_NS, until_all = now + CALL_NS;

    while (!slot_untouched(roster, slot) ||
           (dead && meet->type && meet->type->frees_dead(meet->user, slot))) {
        if (clock_now_ns() > (all_touched(roster) ? until_all : until))
            return false;
        nap();
    }
    return true;
}

/* Takes the slot, whose name this process holds already. The order is that of roster.c's
 * head: the life changes first; then nobody touches the slot any more; then its bit and
 * its pages are its own. False: another process has changed the life, or one that was
 * stopped touches the slot still; the slot is left dead then. */
static bool settle(struct meet *meet, unsigned slot, uint64_t life, int rank)
{
    struct roster *roster = meet->roster;
    struct slot *mine = &roster->slots[slot];
    uint32_t generation = life_generation(life) + 1;
    bool dead = life_state(life) == LIFE_DEAD;

    mine->rank = rank;
    if (meet->type)
        meet->type->clear(meet->user, slot);
    for (int k = 0; k < N_TOUCH; k++)
        atomic_store_explicit(&mine->touching[k], 0, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(&mine->life, &life,
                                        life_make(generation, LIFE_JOINED)))
        return false;
    if (!await_slot(meet, slot, dead)) {
        atomic_store(&mine->life, life_make(generation, LIFE_DEAD));
        return false;
    }
    atomic_fetch_and_explicit(&roster->members, ~slot_bit(slot), memory_order_seq_cst);
    if (meet->type)
        meet->type->seat(meet->user, slot);
    meet->slot = slot;
    meet->generation = generation;
    meet->seated = true;
    atomic_fetch_add_explicit(&roster->lives, 1, memory_order_release);
    return true;
}

static void bury_unreachable(struct meet *meet)
{
    struct roster *roster = meet->roster;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (s != meet->slot && meet->unreachable & slot_bit(s) && life_alive(life))
            slot_bury(roster, s, life_generation(life), meet->slot, TOUCH_DOORMAN);
    }
}

/* A rank is free again once its process has died, also before its slot was buried. */
static bool rank_taken(const struct meet *meet, int rank)
{
    for (unsigned s = 0; s < MACHINE_SLOTS; s++)
        if (meet->roster->slots[s].rank == rank && !(meet->unreachable & slot_bit(s)) &&
            life_alive(slot_life(meet->roster, s)) &&
            !(meet->peers[s] >= 0 && pidfd_dead(meet->peers[s])))
            return true;
    return false;
}

descant_status meet_rank(const struct meet *meet, int *rank)
{
    if (*rank >= 0 && rank_taken(meet, *rank))
        return log_fail(meet->log, DESCANT_BAD_RANK,
                        "rank %d of job \"%s\" is held by a living "
                        "trainer; another run takes another name, or another MASTER_PORT",
                        *rank, meet->name);
    for (int k = 0; *rank < 0; k++)
        if (!rank_taken(meet, k))
            *rank = k;
    return DESCANT_OK;
}

/* held: free slots whose names are taken. */
static descant_status no_slot(const struct meet *meet, uint64_t held)
{
    int slot = held ? __builtin_ctzll(held) : 0, n = __builtin_popcountll(held);
    struct holder who = {0};
    char what[64];

    if (!held)
        return log_fail(meet->log, DESCANT_BAD_SIZE, "job \"%s\" has %d trainers already",
                        meet->name, MACHINE_SLOTS);
    int fd = name_reach(meet->name, slot);
    bool told = fd >= 0 ? name_peer(fd, &who) : name_holder(meet->name, slot, &who);
    if (fd >= 0)
        close(fd);
    if (told && who.uid == getuid())
        return log_fail(
            meet->log, DESCANT_TIMEOUT,
            "job \"%s\" has %d trainers, and the names of its "
            "other slots are held by processes that are leaving it (%d): try again",
            meet->name, MACHINE_SLOTS - n, who.pid);
    snprintf(what, sizeof what, "%d of %d slots", n, MACHINE_SLOTS);
    return refuse_stranger(meet, what, true, told ? &who : NULL);
}

/* Tries slots from the lowest. The slot's name is taken first: the kernel takes it back
 * however this process ends, so that no slot is lost between the steps. */
descant_status meet_seat(struct meet *meet, int rank)
{
    struct roster *roster = meet->roster;
    uint64_t held = 0;

    for (unsigned s = 0; s < MACHINE_SLOTS; s++) {
        uint64_t life = slot_life(roster, s);
        if (!slot_vacant(meet, life))
            continue;
        meet->listener = name_hold(meet->name, (int)s);
        if (meet->listener < 0 && errno != EADDRINUSE)
            return log_fail(meet->log, DESCANT_SYSTEM, "no socket for slot %u: %s", s,
                            machine_why(errno));
        if (meet->listener < 0) {
            held |= slot_bit(s);
            continue;
        }
        if (!announce(meet, s, life_generation(life) + 1))
            return log_fail(meet->log, DESCANT_TIMEOUT,
                            "a trainer of job \"%s\" is alive and does not listen",
                            meet->name);
        if (slot_vacant(meet, slot_life(roster, s)) && settle(meet, s, life, rank)) {
            bury_unreachable(meet);
            return DESCANT_OK;
        }
        fd_close(&meet->listener);
        if (all_touched(roster))
            return log_fail(
                meet->log, DESCANT_TIMEOUT,
                "a trainer of job \"%s\" has stopped in the midst of a change",
                meet->name);
    }
    return no_slot(meet, held);
}

/* The own bit goes first, for a dead process's touch is not waited for. */
static void leave(struct meet *meet)
{
    struct roster *roster = meet->roster;
    uint64_t bit = slot_bit(meet->slot);

    atomic_store_explicit(&roster->slots[meet->slot].closed, meet->generation,
                          memory_order_relaxed);
    if (atomic_fetch_and_explicit(&roster->members, ~bit, memory_order_seq_cst) & bit)
        atomic_fetch_add_explicit(&roster->epoch, 1, memory_order_release);
    slot_become(roster, meet->slot, meet->generation, LIFE_DEAD);
    roster_ring(roster, ~(uint64_t)0);
    meet->seated = false;
}

/* The descriptors go last but for the arena: a line that breaks tells the others, who
 * then find the life DEAD already. */
void meet_fini(struct meet *meet)
{
    if (meet->seated)
        leave(meet);
    for (int s = 0; s < MACHINE_SLOTS; s++) {
        fd_close(&meet->lines[s]);
        fd_close(&meet->peers[s]);
    }
    fd_close(&meet->listener);
    fd_close(&meet->pidfd);
    fd_close(&meet->door);
    arena_fini(&meet->arena);
}
