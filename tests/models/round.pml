/* SPDX-License-Identifier: MIT */
/* The rounds of the fabric in shared memory (src/shm/, docs/shm.md): trainers poll, sleep on their
 * bells, arrive, close, reduce, pull, join, leave and die, each at any step. Comments name the
 * function whose step it is. One load or change of a shared word is one step.
 *
 * Properties:
 *   1. A round is closed once. Its record, the offers and the result stay as they are until each
 *      of its group has arrived at the next round.
 *   2. All that take the result of a round take the same group's, and all of it.
 *   3. Nobody writes a chunk of a round that has ended into the result of a later one.
 *   4. What a trainer brings is of the last round that was committed, be it a joiner or not.
 *   5. The state of a newcomer never replaces the job's.
 *   6. Nobody sleeps for ever, whoever has died, left, or given up an exchange: that all sleep is
 *      an invalid end state.
 *
 *   7. Every round closes or fails, and every run ends, as long as each process goes on
 *      (weak fairness): no polls of several trainers keep each other from it for ever.
 *
 * A ring of several bells is one step: bells that a dying trainer has not rung are rung by the
 * doormen. The doormen of all trainers are one process, since each does the same. Left out: slots
 * that are used again (generations, touching, sweep), NaN, puts and places of slices, the centre's
 * floats, emulated links, offers that differ, final states. Memory is sequentially consistent.
 *
 * `run` reads the lines below. The model holds in each world, and each mutation breaks it. It ends
 * in each world, and a mutation goes in a circle that safety does not see.
 *
 *   holds -DWORLD=FORM -DDEATHS=1
 *   holds -DWORLD=MEANS -DDEATHS=1
 *   holds -DWORLD=JOIN -DDEATHS=1
 *   holds -DWORLD=JOIN -DLIVE=true
 *   holds -DWORLD=JOIN_LOW
 *   holds -DWORLD=LEAVE
 *   holds -DWORLD=LEAVE_JOIN
 *   holds -DWORLD=HELP -DDEATHS=1
 *   holds -DWORLD=CALL -DDEATHS=1
 *   holds -DWORLD=CALL -DN=3
 *   holds -DWORLD=RELOAD -DDEATHS=1
 *   breaks -DWORLD=RELOAD -DBREAK=NO_SECOND_LOOK
 *   breaks -DWORLD=JOIN -DBREAK=NO_PHASES
 *   breaks -DWORLD=MEANS -DBREAK=COUNT_FIRST
 *   breaks -DWORLD=CALL -DBREAK=LOOK_FIRST
 *   breaks -DWORLD=JOIN -DLIVE=true -DBREAK=NO_WHOLE
 *   breaks -DWORLD=MEANS -DDEATHS=1 -DBREAK=NO_UNDO
 *   breaks -DWORLD=MEANS -DDEATHS=1 -DBREAK=NO_FAILING
 *   breaks -DWORLD=MEANS -DBREAK=NO_RING
 *   breaks -DWORLD=HELP -DBREAK=NO_HELP
 *   breaks -DWORLD=RELOAD -DBREAK=NO_PULLED_WORD
 *   breaks -DWORLD=RELOAD -DBREAK=NO_CLOSING
 *   breaks -DWORLD=JOIN -DBREAK=NO_NEWCOMERS
 *   breaks -DWORLD=LEAVE_JOIN -DBREAK=NO_NEWCOMERS
 *   breaks -DWORLD=LEAVE -DBREAK=KEEP_ARRIVAL
 *   ends -DWORLD=FORM
 *   ends -DWORLD=MEANS
 *   ends -DWORLD=JOIN
 *   ends -DWORLD=JOIN_LOW
 *   ends -DWORLD=CALL
 *   ends -DWORLD=HELP
 *   ends -DWORLD=RELOAD
 *   circles -DWORLD=MEANS -DBREAK=NO_FIRST_LOOK
 */

#include "round.inc"

