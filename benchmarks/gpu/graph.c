/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Can stream writes and waits be captured, and does a replay do them again? Two ranks, each with a
 * graph that is replayed many times. A graph has constants only, so a word is set to 1 by the other
 * rank and back to 0 by who waited for it. The first replay of rank 0 is launched alone: it has to
 * wait, as the captured stream would.
 */
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TURN_WORD 5
#define REPLAYS   200

static enum shc_status step(const struct lab *lab)
{
    const shc_cu_address own = lab_word(lab, lab->rank, TURN_WORD);
    const shc_cu_address other = lab_word(lab, 1 - lab->rank, TURN_WORD);
    if (lab->rank == 0)
        SHC_TRY(lab_write(lab, lab->stream, other, 1));
    SHC_TRY(lab_wait(lab, lab->stream, own, 1));
    SHC_TRY(lab_write(lab, lab->stream, own, 0));
    if (lab->rank != 0)
        SHC_TRY(lab_write(lab, lab->stream, other, 1));
    return SHC_OK;
}

/* Says in `why` what the driver refuses. */
static enum shc_status capture(struct lab *lab, struct shc_cu_graph_exec **exec, char *why)
{
    const struct extras *extras = &lab->extras;
    struct shc_cu_graph *graph = NULL;
    enum shc_status st = lab_cu(lab, extras->begin_capture(lab->stream, EXTRA_CAPTURE_RELAXED),
                                "cuStreamBeginCapture");
    if (st == SHC_OK) {
        st = step(lab);
        if (st != SHC_OK)
            snprintf(why, SEAT_BYTES, "in the capture: %.500s", shc_cuda_failure());
        const int result = extras->end_capture(lab->stream, &graph);
        if (st == SHC_OK)
            st = lab_cu(lab, result, "cuStreamEndCapture");
    }
    if (st == SHC_OK) {
        st = lab_cu(lab, extras->instantiate(exec, graph, 0), "cuGraphInstantiateWithFlags");
        (void)extras->destroy_graph(graph);
    }
    if (st != SHC_OK && why[0] == '\0')
        snprintf(why, SEAT_BYTES, "%.500s", shc_cuda_failure());
    return SHC_OK;
}

/* Rank 0's first replay waits for rank 1's, which comes later. */
static enum shc_status first_replay(struct lab *lab, struct shc_cu_graph_exec *exec, bool *waits)
{
    bool idle;
    if (lab->rank == 0) {
        SHC_TRY(lab_cu(lab, lab->extras.launch(exec, lab->stream), "cuGraphLaunch"));
        SHC_TRY(lab_idle(lab, lab->stream, 20 * SHC_NS_PER_MS, &idle));
        *waits = !idle;
    }
    SHC_TRY(lab_meet(lab));
    if (lab->rank != 0)
        SHC_TRY(lab_cu(lab, lab->extras.launch(exec, lab->stream), "cuGraphLaunch"));
    return lab_drain(lab, lab->stream);
}

/* us: of one replay, which is two hops. */
static enum shc_status replay(struct lab *lab, struct shc_cu_graph_exec *exec, int replays,
                              double *us)
{
    SHC_TRY(lab_meet(lab));
    const uint64_t begun_ns = shc_clock_ns();
    for (int i = 0; i < replays; i++) {
        if (lab_stopped(lab))
            return shc_cuda_fail(SHC_ERR_ABORTED, "stopped");
        SHC_TRY(lab_cu(lab, lab->extras.launch(exec, lab->stream), "cuGraphLaunch"));
    }
    SHC_TRY(lab_drain(lab, lab->stream));
    *us = NS_TO_US(shc_clock_ns() - begun_ns) / replays;
    return SHC_OK;
}

static void report(const struct lab *lab, const char *outcome, double us, const char *why)
{
    struct line line;
    if (lab->rank != 0)
        return;
    lab_line(lab, &line);
    line_text(&line, "outcome", outcome);
    line_number(&line, "replay_us", us);
    line_text(&line, "reason", why);
    line_end(&line);
}

static enum shc_status use_graphs(struct lab *lab)
{
    struct shc_cu_graph_exec *exec = NULL;
    char *own = lab->board->seats[lab->rank].text;
    double us = NAN;
    bool waits = false;
    own[0] = '\0';
    SHC_TRY(capture(lab, &exec, own));
    SHC_TRY(lab_meet(lab));
    const char *why =
        lab->board->seats[0].text[0] ? lab->board->seats[0].text : lab->board->seats[1].text;
    if (why[0] == '\0') {
        SHC_TRY(first_replay(lab, exec, &waits));
        SHC_TRY(replay(lab, exec, REPLAYS, &us));
    }
    if (exec != NULL)
        (void)lab->extras.destroy_exec(exec);
    SHC_TRY(lab_meet(lab));
    report(lab, why[0] ? "refused" : waits ? "replayed" : "DID NOT WAIT", us, why);
    return SHC_OK;
}

static enum shc_status graphs(struct lab *lab)
{
    if (!extras_have_graphs(&lab->extras)) {
        report(lab, "absent", NAN, "the driver has no functions for graphs");
        return lab_meet(lab);
    }
    SHC_TRY(lab_slabs(lab, MIB));
    SHC_TRY(use_graphs(lab));
    SHC_TRY(lab_meet(lab));
    return lab_slabs_undo(lab);
}

int experiment_graph(const struct options *options)
{
    struct job job = {.experiment = "graph", .body = graphs, .world = 2};
    return job_run(options, &job);
}
