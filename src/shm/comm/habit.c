/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether engine threads nap: depends on how soon small requests are waited for (engine.h). */
#include "shm/comm/engine.h"

#include "shm/comm/request.h"

#define HASTY_NS   (50 * SHC_NS_PER_US)
#define LATE_NS    (200 * SHC_NS_PER_US)
#define LAST_HABIT 128u /* that many wake-ups take as long as two naps */
#define PROVEN     64u  /* if that many follow, half as many suffice the next time */

bool shc_engine_has_habit(const struct shc_engine *engine)
{
    /* relaxed: hints, like everything that decides about naps. */
    return shc_a32_load_relaxed(&engine->hasty) >= shc_a32_load_relaxed(&engine->habit);
}

void shc_engine_not_awaited(struct shc_engine *engine)
{
    if (shc_engine_has_habit(engine)) {
        /* relaxed: a hint. */
        const uint32_t habit = shc_a32_load_relaxed(&engine->habit);
        /* relaxed: a hint. */
        shc_a32_store_relaxed(&engine->habit, habit < LAST_HABIT ? 2 * habit : habit);
    }
    /* relaxed: a hint. */
    shc_a32_store_relaxed(&engine->hasty, 0);
}

/* A thread that waits for a request so soon does nothing else meanwhile. */
static void note_wait(struct shc_engine *engine, uint64_t after_ns)
{
    if (after_ns >= LATE_NS) {
        shc_engine_not_awaited(engine);
    } else if (after_ns >= HASTY_NS) {
        /* relaxed: a hint. */
        shc_a32_store_relaxed(&engine->hasty, 0);
    } else {
        /* relaxed: a hint; if two threads wait at once, one more or less does not matter. */
        const uint32_t hasty = shc_a32_load_relaxed(&engine->hasty) + 1;
        /* relaxed: a hint. */
        const uint32_t habit = shc_a32_load_relaxed(&engine->habit);
        const bool proven = hasty >= habit + PROVEN;
        /* relaxed: a hint; it need not grow for ever. */
        shc_a32_store_relaxed(&engine->hasty, proven ? habit : hasty);
        if (proven && habit > SHC_FIRST_HABIT) {
            /* relaxed: a hint. */
            shc_a32_store_relaxed(&engine->habit, habit / 2);
        }
    }
}

void shc_engine_awaited(struct shc_engine *engine, struct shc_request *request)
{
    /* relaxed: of this request's waiters, one more or less does not matter. */
    if (request->submitted_ns == 0 || shc_a32_load_relaxed(&request->awaited))
        return;
    /* relaxed: a hint. */
    shc_a32_store_relaxed(&request->awaited, 1);
    note_wait(engine, shc_clock_ns() - request->submitted_ns);
}
