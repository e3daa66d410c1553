/* SPDX-License-Identifier: MIT */
/* A meeting from its first step to its last, and blocks by name. meeting_close leaves as
 * a death would, and then gives everything back. Blocks are entered and found inside the
 * door. */
#include "machine/meeting.h"
#include "machine/meet.h"

#include <string.h>

/* The steps inside the door, in this order: find the arena or found one; settle the rank
 * among the living; let the user compare what it has in the arena; take a slot, by which
 * all others watch this process; start the doorman, which answers those that come next. A
 * failure leaves what meeting_leave takes. */
static descant_status take_place(struct meet *meet, int *rank)
{
    descant_status status = meet_call(meet);

    if (!status)
        status = meet_rank(meet, rank);
    if (!status && meet->type)
        status = meet->type->agree(meet->user);
    if (!status)
        status = meet_seat(meet, *rank);
    return status ? status : doorman_start(meet);
}

/* The door is held to the end, so that one process joins at a time. */
descant_status meeting_join(struct meet *meet, int *rank)
{
    descant_status status = meet_door_take(meet);

    if (!status)
        status = take_place(meet, rank);
    meet_door_give(meet);
    return status;
}

void meeting_leave(struct meet *meet)
{
    doorman_stop(meet);
    meet_fini(meet);
}

descant_status meeting_open(struct meet **out, const char *name, int rank, double start_s,
                            const struct log *log)
{
    struct meet *meet = memory_take(sizeof *meet);

    if (!meet)
        return log_fail(log, DESCANT_MEMORY, "no memory for a meeting");
    meet_init(meet, name, start_s, log);
    descant_status status = meeting_join(meet, &rank);
    if (status)
        meeting_close(meet);
    else
        *out = meet;
    return status;
}

void meeting_close(struct meet *meet)
{
    meeting_leave(meet);
    memory_give(meet);
}

/* --- blocks --- */

/* Inside the door. The number of blocks is raised last. */
static descant_status enter_block(struct meet *meet, const char *name, size_t bytes,
                                  void **out)
{
    struct roster *roster = meet->roster;
    uint32_t n = atomic_load_explicit(&roster->n_blocks, memory_order_acquire), k = 0;
    uint64_t at = region_at(REGION_BLOCKS);

    while (k < n && strcmp(roster->blocks[k].name, name) != 0)
        k++;
    struct shared_block *block = &roster->blocks[k];
    if (k < n && block->bytes != bytes)
        return log_fail(meet->log, DESCANT_MISMATCH,
                        "the block \"%s\" has %llu bytes, not %zu", name,
                        (unsigned long long)block->bytes, bytes);
    if (k < n)
        return arena_map(&meet->arena, block->at, bytes, ARENA_WRITE, out);
    if (n == MACHINE_BLOCKS)
        return log_fail(meet->log, DESCANT_MEMORY, "%d blocks are shared already",
                        MACHINE_BLOCKS);
    if (n)
        at = block[-1].at +
             (block[-1].bytes + machine_page() - 1) / machine_page() * machine_page();
    if (bytes > region_at(REGION_BLOCKS + 1) - at)
        return log_fail(meet->log, DESCANT_MEMORY, "%zu bytes are too many", bytes);
    descant_status status = arena_map(&meet->arena, at, bytes, ARENA_TAKE, out);
    if (status)
        return status;
    memset(block, 0, sizeof *block);
    memcpy(block->name, name, strlen(name));
    block->at = at;
    block->bytes = bytes;
    atomic_store_explicit(&roster->n_blocks, n + 1, memory_order_release);
    return DESCANT_OK;
}

descant_status meeting_share(struct meet *meet, const char *name, size_t bytes,
                             void **block)
{
    if (!*name || strlen(name) >= BLOCK_NAME || !bytes)
        return log_fail(meet->log, DESCANT_INVALID,
                        "a block has a name of 1 to %d bytes, and at least one byte",
                        BLOCK_NAME - 1);
    descant_status status = meet_door_take(meet);
    if (status)
        return status;
    status = enter_block(meet, name, bytes, block);
    meet_door_give(meet);
    return status;
}
