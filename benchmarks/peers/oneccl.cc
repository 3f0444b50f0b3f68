// SPDX-License-Identifier: BSD-3-Clause
#include "oneccl.h"

#include <exception>
#include <memory>
#include <mpi.h>
#include <oneapi/ccl.hpp>
#include <vector>

namespace
{

std::unique_ptr<ccl::communicator> group;
size_t ranks;

// Ends the program where oneCCL throws.
template <typename Call>
void demand(const char *what, const Call &call)
{
    try {
        call();
    } catch (const std::exception &error) {
        fprintf(stderr, "peers: %s of oneCCL failed: %s\n", what, error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

void run(shc_op_kind kind, const float *given, float *got, size_t count, int root)
{
    constexpr auto type = ccl::datatype::float32;
    constexpr auto sum = ccl::reduction::sum;
    switch (kind) {
    case SHC_BARRIER:
        ccl::barrier(*group);
        return;
    case SHC_ALL_REDUCE:
        ccl::allreduce(got, got, count, type, sum, *group).wait();
        return;
    case SHC_BROADCAST:
        ccl::broadcast(got, count, type, root, *group).wait();
        return;
    case SHC_REDUCE:
        ccl::reduce(given, got, count, type, sum, root, *group).wait();
        return;
    case SHC_ALL_GATHER:
        ccl::allgatherv(given, count, got, std::vector<size_t>(ranks, count), type, *group).wait();
        return;
    case SHC_REDUCE_SCATTER:
        ccl::reduce_scatter(given, got, count, type, sum, *group).wait();
        return;
    default:
        ccl::alltoall(given, got, count, type, *group).wait();
    }
}

} // namespace

void oneccl_begin(int rank, int size)
{
    demand("the making", [&] {
        ccl::init();
        ccl::kvs::address_type address;
        ccl::shared_ptr_class<ccl::kvs> store;
        if (rank == 0) {
            store = ccl::create_main_kvs();
            address = store->get_address();
        }
        MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
        if (rank != 0)
            store = ccl::create_kvs(address);
        group = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, store));
        ranks = static_cast<size_t>(size);
    });
}

void oneccl_end(void)
{
    group.reset();
}

bool oneccl_has(shc_op_kind kind)
{
    return kind == SHC_BARRIER || kind == SHC_ALL_REDUCE || kind == SHC_BROADCAST ||
           kind == SHC_REDUCE || kind == SHC_ALL_GATHER || kind == SHC_REDUCE_SCATTER ||
           kind == SHC_ALL_TO_ALL;
}

void oneccl_run(shc_op_kind kind, const float *given, float *got, size_t count, int root)
{
    demand("an operation", [&] { run(kind, given, got, count, root); });
}
