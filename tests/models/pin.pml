/* SPDX-License-Identifier: MIT */
/* The copies of the model: the keeper stores, modules pin the newest, read it and let it go, or
 * die with it, after which the slot is another module's. A copy is two cells. The keeper may die at
 * any step of a store, and the next one goes on. `make models` looks at every interleaving.
 *
 * Properties: a store finds a copy; what is read is whole, and of the version that was pinned; a
 * pin is never of a version that was old when it began. */

#define MODULES 2
#define COPIES 4                /* MODULES + 2 */
#define STORES 3
#define PINS 2
#define NONE 255
#define WANTED 254

byte version = 0, copy = 0;     /* one atomic word: newest */
byte pin_version[MODULES], pin_copy[MODULES];   /* one atomic word each */
byte low[COPIES], high[COPIES];

proctype module(byte me)
{
    byte pins = 0, began, v, c;
    do
    :: pins < PINS ->
        began = version;
        pin_copy[me] = WANTED;
        atomic { v = version; c = copy };
        atomic {
            if
            :: pin_copy[me] == WANTED -> pin_version[me] = v; pin_copy[me] = c
            :: else -> v = pin_version[me]; c = pin_copy[me]
            fi
        };
        assert(v >= began);
        assert(low[c] == v);
        assert(high[c] == v);
        if
        :: pin_copy[me] = NONE
        :: true                 /* pins the next one as it is, or is dead and another does */
        fi;
        pins++
    :: else -> break
    od
}

proctype keeper()
{
    byte stores = 0, i, k;
    bool taken[COPIES];
    do
    :: stores < STORES ->
        i = 0;
        do
        :: i < COPIES -> taken[i] = false; i++
        :: else -> break
        od;
        taken[copy] = true;
        i = 0;
        do
        :: i < MODULES ->
            atomic {
                if
                :: pin_copy[i] == WANTED -> pin_version[i] = version; pin_copy[i] = copy
                :: else
                fi
            };
            atomic {
                k = pin_copy[i];
                if
                :: k < COPIES -> taken[k] = true
                :: else
                fi
            };
            i++
        :: else -> break
        od;
        k = 0;
        do
        :: k < COPIES && taken[k] -> k++
        :: else -> break
        od;
        assert(k < COPIES);
        low[k] = stores + 1;
        if
        :: high[k] = stores + 1;
           atomic { version = stores + 1; copy = k }
        :: true                 /* dies; the next keeper begins with the next version */
        fi;
        stores++
    :: else -> break
    od
}

init {
    atomic {
        byte m = 0;
        do
        :: m < MODULES -> pin_copy[m] = NONE; run module(m); m++
        :: else -> break
        od;
        run keeper()
    }
}
