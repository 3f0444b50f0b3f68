/* SPDX-License-Identifier: BSD-3-Clause */
#include "processes.h"
#include "lab.h"
#include "line.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_NS   SHC_NS_PER_MS
#define BURIAL_NS (10 * SHC_NS_PER_S) /* for a killed process to go */

/* The coordinator's view. */
struct watch {
    struct board *board;
    const struct job *job;
    int count, alive;
    pid_t pids[RANKS_MAX]; /* 0: gone */
    char failure[SEAT_BYTES];
};

static struct board *current_board; /* for the signal's handler */
static shc_a32 told_to_end;         /* the whole program, not this board's ranks alone */

static void on_signal(int signal)
{
    (void)signal;
    /* relaxed: read by this thread. */
    shc_a32_store_relaxed(&told_to_end, 1);
    if (current_board != NULL)
        /* release experiments/stop -> acquire in stopped(): nothing but the order to end. */
        shc_a32_store_release(&current_board->stop, 1);
}

/* From the first group of processes on. */
static void hear_signals(void)
{
    const struct sigaction told = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &told, NULL);
    sigaction(SIGINT, &told, NULL);
}

static bool stopped(struct board *board)
{
    /* acquire experiments/stop <- release in on_signal() and in lab_main(). */
    return shc_a32_load_acquire(&board->stop) != 0;
}

static void *share_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void complain(struct watch *watch, const char *format, int rank, int what)
{
    if (watch->failure[0] == '\0')
        snprintf(watch->failure, sizeof watch->failure, format, rank, what);
    /* release experiments/stop -> acquire in stopped(): as in on_signal(). */
    shc_a32_store_release(&watch->board->stop, 1);
}

/* What the end of a rank means. */
static void judge(struct watch *watch, int rank, int status)
{
    const bool dies = watch->job->first_one_dies && rank == 0;
    const char *said = watch->board->seats[rank].failure;
    if (WIFSIGNALED(status)) {
        if (!dies || WTERMSIG(status) != SIGKILL)
            complain(watch, "rank %d was ended by signal %d", rank, WTERMSIG(status));
    } else if (said[0] != '\0' && (watch->failure[0] == '\0' || WEXITSTATUS(status) == RANK_LEFT)) {
        snprintf(watch->failure, sizeof watch->failure, "rank %d: %.560s", rank, said);
    } else if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != RANK_STOPPED) {
        complain(watch, "rank %d ended with status %d", rank, WEXITSTATUS(status));
    }
}

static void look(struct watch *watch)
{
    for (int r = 0; r < watch->count; r++) {
        int status;
        if (watch->pids[r] == 0 || waitpid(watch->pids[r], &status, WNOHANG) != watch->pids[r])
            continue;
        watch->pids[r] = 0;
        watch->alive--;
        /* release experiments/gone -> acquire in await_death(): nothing but the time. */
        shc_a64_store_release(&watch->board->seats[r].gone_ns, shc_clock_ns());
        judge(watch, r, status);
    }
}

static void kill_all(const struct watch *watch)
{
    for (int r = 0; r < watch->count; r++)
        if (watch->pids[r] != 0)
            kill(watch->pids[r], SIGKILL);
}

/* Until all have ended, one way or another. */
static void see_through(struct watch *watch, uint64_t limit_ns)
{
    uint64_t end_ns = shc_clock_ns() + limit_ns + GRACE_NS;
    bool told = false, killed = false;
    while (watch->alive > 0) {
        const struct timespec pause = {0, (long)LOOK_NS};
        look(watch);
        if (stopped(watch->board) && !told) {
            told = true;
            end_ns = shc_clock_ns() + GRACE_NS + 2 * SHC_NS_PER_S;
        }
        if (shc_clock_ns() > end_ns && killed) {
            for (int r = 0; r < watch->count; r++)
                if (watch->pids[r] != 0)
                    complain(watch, "rank %d CANNOT BE ENDED: process %d", r, watch->pids[r]);
            return;
        }
        if (shc_clock_ns() > end_ns) {
            kill_all(watch);
            complain(watch, "rank %d or another had to be killed, %d left", 0, watch->alive);
            killed = true;
            end_ns = shc_clock_ns() + BURIAL_NS;
        }
        nanosleep(&pause, NULL);
    }
}

static void start(struct watch *watch, const struct options *options, const struct job *job)
{
    fflush(stdout);
    for (int r = 0; r < watch->count; r++) {
        const pid_t pid = fork();
        if (pid == 0)
            _exit(lab_main(options, job, watch->board, r));
        if (pid < 0) {
            complain(watch, "rank %d: no process, %d are there", r, r);
            return;
        }
        watch->pids[r] = pid;
        watch->alive++;
    }
}

static void free_memory(struct board *board, struct job *job)
{
    if (board != NULL)
        munmap(board, sizeof *board);
    if (job->region != NULL)
        munmap(job->region, job->region_bytes);
    job->region = NULL;
}

int job_run(const struct options *options, struct job *job)
{
    struct watch watch = {.job = job, .count = job->world + job->busy};
    watch.board = share_memory(sizeof *watch.board);
    job->region = job->region_bytes ? share_memory(job->region_bytes) : NULL;
    if (watch.board == NULL || (job->region_bytes && job->region == NULL)) {
        fprintf(stderr, "%s: no shared memory\n", job->experiment);
        free_memory(watch.board, job);
        return 1;
    }
    current_board = watch.board;
    hear_signals();
    /* relaxed: this thread's own handler writes it. */
    if (shc_a32_load_relaxed(&told_to_end) != 0)
        shc_a32_store_release(&watch.board->stop, 1); /* experiments/stop: nobody is there yet */
    else
        start(&watch, options, job);
    see_through(&watch, options->limit_ns);
    current_board = NULL;
    if (watch.failure[0] == '\0' && stopped(watch.board))
        snprintf(watch.failure, sizeof watch.failure, "stopped from outside");
    if (watch.failure[0] != '\0') {
        struct line line;
        line_begin(&line, options->json, job->experiment);
        line_number(&line, "ranks", job->world);
        line_text(&line, "failed", watch.failure);
        line_end(&line);
    }
    if (watch.alive == 0) /* else somebody may still look at it */
        free_memory(watch.board, job);
    return watch.failure[0] != '\0';
}

int job_run_worlds(const struct options *options, struct job *job)
{
    int failed = 0;
    for (int i = 0; i < options->world_count; i++) {
        job->world = options->worlds[i];
        failed |= job_run(options, job);
    }
    return failed;
}
