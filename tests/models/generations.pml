/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Generations: ranks that begin again on the same store find one another, and a rank that comes to
 * a generation that has failed without it fails with it.
 *
 * Mirrors take_generation() and the decision of src/shm/comm/rendezvous.c, and what lookout.c does with
 * a join record; docs/internals/protocol.md, RDV-3 to RDV-6 and RDV-15. A rank has one join record,
 * which it writes again in each generation. There are three ranks. Either each calls once, and one may
 * give up at any time: then all end, with the same outcome. Or each calls until it has a group, and one
 * rank may die at any step, once, and come back with a new life: then all end in the same generation,
 * after few calls. An attempt is an offer and one verdict per rank: bootstrap.pml has it in full. (Rank
 * 0's end of the generation before only makes what the others find in its join record known sooner.) The
 * deadline passes only for ranks that wait for a rank which died before its join record. That rank is not rank
 * 0, whose new life decides for them.
 *
 * FAULT_one_generation      the keys carry no generation
 * FAULT_goes_on             a call whose generation has failed without it takes the next
 * FAULT_deaths_ignored      no rank looks at the others' processes
 * FAULT_later_ignored       a join record of a later generation has no effect
 */

#define RANKS 3
#define LIMIT 4 /* calls of one life, and generations: more than enough */

mtype = { NOTHING, OK, FAILED };

/* The store. */
byte begun[RANKS]; /* n/<rank> */
mtype decision[LIMIT + 2] = NOTHING;
bool offer[LIMIT + 2];
byte joined[RANKS];      /* the life that put it; 0: none */
byte joined_in[RANKS];   /* the generation that it is in */
byte verdict[(LIMIT + 2) * RANKS]; /* the same */

#define KEY(rank) ((generation) * RANKS + (rank))

byte life[RANKS];  /* 1, or 2 for a rank that has come back */
bool retrying;     /* all call until they have a group */
byte victim;       /* RANKS: nobody */
byte impatient;    /* RANKS: nobody */
bool killed, dead; /* `dead`: the first life of the victim is over ... */
byte silent;       /* ... and it was in this generation, before its join record */
byte outcome[RANKS]; /* 1 + the generation of the group, or 1: failed */

/* shc_rendezvous_decide(): put_first */
inline decide(g, wish)
{
    atomic {
        if
        :: decision[g] == NOTHING -> decision[g] = wish
        :: else
        fi
    }
}

inline look_for_later()
{
    later = false;
    for (turn : 0 .. RANKS - 1) {
        later = later || begun[turn] > generation
    }
    turn = 0
}

/* Ends with `failed`, or in a generation that is open. */
inline take_generation()
{
    failed = false;
    do
    :: atomic {
#ifdef FAULT_one_generation
            begun[me] = 1;
#else
            begun[me]++;
#endif
            generation = begun[me];
            assert(generation <= LIMIT)
        };
        if
        :: decision[generation] == NOTHING -> break
        :: else ->
            look_for_later();
#ifndef FAULT_goes_on
            if
            :: decision[generation] == FAILED && !later -> failed = true; break
            :: else
            fi
#endif
        fi
    od;
    if
    :: me == 0 && !failed && generation > 1 -> decide(generation - 1, FAILED)
    :: else
    fi
}

#ifdef FAULT_deaths_ignored
#define GONE(rank) false
#else
#ifdef FAULT_later_ignored
#define LATER(rank) false
#else
#define LATER(rank) (joined_in[rank] > generation)
#endif
#define GONE(rank) ((joined_in[rank] == generation && joined[rank] < life[rank]) || LATER(rank))
#endif

/* look_at_ranks(), look_at_clock(), an interrupt */
#define NEWS \
    (GONE(0) || GONE(1) || GONE(2) || impatient == me || \
     (silent == generation && victim != 0 && timeout))

#define ALL_GIVEN (verdict[KEY(1)] != 0 && verdict[KEY(2)] != 0)

/* lead() and follow(): until the generation is decided. */
inline attempt()
{
    atomic { joined[me] = life[me]; joined_in[me] = generation };
    if
    :: me == 0 ->
        offer[generation] = true;
        if
        :: ALL_GIVEN -> decide(generation, OK)
        :: !ALL_GIVEN && decision[generation] != NOTHING
        :: !ALL_GIVEN && decision[generation] == NOTHING && NEWS -> decide(generation, FAILED)
        fi
    :: me != 0 ->
        if
        :: offer[generation] && decision[generation] == NOTHING -> verdict[KEY(me)] = life[me]
        :: decision[generation] != NOTHING
        :: decision[generation] == NOTHING && NEWS -> decide(generation, FAILED)
        fi;
        if
        :: decision[generation] != NOTHING
        :: decision[generation] == NOTHING && NEWS -> decide(generation, FAILED)
        fi
    fi;
    failed = decision[generation] == FAILED
}

/* A group with a dead member is of no use: its ranks call again. */
#define MEMBER_DIED \
    (dead && (joined_in[victim] != generation || joined[victim] < life[victim]))
#define ALL_HAVE    (outcome[0] > 1 && outcome[0] == outcome[1] && outcome[1] == outcome[2])

proctype Rank(byte me)
{
    byte generation, turn, calls;
    bool failed, later;
again:
    {
        do
        :: calls++;
            assert(calls <= LIMIT);
            take_generation();
            if
            :: !failed -> attempt()
            :: else
            fi;
            if
            :: failed && retrying
            :: failed && !retrying -> outcome[me] = 1; break
            :: !failed ->
                outcome[me] = generation + 1;
                if
                :: !retrying -> break
                :: retrying && ALL_HAVE -> break
                :: retrying && MEMBER_DIED -> outcome[me] = 0
                fi
            fi
        od
    } unless {
        atomic {
            me == victim && killed && !dead && !ALL_HAVE ->
            dead = true;
            silent = (joined_in[me] != generation -> generation : 0);
            life[me] = 2;
            outcome[me] = 0;
            generation = 0;
            turn = 0;
            calls = 0;
            failed = false;
            later = false
        };
        goto again
    }
}

active proctype Killer()
{
    if
    :: victim < RANKS -> killed = true
    :: true
    fi
}

#define ENDED (outcome[0] != 0 && outcome[1] != 0 && outcome[2] != 0)

active proctype Judge()
{
end:
    ENDED && !retrying;
    assert(outcome[0] == outcome[1] && outcome[1] == outcome[2])
}

init
{
    atomic {
        life[0] = 1;
        life[1] = 1;
        life[2] = 1;
        victim = RANKS;
        impatient = RANKS;
        if
        :: select(impatient : 0 .. RANKS)
        :: retrying = true; select(victim : 0 .. RANKS)
        fi;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
