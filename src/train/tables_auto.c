/* SPDX-License-Identifier: MIT */
/* The numbers behind --tables auto.
 *
 * 1. Copies. A host has a fixed share of a core for rounds of rows, so the rows that it
 *    sends in a second fall as 1/k among k hosts: 15,000 rows of 16 floats to one other
 *    for 4 % of a core (docs/quality.md). The hottest rows go first, and a sweep takes
 *    the others, so a touched row waits for as long as a sweep over all rows takes, at
 *    most. With 2.6 million rows that is 173 s for two hosts, which lost nothing there,
 *    and 347 s for four, which lost 0.3 +- 0.15 %: LATE_S is between them.
 * 2. Owners. Each row of an example that another host owns is asked for, answered and
 *    pushed: f (2 r + 8) (k - 1) / k bytes out of a host for f rows of r bytes, and up
 *    to 7.5 us of CPU for 26 rows (docs/owners.md). The model's own time is known by its
 *    kind alone, and the link is not measured at the start: where nobody has said what
 *    it carries it counts as one of 1 Gb/s.
 * 3. Memory comes first: where copies do not fit there is no choice. */
#include "train/tables_auto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SENT_PER_S 30000.0      /* rows of SENT_BYTES, by k hosts: / k */
#define SENT_BYTES 68.0         /* 16 floats and a number */
#define BUDGET 0.04             /* that these take */
#define LATE_S 300.0
#define ROW_S (7.5e-6 / 26)     /* to fetch a row and to push it, also as an owner */
#define LINK 125e6
#define SLOWEST 0.7             /* less than that is no gain */

static double late_s(const struct tables_case *c)
{
    double bytes = 4 * c->row_floats + 4, k = c->hosts;
    double budget = c->budget > 0 ? c->budget : BUDGET;
    double sent = SENT_PER_S / k * (budget / BUDGET) * (SENT_BYTES / bytes);

    if (c->rate > 0)
        sent = fmin(sent, c->rate / (bytes * (k - 1)));
    return c->rows / sent;
}

static double speed(const struct tables_case *c)
{
    double others = (c->hosts - 1.0) / c->hosts;
    double row_s = c->fields * others * ROW_S;
    double bytes = c->fields * others * (2 * c->sent_bytes + 8);
    double by_link = (c->link > 0 ? c->link : LINK) * c->example_s / (bytes * c->workers);

    return fmin(c->example_s / (c->example_s + row_s), by_link);
}

struct tables_choice tables_choose(const struct tables_case *c)
{
    struct tables_choice choice = {.why = TABLES_ONE_HOST, .speed = 1};

    if (c->hosts < 2)
        return choice;
    choice.late_s = late_s(c);
    choice.speed = speed(c);
    choice.why = !c->fits                  ? TABLES_NO_ROOM
                 : choice.late_s <= LATE_S ? TABLES_ALIKE
                 : choice.speed < SLOWEST  ? TABLES_SLOW
                                           : TABLES_LATE;
    return choice;
}

const char *tables_choice_text(const struct tables_choice *choice, char *text,
                               size_t room)
{
    double late = choice->late_s, percent = 100 * choice->speed;

    switch (choice->why) {
    case TABLES_ONE_HOST:
        snprintf(text, room, "replicate: there is one host");
        break;
    case TABLES_ALIKE:
        snprintf(text, room, "replicate: each row can go to all hosts in %.0f s", late);
        break;
    case TABLES_SLOW:
        snprintf(text, room, "replicate: rows need %.0f s to go to all hosts, but to "
                 "fetch them would leave %.0f %% of the speed", late, percent);
        break;
    case TABLES_NO_ROOM:
        snprintf(text, room, "shard: two copies of all rows do not fit into the memory "
                 "that is free");
        break;
    case TABLES_LATE:
        snprintf(text, room, "shard: rows of copies would need %.0f s to go to all hosts",
                 late);
        break;
    }
    return text;
}

bool tables_move(const struct tables_moving *m)
{
    return m->over_tcp && m->ranks <= TABLES_MOVE_RANKS;
}
