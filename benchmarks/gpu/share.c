/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Do slabs work between processes, by each of the two kinds? Every rank fills its slab, reads all
 * others', writes half of its neighbour's, and looks what came into its own. Then the library makes
 * its own choice.
 */
#include "cuda_ipc/share.h"
#include "cuda_ipc/cuda_error.h"
#include "experiments.h"
#include "lab.h"

#include <stdlib.h>

static unsigned char pattern(int writer, size_t at)
{
    return (unsigned char)((size_t)(writer * 37 + 11) + at * 7 + (at >> 8));
}

static size_t count_wrong(const unsigned char *memory, size_t bytes, int writer, size_t from)
{
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += memory[i] != pattern(writer, from + i);
    return wrong;
}

static enum shc_status move(const struct lab *lab, shc_cu_address to, shc_cu_address from,
                            size_t bytes)
{
    SHC_TRY(lab_copy(lab, lab->stream, to, from, bytes));
    return lab_drain(lab, lab->stream);
}

static enum shc_status check_data(struct lab *lab, size_t bytes, size_t *wrong)
{
    const int next = (lab->rank + 1) % lab->world;
    const int before = (lab->rank + lab->world - 1) % lab->world;
    const size_t half = bytes / 2;
    struct lab_pinned host;
    SHC_TRY(lab_pinned_make(lab, bytes, &host));
    for (size_t i = 0; i < bytes; i++)
        host.memory[i] = pattern(lab->rank, i);
    SHC_TRY(move(lab, lab_data(lab, lab->rank), host.address, bytes));
    SHC_TRY(lab_meet(lab));
    *wrong = 0;
    for (int r = 0; r < lab->world; r++) {
        SHC_TRY(move(lab, host.address, lab_data(lab, r), bytes));
        *wrong += count_wrong(host.memory, bytes, r, 0);
    }
    SHC_TRY(lab_meet(lab)); /* all have read */
    for (size_t i = 0; i < half; i++)
        host.memory[i] = pattern(lab->rank, i + 1);
    SHC_TRY(move(lab, lab_data(lab, next) + half, host.address, half));
    SHC_TRY(lab_meet(lab));
    SHC_TRY(move(lab, host.address, lab_data(lab, lab->rank), bytes));
    *wrong += count_wrong(host.memory, half, lab->rank, 0);
    *wrong += count_wrong(host.memory + half, half, before, 1);
    lab_pinned_free(lab, &host);
    return SHC_OK;
}

static enum shc_status try_kind(struct lab *lab, enum shc_slab_kind kind)
{
    const size_t bytes = lab->options->small ? MIB / 4 : 64 * MIB;
    char why[SEAT_BYTES];
    size_t wrong = 0;
    const uint64_t begun_ns = shc_clock_ns();
    SHC_TRY(lab_slabs_try(lab, kind, bytes, why));
    const double made_ms = NS_TO_US(shc_clock_ns() - begun_ns) / 1e3;
    if (why[0] == '\0') {
        SHC_TRY(check_data(lab, bytes, &wrong));
        lab->board->seats[lab->rank].numbers[0] = (double)wrong;
        SHC_TRY(lab_meet(lab));
        SHC_TRY(lab_slabs_undo(lab));
    }
    if (lab->rank != 0)
        return SHC_OK;
    double all = 0;
    for (int r = 0; r < lab->world; r++)
        all += why[0] == '\0' ? lab->board->seats[r].numbers[0] : 0;
    struct line line;
    lab_line(lab, &line);
    line_text(&line, "kind", shc_slab_kind_name(kind));
    line_text(&line, "outcome", why[0] ? "refused" : all > 0 ? "WRONG DATA" : "right");
    line_number(&line, "wrong_bytes", all);
    line_number(&line, "made_ms", made_ms);
    line_text(&line, "reason", why);
    line_end(&line);
    return SHC_OK;
}

static enum shc_status let_library_choose(struct lab *lab)
{
    struct shc_share *share = calloc(1, sizeof *share);
    if (share == NULL)
        return shc_cuda_fail(SHC_ERR_NOMEM, "no memory");
    const enum shc_status st =
        shc_share_make(&lab->control, &lab->gpu, MIB, lab->deadline_ns, NULL, share);
    if (st == SHC_OK && lab->rank == 0) {
        struct line line;
        lab_line(lab, &line);
        line_text(&line, "chosen", shc_slab_kind_name(share->kind));
        line_text(&line, "without_fd", share->reasons[SHC_SLAB_FD]);
        line_text(&line, "without_legacy", share->reasons[SHC_SLAB_LEGACY]);
        line_end(&line);
    }
    if (st == SHC_OK)
        SHC_TRY(lab_meet(lab));
    shc_share_undo(share);
    free(share);
    return st;
}

static enum shc_status share(struct lab *lab)
{
    SHC_TRY(try_kind(lab, SHC_SLAB_FD));
    SHC_TRY(try_kind(lab, SHC_SLAB_LEGACY));
    return let_library_choose(lab);
}

int experiment_share(const struct options *options)
{
    struct job job = {.experiment = "share", .body = share};
    return job_run_worlds(options, &job);
}
