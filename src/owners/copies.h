/* SPDX-License-Identifier: MIT */
/* Copies of other owners' hot rows, one struct for a table (descant.h: age, cached). A
 * fetch reads a row from its copy for `age` after the copy was asked for. A push goes to
 * the owner as always, and steps the copy as well, so a copy is a whole record: a row
 * and the state of its optimizer.
 *
 * Which rows have copies is learned, as by TinyLFU (Einziger, Friedman, Manes: "TinyLFU:
 * A Highly Efficient Cache Admission Policy", 2017). A row is hashed to a set, which has
 * room for the records of SET_WAYS rows. The set counts how often each of these comes
 * (`heat`), and others by counters that several rows share. All counts are halved from
 * time to time. A row gets a way when it has come more than `worth` times within an age,
 * and more often than the coldest row that has one. `worth` is the size of a record in
 * rows as they travel, and 2 at least. So a row that came once pushes out none, and
 * copies save about what they cost, or more. A copy that is too old is asked for again if
 * its record has served `worth` fetches, with the one that asked for it; else its way is
 * free.
 *
 * Own pushes. Asks have numbers, in the order in which they are posted, and an owner
 * serves those of a rank in that order. So a record that was asked for by ask p has all
 * of this rank's pushes before p, and none after it:
 *
 *   - A copy that is HERE has the number p of its ask. A push with a number above p
 *     steps the copy; the record had the others.
 *   - A copy is ASKED before p is known. From then on pushes of the row are kept. When
 *     the record comes, those above p step it; it has the others.
 *
 * So the moment at which the pushing thread comes to the copy does not matter: before the
 * answer its push is kept, and after it the push is compared with p. Where too many
 * pushes are kept, the copy is SPOILED: its record is for the batch alone.
 *
 * Moves. Where a row's slice goes to another owner (moves.h), copies that were asked for
 * before that are used no more. Between two other owners they could be kept. But a rank
 * that has owned the row meanwhile has stepped it without a number, and not its copy. And
 * where an owner has died, an ask may be served behind pushes with higher numbers, since
 * asks are sent anew and pushes are not.
 *
 * Pushes of several threads may step a copy in another order than the owner does, which
 * shows in the state of an optimizer until the record is asked for again.
 *
 * Any thread calls these. A set and its records are guarded by the set's lock; no two
 * sets are locked at once. The room for kept pushes is guarded by a lock of its own,
 * which is taken within a set's. */
#ifndef COPIES_H
#define COPIES_H

#include "owners/owned.h"

#include <pthread.h>

enum { SET_WAYS = 8 };          /* of a set, at most */
enum { COPIES_BYTES = 16 << 20 };       /* of a table's records, where `cached` is 0 */

enum copy_state {
    COPY_NONE,
    COPY_ASKED, COPY_SPOILED,   /* its record is on its way */
    COPY_HERE
};

struct copy {
    uint64_t row;
    uint64_t since_ns;          /* its record was asked for then */
    uint64_t number;            /* HERE: of the ask for its record */
    uint32_t kept;              /* ASKED: its newest push; 0: none */
    uint8_t state, heat;
    uint8_t reads;              /* HERE: fetches that it has served */
};

/* What a fetch does with a row. */
enum copy_use {
    COPY_READ,                  /* reads its copy */
    COPY_ASK,                   /* asks for its record, which becomes its copy */
    COPY_FETCH,                 /* fetches it from its owner */
    COPY_USES
};

struct copy_rule {
    uint64_t age_ns;
    unsigned worth;
};

/* At a fetch: now, and since when the row has its owner (Moves). */
struct copy_times {
    uint64_t now_ns, from_ns;
};

struct copies;

/* NULL: no memory. */
struct copies *copies_create(const struct owned *table);
void copies_destroy(struct copies *copies);     /* NULL is allowed */
size_t copies_rooms(const struct copies *copies);       /* rows that it keeps at most */

/* Asks memory for what look and push need of the row; as owned_ask_for. */
void copies_ask_for(const struct copies *copies, uint64_t row);
/* A fetch of the row. READ: *out has its values. ASK: copies_fill or copies_forget
 * follows. */
enum copy_use copies_look(struct copies *copies, uint64_t row,
                          const struct copy_times *times, float *out);
/* The record of a row that was asked for by an ask of this number; it has come. */
void copies_fill(struct copies *copies, uint64_t row, uint64_t number,
                 const float *record);
/* The row was not asked for, or can have no copy: its comings count anew. */
void copies_forget(struct copies *copies, uint64_t row);
/* The row was pushed by an ask of this number; gradient: as it travels. */
void copies_push(struct copies *copies, uint64_t row, uint64_t number,
                 const void *gradient, float rate);

/* --- the rule --- */

/* A row that has a way is fetched. */
enum copy_use copy_look(struct copy *copy, const struct copy_rule *rule,
                        const struct copy_times *times);
/* The way of a set that is the best to take for a row so hot; -1: none is. */
int copy_victim(const struct copy *copies, int ways, unsigned heat);

#endif
