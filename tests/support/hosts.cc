// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/hosts.h"

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <ostream>

namespace shmcoll::test
{

size_t each_of(size_t world)
{
    return world > 16 ? 15 : kEach;
}

Labels many_hosts(int hosts, int ranks)
{
    Labels labels;
    for (int rank = 0; rank < hosts * ranks; rank++)
        labels.push_back(rank / ranks);
    return labels;
}

std::vector<Map> maps()
{
    if (kSlow)
        return {{"TwoOfTwoCyclic", {0, 1, 0, 1}},
                {"TwoAndOneAndThree", {0, 1, 2, 0, 2, 2}},
                {"EightOfTwo", many_hosts(8, 2)}};
    return {
        {"TwoOfOne", {0, 1}},
        {"TwoOfTwo", {0, 0, 1, 1}},
        {"TwoOfTwoCyclic", {0, 1, 0, 1}},
        {"ThreeAndOne", {0, 0, 0, 1}},
        {"OneAndThree", {3, 1, 1, 1}},
        {"ThreeOfOne", {0, 1, 2}},
        {"ThreeOfTwo", {0, 0, 1, 1, 2, 2}},
        {"ThreeOfTwoCyclic", {0, 1, 2, 0, 1, 2}},
        {"TwoAndOneAndThree", {0, 1, 2, 0, 2, 2}},
        {"OneOfThree", {0, 0, 0}},
        {"EightOfTwo", many_hosts(8, 2)},
        {"SixtyFourOfOne", many_hosts(64, 1)},
    };
}

std::vector<Map> more_maps()
{
    std::vector<Map> all = maps();
    all.push_back({"ThreeAndTwo", {0, 0, 1, 0, 1}});
    if (!kSlow)
        all.push_back({"FiveAndTwoAndOne", {0, 0, 0, 0, 0, 1, 1, 2}});
    return all;
}

void PrintTo(const Map &map, std::ostream *out)
{
    *out << map.name;
}

std::vector<std::vector<size_t>> hosts_of(const Labels &labels)
{
    std::vector<std::vector<size_t>> hosts;
    std::map<int32_t, size_t> known;
    for (size_t rank = 0; rank < labels.size(); rank++) {
        if (!known.count(labels[rank])) {
            known[labels[rank]] = hosts.size();
            hosts.push_back({});
        }
        hosts[known[labels[rank]]].push_back(rank);
    }
    return hosts;
}

int host_count(const Labels &labels)
{
    return static_cast<int>(hosts_of(labels).size());
}

shc_status HostsGroup::run(const shc_op &op)
{
    return shc_hosts_run(hosts, &op, error);
}

shc_status HostsGroup::submit(const shc_op &op)
{
    shc_request *request = nullptr;
    const shc_status begun = shc_hosts_submit(hosts, &op, nullptr, &request, error);
    if (begun != SHC_OK)
        return begun;
    const shc_status st = shc_request_wait(request, 0);
    snprintf(error, sizeof error, "%s", shc_request_error(request));
    shc_request_release(request);
    return st;
}

HostsOptions::HostsOptions() : rate([](int) { return kFastLink; }) {}
HostsOptions::HostsOptions(const HostsOptions &) = default;
HostsOptions::~HostsOptions() = default;

shc_comm_config config_of(const Rank &rank)
{
    shc_comm_config config = {};
    config.rank = rank.rank;
    config.world_size = rank.world;
    config.name = "0";
    config.timeout_ns = rank.timeout_ns;
    config.store = rank.store;
    return config;
}

HostsOptions with_rails(int rails)
{
    HostsOptions how;
    how.rails = rails;
    return how;
}

void run_hosts(const Labels &labels, Network &network,
               const std::function<void(HostsGroup &)> &body, const HostsOptions &how)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kOwnMapping, static_cast<int>(labels.size()),
        [&](Rank &rank) {
            shc_comm_config config = config_of(rank);
            config.store = how.store ? how.store(rank.rank, rank.store) : rank.store;
            HostsGroup group;
            group.rank = rank.rank;
            group.store = rank.store;
            const std::string word = std::to_string(labels[static_cast<size_t>(rank.rank)]);
            const char *words[] = {word.c_str()};
            const shc_hosts_wish wish = {
                words,       1,        how.rails, how.late_ns, false,
                how.by_rank, how.wide, "gloo",    how.in_file, how.rate(rank.rank)};
            ASSERT_EQ(shc_hosts_create(&config, &wish, &group.hosts, group.error), SHC_OK)
                << group.error;
            shc_hosts_get_place(group.hosts, &group.place);
            const shc_hosts_place &place = group.place;
            const shc_fabric line = network.line(place.host);
            const shc_fabric rail = network.rail(place.local, place.host);
            const bool leads = place.local == 0;
            const shc_p2p_fabric p2p = how.mesh ? how.mesh->fabric(group.rank) : shc_p2p_fabric{};
            if (how.mesh) {
                ASSERT_EQ(shc_hosts_connect_p2p(group.hosts, &p2p, group.error), SHC_OK)
                    << group.error;
            }
            ASSERT_EQ(shc_hosts_connect(group.hosts, leads ? &line : nullptr,
                                        place.local < place.rails ? &rail : nullptr,
                                        leads && how.watch ? how.watch(group) : nullptr,
                                        group.error),
                      SHC_OK)
                << group.error;
            body(group);
            if (group.hosts)
                shc_hosts_free(group.hosts);
        },
        options);
}

void run_cases(const Labels &labels, size_t count,
               const std::function<void(HostsGroup &, size_t)> &run, const HostsOptions &how)
{
    for (const size_t half : {0, 1}) {
        Network network(host_count(labels));
        if (half == 1)
            network.refuse_messages();
        run_hosts(
            labels, network,
            [&](HostsGroup &group) {
                for (size_t number = 0; number < count; number++) {
                    if (number / 4 % 2 == half)
                        run(group, number);
                    if (testing::Test::HasFatalFailure())
                        return;
                }
            },
            how);
    }
}

Elements::Elements(const Bytes &values, size_t elem_bytes, bool strided)
    : bytes(elem_bytes), stride(strided ? 3 : 1),
      size(static_cast<int64_t>(values.size() / elem_bytes)), step(static_cast<int64_t>(stride)),
      memory(values.size() * stride + 64, 0xa5)
{
    for (size_t i = 0; i * bytes < values.size(); i++)
        memcpy(&memory[i * stride * bytes], &values[i * bytes], bytes);
    tensor = {memory.data(), 1, &size, strided ? &step : nullptr};
}

Bytes Elements::values() const
{
    Bytes all(static_cast<size_t>(size) * bytes);
    for (size_t i = 0; i * bytes < all.size(); i++)
        memcpy(&all[i * bytes], &memory[i * stride * bytes], bytes);
    return all;
}

bool Elements::is_tidy() const
{
    return memory == Elements(values(), bytes, stride > 1).memory;
}

Sum::Sum(int64_t count, float value)
    : size(count), x(static_cast<size_t>(count), value), op(op_of(SHC_ALL_REDUCE))
{
    tensor = {x.data(), 1, &size, nullptr};
    op.input = op.output = {&tensor, 1};
}

} // namespace shmcoll::test
