/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/control.h"
#include "cuda_ipc/cuda_error.h"
#include "shm/base/clock.h"
#include "shm/base/num.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* A waiting meeting looks again after this time, for a peer that cannot wake it: a full queue. */
#define LOOK_AGAIN_NS (10 * SHC_NS_PER_MS)

/* The first message of a rank that connects. */
struct handshake {
    uint64_t secret[2]; /* of the rank it connects to */
    uint32_t from;
    uint32_t world;
};

enum shc_status shc_control_open(int rank, int world, struct shc_control *control)
{
    struct shc_control opened;
    memset(&opened, 0, sizeof opened);
    opened.rank = rank;
    opened.world = world;
    opened.self.pid = shc_sys_pid();
    opened.self.uid = shc_sys_uid();
    for (int r = 0; r < SHC_MAX_WORLD; r++)
        opened.links[r] = -1;
    int error = shc_sys_random(opened.self.secret, sizeof opened.self.secret);
    if (!error)
        error = shc_sys_listen(SHC_MAX_WORLD, &opened.listener, opened.self.name);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_SYSTEM, error, "the control socket cannot be made");
    *control = opened;
    return SHC_OK;
}

struct shc_rank_name shc_control_rank_name(const struct shc_control *control, int rank)
{
    struct shc_rank_name name;
    if (control->core != NULL)
        return shc_comm_rank_name(control->core, rank);
    snprintf(name.text, sizeof name.text, "rank %d", rank);
    return name;
}

void shc_control_close(struct shc_control *control)
{
    shc_sys_close(control->listener);
    control->listener = -1;
    for (int r = 0; r < SHC_MAX_WORLD; r++) {
        shc_sys_close(control->links[r]);
        control->links[r] = -1;
    }
}

/* ---- words ---- */

/* The message of a link, once that is made. */
enum word_kind { WORD_PARCEL = 1, WORD_LEAVING };

struct word {
    uint32_t kind;
    uint32_t count;
    unsigned char bytes[SHC_CONTROL_BYTES]; /* a message's, or why the sender leaves */
};

#define WORD_HEAD offsetof(struct word, bytes)

/*
 * A rank whose link is broken may have left because it was told of another's death: then its last
 * word says so, and is still there to be read. So a failing send is not judged here, but by what
 * is received. A queue of these sockets has room for many such messages, and a round begins when
 * the one before is over: EAGAIN cannot be.
 */
static void tell_all(const struct shc_control *control, const struct word *word, int passed)
{
    for (int r = 0; r < control->world; r++)
        if (r != control->rank && control->links[r] >= 0)
            (void)!shc_sys_send(control->links[r], word, WORD_HEAD + word->count, passed);
}

/* Says why this rank gives up, in the words it has just recorded. */
static void say_leaving(const struct shc_control *control)
{
    struct word word = {.kind = WORD_LEAVING};
    char *text = (char *)word.bytes;
    snprintf(text, sizeof word.bytes, "%s", shc_cuda_failure());
    word.count = (uint32_t)strlen(text) + 1;
    tell_all(control, &word, -1);
}

/* ---- meeting ---- */

static bool is_process(int fd, const struct shc_control_address *address)
{
    int32_t pid;
    uint32_t uid;
    return shc_sys_peer(fd, &pid, &uid) == 0 && pid == address->pid && uid == address->uid;
}

/* Connects to a lower rank, unless its queue is full. */
static enum shc_status reach(struct shc_control *control, int rank,
                             const struct shc_control_address *address)
{
    int fd;
    int error = shc_sys_connect(address->name, &fd);
    if (error == EAGAIN)
        return SHC_OK;
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_UNREACHABLE, error,
                                   "%s (process %d) cannot be reached by its control socket; "
                                   "is it in another network namespace, or dead?",
                                   shc_control_rank_name(control, rank).text, (int)address->pid);
    if (!is_process(fd, address)) {
        shc_sys_close(fd);
        return shc_cuda_fail(SHC_ERR_UNREACHABLE,
                             "another process than %s (process %d) answers under its control "
                             "socket's name; is it in another pid namespace?",
                             shc_control_rank_name(control, rank).text, (int)address->pid);
    }
    const struct handshake handshake = {.secret = {address->secret[0], address->secret[1]},
                                        .from = (uint32_t)control->rank,
                                        .world = (uint32_t)control->world};
    error = shc_sys_send(fd, &handshake, sizeof handshake, -1);
    if (error) {
        shc_sys_close(fd);
        return shc_cuda_fail_errno(SHC_ERR_PEER_DEAD, error,
                                   "%s (process %d) closed its control socket",
                                   shc_control_rank_name(control, rank).text, (int)address->pid);
    }
    control->links[rank] = fd;
    return SHC_OK;
}