proctype trainer(byte me; short todo)
{
    byte op, stage = IDLE, tag, mem, set, waiters, src = NONE, chunk = NONE, t, got;
    short wd, pulled_word;
    bool won, any, abandoned, part_out, impatient;

    {
        skip;
next:   /* the caller's next exchange; it may give it up for the one after */
        atomic { op = todo % 10; todo = todo / 10; impatient = false };
        if
        :: todo % 10 >= FINAL -> impatient = true
        :: true
        fi;
begin:  /* shm_round_begin */
        if
        :: op == CLOSE -> goto leave
        :: op == FINAL -> goto retire
        :: op == ANSWER -> goto idle
        :: else
        fi;
        if
        :: stage == ARRIVED -> abandoned = BREAK != NO_HELP
        :: else
        fi;
        stage = (abandoned -> ARRIVED : BEGUN);
        if
        :: life[me] == JOINED -> become(WAITING)
        :: else
        fi;
        goto again;

sleep:  /* shm_round_wait */
        atomic { mem = 0; set = 0; waiters = 0; src = NONE; any = false; won = false };
        if
        :: impatient && stage == ARRIVED -> goto next
        :: rung & BIT(me)
        fi;
again:  /* shm_round_poll: the bell, then the word */
        atomic {
            WAKE(me);
            mem = 0; set = 0; waiters = 0; src = NONE; any = false; won = false
        };
        if
        :: impatient && stage == ARRIVED -> goto next
        :: true
        fi;
        wd = word;
        if
        :: stage == ARRIVED && TAG(wd) != tag -> goto ended
        :: stage == ARRIVED && TAG(wd) == tag -> goto lead
        :: stage == BEGUN && op == ELASTIC -> goto elastic
        :: stage == BEGUN && op != ELASTIC -> goto begun
        fi;

idle:   /* SHM_IDLE: shm_is_called */
        WAKE(me);
        wd = word;
        if
        :: PHASES(wd) -> goto not_called
        :: else
        fi;
        mem = members;
        if
        :: !(mem & BIT(me)) || arrived[me] == TAG(wd) -> goto not_called
        :: else
        fi;
        EACH(CALLS);
        EACH(WAITS);
not_called:
        mem = 0;
end_idle:
        if
        :: rung & BIT(me) -> goto idle
        fi;
is_called:
        op = MEAN;
        goto begin;

elastic:    /* SHM_ELASTIC; shm_is_called where nothing is collective */
        if
        :: PHASES(wd) -> goto elastic_end
        :: else
        fi;
        if
        :: members & BIT(me) && arrived[me] != TAG(wd) ->
            if
            :: called == TAG(wd) -> goto begun
            :: else
            fi
        :: else
        fi;
elastic_end:
        assert(behind & BIT(me) || version[me] == latest);
        stage = IDLE;
        goto next;

begun:  /* shm_form */
        set = members;
        EACH(BURY);
        set = 0;
        if
        :: members -> goto joining
        :: else
        fi;
        EACH(IN_WAITING);
        if
        :: set ->
            waiters = set;
            set = 0;
            EACH(IN_FINISHED);                  /* shm_standby */
            set = set & (shows | holds);
            if
            :: set & ~members -> goto joining
            :: else
            fi;
            if
            :: !formed && ONES(waiters) < N -> goto joining
            :: else -> set = waiters
            fi
        :: else ->
            EACH(IN_FINISHED);
            EACH(IN_ALIVE);
            if
            :: set != mem -> goto joining
            :: else
            fi
        fi;
        if
        :: set ->
            d_step { won = !members; members = (won -> set : members) };
            changed_members();
            EACH(BURY)
        :: else
        fi;

joining:    /* begun: a look at the members; a joiner looks for a source */
        atomic { mem = members; set = 0; waiters = 0 };
        if
        :: life[me] != WAITING || (COLLECTIVE && mem && !(mem & BIT(me))) -> goto seated
        :: else
        fi;
        EACH(IN_MEMBER);                        /* shm_find_source */
        set = set & members & ~BIT(me);
        if
        :: set ->
            any = true;
            if
            :: PHASES(wd) -> goto seated
            :: else
            fi;
            EACH(SHOWS)
        :: else ->
            EACH(IN_FINISHED);                  /* shm_standby, find_shown */
            set = set & (shows | holds);
            set = set & ~members;
            any = set;
            set = set & shows;
            src = (set -> LOWEST(set) : NONE)
        fi;
        if
        :: src == NONE -> goto seated
        :: else
        fi;
        d_step {                                /* shm_pull: the part is out */
            assert(!(fresh & BIT(src)));
            assert(!LIVE || shows & BIT(src) || whole[src] == TAG(wd));
            pulled_word = wd;
            got = version[src];
            behind = (behind & BIT(src) -> behind | BIT(me) : behind);
            mem = 0; set = 0; any = false
        };
        WAKE(me);                               /* shm_pulled, in the next poll */
        if
        :: !ALIVE(src) -> goto again
        :: else
        fi;
        if
        :: COLLECTIVE && members & BIT(me)
        :: COLLECTIVE && !(members & BIT(me)) ->    /* shm_admit_first */
            d_step { won = !members; members = (won -> BIT(me) : members) };
            if
            :: !won -> goto again
            :: else -> changed_members()
            fi
        :: !COLLECTIVE ->
            waiters = BIT(me);
            EACH(ADMIT);
            waiters = 0;
#if BREAK != NO_PULLED_WORD
            if
            :: word != pulled_word -> goto again
            :: else
            fi
#endif
        fi;
        d_step { version[me] = got; fresh = fresh & ~BIT(me); got = 0; src = NONE; won = false };
        become(MEMBER);
        stage = IDLE;
        goto next;

seated: /* begun: others than members wait, and show what they have */
#if BREAK == NO_NEWCOMERS
        mem = members;                          /* a second look */
#endif
        set = 0;
        if
        :: mem & BIT(me) -> goto lead
        :: else
        fi;
        if
        :: holds & BIT(me) && !(PHASES(wd) && TAG(wd) == tag) ->    /* shm_show */
            EACH(IN_WAITING);
            if
            :: set ->
                d_step { shows = shows | BIT(me); holds = holds & ~BIT(me) };
                RING(ALL & ~BIT(me));
                goto again
            :: else
            fi
        :: else
        fi;
        goto sleep;

led_not:    /* shm_lead has moved nothing */
        if
        :: stage == ARRIVED -> goto following
        :: else
        fi;
        if                                      /* begun: the word once more */
        :: (any || PHASES(wd)) && BREAK != NO_PHASES ->
            if
            :: word != wd -> goto again
            :: word == wd -> goto sleep
            fi
        :: else -> if :: word != wd && BREAK != NO_PHASES -> goto again :: else fi
        fi;
        d_step { tag = TAG(wd); mem = 0; set = 0 };     /* arrive */
        if
        :: COLLECTIVE && op != FINAL ->         /* shm_admit_waiting */
            EACH(IN_WAITING);
            waiters = set & ~members;
            EACH(ADMIT);
            d_step { waiters = 0; set = 0; won = false }
        :: else
        fi;
        d_step {
            assert((fresh | behind) & BIT(me) || version[me] == latest);
            kind[me] = (op == STATE || op == ELASTIC -> op : MEAN);
            offered[me] = tag;
            part_out = false
        };
        if
        :: !LIVE || op == STATE -> whole[me] = tag
        :: else
        fi;
        if
        :: !COLLECTIVE && op == STATE -> called = tag
        :: else
        fi;
        arrived[me] = tag;
        stage = ARRIVED;
        mem = members;
        EACH(LATE);
#if BREAK != NO_RING
        RING((set | BIT(LOWEST(mem))) & ~BIT(me));
#endif
        goto again;

lead:   /* shm_lead */
        set = members;
        EACH(BURY);
        set = 0;
        if
        :: IS_REDUCE(wd) -> goto lead_reduce
        :: IS_CLOSING(wd) -> goto lead_closing
        :: else
        fi;
        mem = members;                          /* close_round */
        if
        :: !(mem & BIT(me)) || LOWEST(mem) != me -> goto led_not
        :: else
        fi;
#if BREAK != NO_FIRST_LOOK
        EACH(MISSING_FIRST);
#endif
#if BREAK != NO_CLOSING
        d_step { won = (word == wd); word = (won -> CLOSING(wd, me) : word) };
        if
        :: !won -> goto again
        :: else
        fi;
#else
        if
        :: word != wd -> goto again
        :: else
        fi;
#endif
#if BREAK != NO_SECOND_LOOK && BREAK != NO_CLOSING
        mem = members;
        if
        :: !(mem & BIT(me)) || LOWEST(mem) != me -> goto take_back
        :: else
        fi;
        EACH(MISSING_SECOND);
#endif
        d_step { rec_tag = 0; rec_group = mem };        /* write_record */
        d_step {                                /* rule, set_chunks */
            set = 0;
            EACH(OFFER);
            rec_kind = (src == NONE -> MEAN : STATE);
            rec_source = (src == NONE -> LOWEST(mem) : src);
            claim_tag = TAG(wd); done_tag = TAG(wd); done = 0;
            claim[0] = 0;
            claim[1] = CHUNKS / ONES(mem);
#if N > 2
            claim[2] = CHUNKS * 2 / ONES(mem);
#endif
            rec_tag = TAG(wd);
            any = any && src == NONE;           /* RULING_VOID */
            src = NONE
        };
#if BREAK != NO_NEWCOMERS
        set = 0;                                /* replaces_state */
        EACH(IN_WAITING);
        set = set & mem;
        if
        :: set && set != mem -> any = true
        :: set && set == mem ->
            set = 0;
            EACH(IN_FINISHED);
            set = set & (shows | holds);
            any = any || (set & ~members)
        :: else
        fi;
        set = 0;
#endif
        if
        :: any ->
            any = false;
            turn_word(CLOSING(wd, me), GATHER(TAG(wd) + 1, 0));
            goto again
        :: else
        fi;
        d_step {
            assert(rec_kind == MEAN || !(fresh & BIT(rec_source)) || (fresh | gone) == ALL);
            won = (word == (BREAK == NO_CLOSING -> wd : CLOSING(wd, me)));
            if
            :: won ->
                assert(!group_of[TAG(wd)]);
                group_of[TAG(wd)] = mem;
                word = REDUCE(TAG(wd))
            :: else
            fi;
            mem = 0
        };
        if
        :: won -> RING(ALL); goto again
        :: else -> goto led_not
        fi;
take_back:
        turn_word(CLOSING(wd, me), wd);
        goto again;

lead_closing:
#if BREAK != NO_UNDO
        if
        :: ALIVE(CLOSER(wd)) -> goto led_not
        :: else
        fi;
        turn_word(wd, UNDONE(wd));
        if
        :: won -> goto again
        :: else
        fi;
#endif
        goto led_not;

lead_reduce:    /* shm_lost_group */
#if BREAK != NO_FAILING
        atomic {
            assert(rec_tag == TAG(wd) || (word != wd && (rec_tag || DEATHS)));
            set = (rec_kind == MEAN -> rec_group : BIT(rec_source));
            if :: set & ~members -> won = true :: else -> won = false fi
        };
        if
        :: won -> goto lost
        :: else
        fi;
        EACH(LOST);
        set = 0;
        goto led_not;
lost:
        turn_word(wd, GATHER(TAG(wd) + 1, 0));
        set = 0;
        if
        :: won -> goto again
        :: else
        fi;
#endif
        goto led_not;

following:  /* arrived: by the phase */
        if
        :: IS_REDUCE(wd) ->
            assert(rec_tag == tag);
            if
            :: !(rec_group & BIT(me)) -> goto sleep
            :: rec_group & BIT(me) && rec_kind == STATE -> goto taking
            :: else -> goto reducing
            fi
        :: else
        fi;
        if
        :: LIVE && whole[me] != tag ->          /* gathering */
            set = 0;
            EACH(IN_WAITING);
            set = set & members;
            if
            :: set -> whole[me] = tag; RING(set); goto again
            :: else
            fi
        :: else
        fi;
        goto sleep;

taking: /* shm_take_state */
        if
        :: !part_out && !(abandoned && rec_source != me) ->
            d_step { assert(rec_tag == tag && offered[rec_source] == tag); part_out = true };
            goto again
        :: else
        fi;
#if BREAK != LOOK_FIRST
        pulled[me] = tag;                       /* say_pulled */
#endif
        if
        :: pulled[rec_source] != tag && !(BREAK == LOOK_FIRST && rec_source == me) ->
            pulled[me] = tag;
            goto sleep
        :: else
        fi;
        set = rec_group & members;
#if BREAK == LOOK_FIRST
        set = set & ~BIT(me);
#endif
        EACH(PULLS);
        pulled[me] = tag;
        commit();
        goto sleep;

reducing:   /* shm_reduce; shm_reduce_slices of an exchange that was given up */
        if
        :: LIVE && abandoned -> turn_word(wd, GATHER(TAG(wd) + 1, 0)); goto again
        :: else
        fi;
        EACH(CLAIM);
        if
        :: chunk == NONE -> goto sleep
        :: else
        fi;
#if BREAK == COUNT_FIRST
        t = chunk;
#else
        d_step {                                /* shm_mean_chunk */
            assert(TAG(word) == tag || (TAG(word) == tag + 1 && !IS_REDUCE(word)));
            result[chunk] = tag
        };
#endif
        d_step {                                /* shm_count_chunks */
            chunk = NONE;
            if
            :: done_tag == tag -> done++; won = (done == CHUNKS)
            :: else -> won = false
            fi
        };
        if
        :: won -> commit()
        :: else
        fi;
#if BREAK == COUNT_FIRST
        result[t] = tag;
        t = 0;
#endif
        goto again;

ended:
        if
        :: TAG(wd) == tag + 1 && IS_OK(wd) && !abandoned -> goto committed
        :: else
        fi;
        d_step {                                /* shm_left_group */
            assert(rec_tag == tag);
            version[me] = (IS_OK(wd) -> tag : version[me]);
            abandoned = false;
            stage = BEGUN
        };
        goto again;
committed:
        atomic {
            assert(rec_tag == tag && rec_group == group_of[tag]);
            assert(rec_kind == STATE || (result[0] == tag && result[1] == tag));
            t = (rec_kind == STATE)
        };
        if
        :: t && life[me] == WAITING -> become(MEMBER)
        :: t && life[me] != WAITING
        :: !t ->                                /* SHM_DONE: the part is out */
            assert(rec_tag == tag && result[0] == tag && result[1] == tag)
        fi;
        d_step { t = 0; version[me] = tag; part_out = false; stage = IDLE };
        goto next;

retire:
        if
        :: life[me] == MEMBER && LIVE -> holds = holds | BIT(me)
        :: life[me] == MEMBER && !LIVE -> shows = shows | BIT(me)
        :: else
        fi;
        d_step {
            behind = behind | BIT(me);
            arrived[me] = (BREAK == KEEP_ARRIVAL -> arrived[me] : 0);
            abandoned = false;
            impatient = false;
            stage = BEGUN
        };
        become(FINISHED);
        members = members & ~BIT(me);
        RING(ALL);
        goto again;

leave:  /* meet_fini */
        atomic { members = members & ~BIT(me); gone = gone | BIT(me) };
        life[me] = DEAD;
        RING(ALL)
    } unless {
        d_step {
            killed & BIT(me) ->
            op = 0; stage = 0; tag = 0; mem = 0; set = 0; waiters = 0; src = 0; chunk = 0; t = 0;
            got = 0; wd = 0; pulled_word = 0; won = 0; any = 0; abandoned = 0; part_out = 0;
            impatient = 0; todo = 0
        }
    }
}

/* A death, and the doormen of the living: slot_bury. */
proctype death()
{
    byte s;

    if
    :: formed && !(gone & 1) -> d_step { gone = gone | 1; killed = killed | 1; s = 0 }
    :: formed && !(gone & 2) -> d_step { gone = gone | 2; killed = killed | 2; s = 1 }
#if N > 2
    :: formed && !(gone & 4) -> d_step { gone = gone | 4; killed = killed | 4; s = 2 }
#endif
    :: true -> goto nobody
    fi;
    life[s] = DEAD;
    members = members & ~BIT(s);
    RING(ALL);
nobody:
    s = 0
}

init
{
    byte s;

    atomic {
        do
        :: s < N ->
            life[s] = (members & BIT(s) -> MEMBER : JOINED);
            version[s] = (members & BIT(s) -> latest : 0);
            s++
        :: else -> break
        od;
        run trainer(0, PROGRAM(0));
        run trainer(1, PROGRAM(1));
#if N > 2
        run trainer(2, PROGRAM(2));
#endif
        s = 0;
        do
        :: s < DEATHS -> run death(); s++
        :: else -> break
        od;
        s = 0
    }
}
