/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/proto/cpu_sharing.h"

#include "shm/base/clock.h"
#include "shm/os/os.h"

#define TAKEN_NS       (2 * SHC_NS_PER_US) /* a yield that no thread uses is shorter */
#define TAKEN_YIELDS   3
#define KEPT_NS        (500 * SHC_NS_PER_US) /* a yield whose time slice is kept takes longer */
#define BUSY_NS        (30 * SHC_NS_PER_MS)
#define LEAST_SPELL    1024 /* waits that sleep after the second kept yield in a row, */
#define MOST_SPELL     16384
#define LONGER         4    /* times as many after each further one */
#define CALM_YIELDS    2048 /* and no more after so many that were not kept */
#define LEAST_PAUSE_NS (4 * SHC_NS_PER_MS)
#define MOST_PAUSE_NS  (32 * SHC_NS_PER_MS)
#define LOOK_PART      20           /* of the time may go into looks, */
#define LONG_PAUSE_NS  SHC_NS_PER_S /* but this rank may have been away in the middle of one */

/* All that is known here are hints, of this process alone. */
static uint32_t hint(const shc_a32 *word)
{
    /* relaxed: nothing is read after it. */
    return shc_a32_load_relaxed(word);
}

static void set_hint(shc_a32 *word, uint32_t value)
{
    /* relaxed: nothing is published by it. */
    shc_a32_store_relaxed(word, value);
}

static uint64_t time_hint(const shc_a64 *word)
{
    /* relaxed: nothing is read after it. */
    return shc_a64_load_relaxed(word);
}

static void set_time_hint(shc_a64 *word, uint64_t ns)
{
    /* relaxed: nothing is published by it. */
    shc_a64_store_relaxed(word, ns);
}

/*
 * A thread that computes gets milliseconds from each yield. Time alone does not tell how long it stays: the 30 ms may
 * pass while this group waits for nothing, and the next wait would give the thread another time slice. So from the
 * second kept yield on the waits are counted, too. They are not with more ranks than CPUs: there the thread may be
 * another rank, and ranks hand the CPU on by yields.
 */
static void note_kept(struct shc_cpu_sharing *sharing, uint64_t now_ns)
{
    const bool again =
        sharing->room && time_hint(&sharing->busy_ns) != 0 && hint(&sharing->calm) < CALM_YIELDS;
    uint32_t spell = again ? hint(&sharing->spell) * LONGER : 0;
    if (again && spell == 0)
        spell = LEAST_SPELL;
    spell = spell > MOST_SPELL ? MOST_SPELL : spell;
    set_hint(&sharing->spell, spell);
    set_hint(&sharing->sleeps, spell);
    set_hint(&sharing->calm, 0);
    set_time_hint(&sharing->busy_ns, now_ns + BUSY_NS);
}

static void note_calm(struct shc_cpu_sharing *sharing)
{
    const uint32_t calm = hint(&sharing->calm);
    if (calm < CALM_YIELDS)
        set_hint(&sharing->calm, calm + 1);
}

bool shc_cpu_sharing_note_yield(struct shc_cpu_sharing *sharing, uint64_t now_ns, uint64_t took_ns)
{
    const uint32_t taken = took_ns < TAKEN_NS ? 0 : hint(&sharing->taken) + 1;
    set_hint(&sharing->taken, taken);
    if (took_ns >= KEPT_NS)
        note_kept(sharing, now_ns);
    else
        note_calm(sharing);
    const bool again = now_ns >= time_hint(&sharing->again_ns);
    return again && (taken >= TAKEN_YIELDS || took_ns >= KEPT_NS);
}

void shc_cpu_sharing_note_look(struct shc_cpu_sharing *sharing, uint64_t now_ns, uint64_t took_ns,
                               bool migrated)
{
    uint64_t pause_ns = migrated ? 0 : 2 * time_hint(&sharing->pause_ns);
    pause_ns = pause_ns < LEAST_PAUSE_NS ? LEAST_PAUSE_NS : pause_ns;
    pause_ns = pause_ns > MOST_PAUSE_NS ? MOST_PAUSE_NS : pause_ns;
    const uint64_t part_ns = took_ns * LOOK_PART;
    if (pause_ns < part_ns)
        pause_ns = part_ns < LONG_PAUSE_NS ? part_ns : LONG_PAUSE_NS;
    set_time_hint(&sharing->pause_ns, migrated ? 0 : pause_ns);
    set_time_hint(&sharing->again_ns, now_ns + pause_ns);
    set_hint(&sharing->taken, 0);
    if (!migrated)
        return;
    set_time_hint(&sharing->busy_ns, 0);
    set_hint(&sharing->sleeps, 0);
    set_hint(&sharing->migrations, hint(&sharing->migrations) + 1);
}

bool shc_cpu_sharing_yield(struct shc_cpu_sharing *sharing, uint64_t *now_ns)
{
    const uint64_t before_ns = shc_clock_ns();
    shc_os_thread_yield();
    *now_ns = shc_clock_ns();
    return shc_cpu_sharing_note_yield(sharing, *now_ns, *now_ns - before_ns);
}

void shc_cpu_sharing_look(struct shc_cpu_sharing *sharing, const struct shc_seat *seat,
                          uint64_t *now_ns)
{
    const uint64_t begun_ns = shc_clock_ns();
    const bool migrated = sharing->migrate(seat);
    *now_ns = shc_clock_ns();
    shc_cpu_sharing_note_look(sharing, *now_ns, *now_ns - begun_ns, migrated);
}

bool shc_cpu_sharing_wants_sleep(struct shc_cpu_sharing *sharing, uint64_t now_ns)
{
    const uint32_t sleeps = hint(&sharing->sleeps);
    if (sleeps != 0)
        set_hint(&sharing->sleeps, sleeps - 1);
    return sleeps != 0 || now_ns < time_hint(&sharing->busy_ns);
}