/* The rank that this connection is, or -1: a stranger, or a rank for the second time. */
static int rank_of(const struct shc_control *control, int fd, const struct handshake *handshake,
                   const struct shc_control_address *all)
{
    const int rank = (int)handshake->from;
    if (handshake->secret[0] != control->self.secret[0] ||
        handshake->secret[1] != control->self.secret[1])
        return -1;
    if (handshake->world != (uint32_t)control->world || handshake->from >= handshake->world ||
        rank <= control->rank || control->links[rank] >= 0)
        return -1;
    return is_process(fd, &all[rank]) ? rank : -1;
}

/* Connections whose handshake has not come yet. A stranger may hold one: more push the oldest out. */
struct lobby {
    int fds[SHC_MAX_WORLD];
    int count;
};

static void turn_away(struct shc_control *control, struct lobby *lobby, int index)
{
    shc_sys_close(lobby->fds[index]);
    control->strangers++;
    lobby->count--;
    memmove(&lobby->fds[index], &lobby->fds[index + 1],
            (size_t)(lobby->count - index) * sizeof lobby->fds[0]);
}

static void let_in(struct shc_control *control, struct lobby *lobby)
{
    int fd;
    int32_t pid;
    uint32_t uid;
    while (shc_sys_accept(control->listener, &fd) == 0) {
        if (shc_sys_peer(fd, &pid, &uid) != 0 || uid != control->self.uid) {
            shc_sys_close(fd);
            control->strangers++;
            continue;
        }
        if (lobby->count == SHC_MAX_WORLD)
            turn_away(control, lobby, 0);
        lobby->fds[lobby->count++] = fd;
    }
}

static void hear(struct shc_control *control, struct lobby *lobby,
                 const struct shc_control_address *all)
{
    for (int i = 0; i < lobby->count;) {
        struct handshake handshake;
        size_t count;
        int passed = -1;
        const int error =
            shc_sys_receive(lobby->fds[i], &handshake, sizeof handshake, &count, &passed);
        if (error == EAGAIN) {
            i++;
            continue;
        }
        const bool fits = !error && count == sizeof handshake && passed < 0;
        const int rank = fits ? rank_of(control, lobby->fds[i], &handshake, all) : -1;
        if (!error)
            shc_sys_close(passed);
        if (rank >= 0) {
            control->links[rank] = lobby->fds[i];
            lobby->fds[i] = -1;
            control->strangers--; /* turn_away only forgets it */
        }
        turn_away(control, lobby, i);
    }
}

static bool all_linked(const struct shc_control *control)
{
    for (int r = 0; r < control->world; r++)
        if (r != control->rank && control->links[r] < 0)
            return false;
    return true;
}

/* "rank 1, rank 4": the ranks without a link, or without a message. */
static void list_missing(const struct shc_control *control, const bool *there, char *text,
                         size_t capacity)
{
    size_t used = 0;
    text[0] = 0;
    for (int r = 0; r < control->world && used < capacity; r++) {
        if (r == control->rank || (there ? there[r] : control->links[r] >= 0))
            continue;
        const int more = snprintf(text + used, capacity - used, "%s%s", used ? ", " : "",
                                  shc_control_rank_name(control, r).text);
        used += more > 0 ? (size_t)more : 0;
    }
}

static enum shc_status look(const struct shc_control *control)
{
    return control->look != NULL ? control->look(control->look_ctx) : SHC_OK;
}

/* Sleeps until a process connects, or a message comes. */
static enum shc_status doze(const struct shc_control *control, const struct lobby *lobby)
{
    struct pollfd fds[SHC_MAX_WORLD + 1];
    size_t count = 0;
    fds[count++] = (struct pollfd){.fd = control->listener, .events = POLLIN};
    for (int i = 0; i < lobby->count; i++)
        fds[count++] = (struct pollfd){.fd = lobby->fds[i], .events = POLLIN};
    const int error = shc_sys_poll(fds, count, LOOK_AGAIN_NS);
    if (error)
        return shc_cuda_fail_errno(SHC_ERR_SYSTEM, error, "waiting on control sockets");
    return SHC_OK;
}

static enum shc_status meet(struct shc_control *control, const struct shc_control_address *all,
                            uint64_t deadline_ns, struct lobby *lobby)
{
    for (;;) {
        for (int r = 0; r < control->rank; r++)
            if (control->links[r] < 0)
                SHC_TRY(reach(control, r, &all[r]));
        let_in(control, lobby);
        hear(control, lobby, all);
        if (all_linked(control))
            return SHC_OK;
        if (shc_clock_ns() >= deadline_ns) {
            char missing[512];
            list_missing(control, NULL, missing, sizeof missing);
            return shc_cuda_fail(SHC_ERR_TIMEOUT, "no connection with %s by control sockets",
                                 missing);
        }
        SHC_TRY(look(control));
        SHC_TRY(doze(control, lobby));
    }
}

