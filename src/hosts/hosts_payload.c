/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The data of short calls. They go along with the records, so that a call waits for the network once:
 *
 *   in the record   if the payload has room for all that the host gives others
 *   a message       for each other host, before the record, up to SHC_HOSTS_MESSAGE_BYTES for all of them. Its
 *                   receive names its size, so hosts that expect another one get none of it. If the records differ,
 *                   nobody looks at what has come.
 */
#include "hosts/group.h"

#include "shm/base/num.h"

/* Room for the message of a host. */
static size_t room_of(const struct shc_hosts *hosts)
{
    return shc_align_up(shc_hosts_eager_bytes(hosts->plan.hosts), 64);
}

size_t shc_hosts_data_bytes(const struct shc_hosts *hosts)
{
    return (size_t)hosts->plan.hosts * room_of(hosts);
}

uint64_t shc_hosts_message_bytes(const struct shc_hosts *hosts)
{
    return hosts->messages ? shc_hosts_eager_bytes(hosts->plan.hosts) : 0;
}

uint64_t shc_hosts_short_bytes(const struct shc_hosts *hosts)
{
    const uint64_t message = shc_hosts_message_bytes(hosts);
    return message > hosts->payload_bytes ? message : hosts->payload_bytes;
}

char *shc_hosts_data_given(const struct shc_hosts *hosts, uint64_t bytes)
{
    return bytes <= hosts->payload_bytes ? shc_hosts_payload(shc_hosts_own_record(hosts))
                                         : hosts->stage.given;
}

const char *shc_hosts_data_taken(const struct shc_hosts *hosts, int host, uint64_t first,
                                 uint64_t bytes)
{
    if (bytes <= hosts->payload_bytes)
        return shc_hosts_payload(shc_hosts_record_of(hosts, host)) + first;
    return host == hosts->host ? hosts->stage.given + first
                               : hosts->stage.taken + (size_t)host * room_of(hosts);
}

static enum shc_status begin(const struct shc_hosts_call *call, const struct shc_hosts_data *data,
                             int host, struct shc_hosts_messages *messages)
{
    struct shc_hosts *hosts = call->hosts;
    const struct shc_fabric *line = &hosts->line;
    const struct shc_slice goes = data->message(call, data->ctx, hosts->host, host);
    const struct shc_slice comes = data->message(call, data->ctx, host, hosts->host);
    int error;
    if (comes.count > 0) {
        char *to = hosts->stage.taken + (size_t)host * room_of(hosts);
        SHC_TRY(shc_hosts_ticket(hosts, &messages->receives[host]));
        error = line->receive(line->ctx, to, comes.count, host, messages->receives[host]);
        SHC_TRY(shc_hosts_begun(hosts, &messages->receives[host], error));
    }
    if (goes.count > 0) {
        const char *from = hosts->stage.given + goes.first;
        SHC_TRY(shc_hosts_ticket(hosts, &messages->sends[host]));
        error = line->send(line->ctx, from, goes.count, host, messages->sends[host]);
        SHC_TRY(shc_hosts_begun(hosts, &messages->sends[host], error));
    }
    return SHC_OK;
}

enum shc_status shc_hosts_messages_begin(const struct shc_hosts_call *call,
                                         const struct shc_hosts_data *data,
                                         struct shc_hosts_messages *messages)
{
    struct shc_hosts *hosts = call->hosts;
    *messages = (struct shc_hosts_messages){{NULL}, {NULL}};
    if (!data || !data->message || shc_hosts_message_bytes(hosts) == 0)
        return SHC_OK;
    for (int host = 0; host < hosts->plan.hosts; host++)
        if (host != hosts->host)
            SHC_TRY(begin(call, data, host, messages));
    return SHC_OK;
}

enum shc_status shc_hosts_messages_await(struct shc_hosts *hosts, struct shc_ticket **tickets)
{
    for (int host = 0; host < SHC_HOSTS_EAGER_HOSTS; host++)
        if (tickets[host])
            SHC_TRY(shc_hosts_await(hosts, &tickets[host]));
    return SHC_OK;
}

void shc_hosts_messages_abandon(const struct shc_hosts_messages *messages)
{
    for (int host = 0; host < SHC_HOSTS_EAGER_HOSTS; host++) {
        if (messages->sends[host])
            shc_gate_abandon(messages->sends[host]);
        if (messages->receives[host])
            shc_gate_abandon(messages->receives[host]);
    }
}
