// SPDX-License-Identifier: BSD-3-Clause
// The operations of a direct call: described, checked and run like those that torch calls.
#include "backend/convert.hpp"
#include "backend/process_group_shm.hpp"

#include <array>

namespace shmcoll
{

namespace
{

// There is one only in a section, or if torch wants a Work of every call.
void finish(const ProcessGroupShm::WorkPtr &work)
{
    if (work)
        work->wait();
}

// The block of each rank in the rows of a contiguous tensor; without a tensor, and an allocation, for
// each. Refers to itself.
class EvenBlocks
{
  public:
    // pre: the rows can be divided by `ranks`.
    EvenBlocks(const at::Tensor &tensor, int ranks)
        : elements_(tensor.numel() / ranks), ranks_(static_cast<uint32_t>(ranks))
    {
        auto *next = static_cast<char *>(tensor.data_ptr());
        const size_t bytes = static_cast<size_t>(elements_) * tensor.itemsize();
        for (uint32_t i = 0; i < ranks_; i++, next += bytes)
            blocks_[i] = {next, 1, &elements_, nullptr};
    }
    EvenBlocks(const EvenBlocks &) = delete;
    EvenBlocks &operator=(const EvenBlocks &) = delete;

    // (A group over several hosts may have more ranks.)
    static bool fit(const at::Tensor &tensor, int ranks)
    {
        return ranks <= SHC_MAX_WORLD && tensor.is_cpu() && tensor.layout() == at::kStrided &&
               tensor.is_contiguous() && tensor.dim() > 0 && tensor.size(0) % ranks == 0;
    }

    shc_tensors view() const { return {blocks_.data(), ranks_}; }

  private:
    const int64_t elements_;
    const uint32_t ranks_;
    std::array<shc_tensor, SHC_MAX_WORLD> blocks_; // the first ranks_ of them
};

} // namespace

void ProcessGroupShm::allReduceNow(const at::Tensor &tensor, const c10d::ReduceOp &reduceOp)
{
    c10d::AllreduceOptions options;
    options.reduceOp = reduceOp;
    options.asyncOp = false;
    finish(reduceAll(tensor, options, c10d::OpType::ALLREDUCE, TITLE("all_reduce")));
}

bool ProcessGroupShm::allReduceInto(const at::Tensor &output, const at::Tensor &input,
                                    const c10d::ReduceOp &reduceOp)
{
    if (hosts_ || !input.is_cpu() || input.layout() != at::kStrided)
        return false;
    c10d::AllreduceOptions options;
    options.reduceOp = reduceOp;
    options.asyncOp = false;
    finish(reduceAll(output, options, c10d::OpType::ALLREDUCE, TITLE("all_reduce"), input));
    return true;
}

void ProcessGroupShm::broadcastNow(const at::Tensor &tensor, int root)
{
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.asyncOp = false;
    finish(broadcastOne(tensor, options));
}

void ProcessGroupShm::allGatherNow(const at::Tensor &output, const at::Tensor &input)
{
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    finish(gatherAll(output, input, options, c10d::OpType::_ALLGATHER_BASE,
                     TITLE("_all_gather_base")));
}

void ProcessGroupShm::reduceScatterNow(const at::Tensor &output, const at::Tensor &input,
                                       const c10d::ReduceOp &reduceOp)
{
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduceOp;
    options.asyncOp = false;
    finish(reduceAndScatter(output, input, options, c10d::OpType::_REDUCE_SCATTER_BASE,
                            TITLE("_reduce_scatter_base")));
}

// pre: both have one type.
void ProcessGroupShm::allToAllNow(at::Tensor &output, at::Tensor &input)
{
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    if (!EvenBlocks::fit(output, size_) || !EvenBlocks::fit(input, size_)) {
        std::vector<int64_t> none, noneEither;
        return finish(alltoall_base(output, input, none, noneEither, options));
    }
    const TensorViews both[] = {{input, "all_to_all"}, {output, "all_to_all"}}; // checks them
    const EvenBlocks in(input, size_), out(output, size_);
    shc_op op{};
    op.kind = SHC_ALL_TO_ALL;
    setDtype(op, input.scalar_type());
    op.input = in.view();
    op.output = out.view();
    finish(run({op, output, input, options.asyncOp, c10d::OpType::ALLTOALL_BASE,
                TITLE("all_to_all_single"), input}));
}

void ProcessGroupShm::barrierNow()
{
    c10d::BarrierOptions options;
    options.asyncOp = false;
    finish(barrier(options));
}

} // namespace shmcoll
