/* SPDX-License-Identifier: MIT */
/* The three sums of a slot: gradients are added, sums are taken, the module may die at any step
 * and another one takes its slot. Each gradient is a bit. The floats of a sum are two cells, so
 * that a sum read while it is written shows. `make models` looks at every interleaving.
 *
 * Properties: no cell is written while the keeper reads it; both cells of what is taken are the
 * same; no gradient is taken twice; all that were published, and no others, are taken in the end;
 * a publication fails at most once. */

#define GRADIENTS 4

byte committed = 0, drained = 1;        /* one atomic word with `filled` */
bool filled = false;
byte low[3], high[3];                   /* two cells of each sum */
byte published = 0, taken = 0;          /* sets of gradients */
byte reading = 3;                       /* the sum that the keeper has; 3: none */
bool done = false;

inline write(k, with) {
    assert(k != reading);
    low[k] = with;
    assert(k != reading);
    high[k] = with
}

proctype module()
{
    byte next = 0, c, d, w, from, tries;
    bool f;
    do
    :: next < GRADIENTS ->
        tries = 0;
        atomic { c = committed; d = drained; f = filled };
again:
        w = 3 - c - d;
        from = 0;
        if
        :: f -> from = low[c]; assert(high[c] == from)
        :: else
        fi;
        if
        :: write(w, from | (1 << next))
        :: low[w] = 255; goto died      /* half written: the next owner begins with another one */
        fi;
        atomic {
            if
            :: c == committed && d == drained && f == filled ->
                committed = w;
                drained = (f -> d : c);
                filled = true;
                published = published | (1 << next)
            :: else ->
                c = committed; d = drained; f = filled;
                tries++;
                assert(tries < 2);
                goto again
            fi
        }
died:
        next++
    :: else -> break
    od;
    done = true
}

proctype keeper()
{
    byte k, x;
    bool f, last;
    do
    :: true ->
        last = done;
        atomic { f = filled; k = committed; filled = false; reading = (f -> k : reading) };
        if
        :: f ->
            x = low[k];
            assert(x == high[k]);
            assert((taken & x) == 0);
            taken = taken | x
        :: else -> if :: last -> break :: else fi
        fi
    od;
    assert(taken == published)
}

init { atomic { run module(); run keeper() } }