enum shc_status shc_control_meet(struct shc_control *control, const struct shc_control_address *all,
                                 uint64_t deadline_ns)
{
    struct lobby lobby = {.count = 0};
    const enum shc_status st = meet(control, all, deadline_ns, &lobby);
    while (lobby.count > 0)
        turn_away(control, &lobby, 0);
    if (st != SHC_OK)
        say_leaving(control);
    return st;
}

/* ---- rounds ---- */

static enum shc_status fail_form(const struct shc_control *control, int r)
{
    return shc_cuda_fail(SHC_ERR_VERSION, "%s sent a message of another form",
                         shc_control_rank_name(control, r).text);
}

static enum shc_status accept_word(const struct shc_control *control, int r,
                                   const struct word *word, size_t bytes,
                                   struct shc_control_message *message)
{
    if (bytes < WORD_HEAD || bytes - WORD_HEAD != word->count)
        return fail_form(control, r);
    if (word->kind == WORD_LEAVING && word->count > 0 && word->bytes[word->count - 1] == 0)
        return shc_cuda_fail(SHC_ERR_PEER_DEAD, "%s", (const char *)word->bytes);
    if (word->kind != WORD_PARCEL)
        return fail_form(control, r);
    message->count = word->count;
    memcpy(message->bytes, word->bytes, word->count);
    return SHC_OK;
}

/* post: *there is set when the message has come. */
static enum shc_status receive_one(const struct shc_control *control, int r,
                                   struct shc_control_message *message, bool *there)
{
    struct word word;
    size_t bytes;
    const int error = shc_sys_receive(control->links[r], &word, sizeof word, &bytes, &message->fd);
    if (error == EAGAIN)
        return SHC_OK;
    if (error == EBADMSG)
        return fail_form(control, r);
    if (error || bytes == 0)
        return shc_cuda_fail(SHC_ERR_PEER_DEAD, "%s closed its control socket",
                             shc_control_rank_name(control, r).text);
    SHC_TRY(accept_word(control, r, &word, bytes, message));
    *there = true;
    return SHC_OK;
}

static enum shc_status receive_all(const struct shc_control *control, uint64_t deadline_ns,
                                   bool *there, struct shc_control_message *theirs)
{
    for (;;) {
        struct pollfd fds[SHC_MAX_WORLD];
        size_t count = 0;
        for (int r = 0; r < control->world; r++) {
            if (!there[r])
                SHC_TRY(receive_one(control, r, &theirs[r], &there[r]));
            if (!there[r])
                fds[count++] = (struct pollfd){.fd = control->links[r], .events = POLLIN};
        }
        if (count == 0)
            return SHC_OK;
        const uint64_t now = shc_clock_ns();
        if (now >= deadline_ns) {
            char missing[512];
            list_missing(control, there, missing, sizeof missing);
            return shc_cuda_fail(SHC_ERR_TIMEOUT, "%s said nothing on its control socket", missing);
        }
        SHC_TRY(look(control));
        const uint64_t slice_ns = control->look != NULL ? LOOK_AGAIN_NS : SHC_NS_PER_S;
        const int error = shc_sys_poll(fds, count, shc_min_size(deadline_ns - now, slice_ns));
        if (error)
            return shc_cuda_fail_errno(SHC_ERR_SYSTEM, error, "waiting on control sockets");
    }
}

void shc_control_close_received(struct shc_control_message *theirs, int world)
{
    for (int r = 0; r < world; r++) {
        shc_sys_close(theirs[r].fd);
        theirs[r].fd = -1;
    }
}

enum shc_status shc_control_swap(struct shc_control *control,
                                 const struct shc_control_message *mine, uint64_t deadline_ns,
                                 struct shc_control_message *theirs)
{
    bool there[SHC_MAX_WORLD] = {false};
    struct word word = {.kind = WORD_PARCEL, .count = mine->count};
    for (int r = 0; r < control->world; r++)
        theirs[r].fd = -1;
    theirs[control->rank] = *mine;
    theirs[control->rank].fd = -1;
    there[control->rank] = true;
    memcpy(word.bytes, mine->bytes, mine->count);
    tell_all(control, &word, mine->fd);
    const enum shc_status st = receive_all(control, deadline_ns, there, theirs);
    if (st == SHC_OK)
        return SHC_OK;
    say_leaving(control);
    shc_control_close_received(theirs, control->world);
    return st;
}
