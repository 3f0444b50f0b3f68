// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// A group that is made with enable_reconfigure: it has no ranks at first, and gets others with each call of
// reconfigure() (docs/internals/protocol/reconfigure.md). It is a backend that hands each call to a
// ProcessGroupShm, which it replaces. So no other group pays for it, and a call in another thread keeps the one
// with which it began.

#include "backend/process_group_shm.hpp"
#include "backend/reconfigure_handle.hpp"

#include <mutex>
#include <unordered_set>

namespace shmcoll
{

class SHMCOLL_EXPORT ReconfigurableGroup : public c10d::Backend
{
  public:
    using Inner = c10::intrusive_ptr<ProcessGroupShm>;
    using Store = ProcessGroupShm::Store;
    using WorkPtr = ProcessGroupShm::WorkPtr;
    using Tensors = ProcessGroupShm::Tensors;

    // rank and size: what torch says until the first reconfigure(). host and pid: this process's, for messages.
    ReconfigurableGroup(const Store &store, int rank, int size,
                        c10::intrusive_ptr<GroupOptions> options, const std::string &host,
                        int64_t pid);

    // The group of now; `what` is the call that wants it. Throws if there is none.
    Inner current(const char *what);

    // This process's, as text. It changes with each successful change().
    std::string handle() const;

    // Makes a group of the processes with these handles, in their order if `ordered`. Blocks until all of
    // them have called it with the same ones; no timeout: the group's.
    void change(int64_t uuid, const std::vector<std::string> &texts, bool ordered,
                std::optional<std::chrono::milliseconds> timeout);

#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override
    {
        return true;
    }
    c10d::ReconfigureHandle get_reconfigure_handle() const override
    {
        return handle();
    }
    WorkPtr reconfigure(const c10d::ReconfigureOptions &options) override;
#endif

    // They stay from one group to the next, each of which calls them once.
    void addHook(int64_t id, AbortHooks::Hook hook);
    void removeHook(int64_t id);
#ifdef C10D_BACKEND_HAS_HOOKS
    bool supportsAbortHooks() const override
    {
        return true;
    }
    void registerAbortHook(int64_t id, c10d::AbortHook hook) override
    {
        addHook(id, std::move(hook));
    }
    void unregisterAbortHook(int64_t id) override
    {
        removeHook(id);
    }
#endif

    // ---- as ProcessGroupShm has them ----

    c10::intrusive_ptr<GroupOptions> options()
    {
        return options_;
    }
    void changeTimeout(std::chrono::milliseconds timeout);
    const std::string getBackendName() const override
    {
        return options_->backend;
    }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;
    bool supportsCoalescing() const override
    {
        return CudaSide::isPossible();
    }
    void startCoalescing() override
    {
        current("start_coalescing")->startCoalescing();
    }
    WorkPtr endCoalescing() override
    {
        return current("end_coalescing")->endCoalescing();
    }

#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    void setTimeout(std::chrono::milliseconds timeout) override
    {
        changeTimeout(timeout);
    }
    c10::intrusive_ptr<c10d::Backend>
    split(const Store &store, const std::vector<int> &ranks,
          const c10::intrusive_ptr<c10d::Backend::Options> &options) override
    {
        return current("split")->split(store, ranks, options);
    }
    c10::intrusive_ptr<c10d::Backend>
    merge(const Store &store, const c10::intrusive_ptr<c10d::Backend::Options> &options,
          const int &rank, const int &size) override
    {
        return current("merge")->merge(store, options, rank, size);
    }
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 10)
    bool supportsShrinking() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend>
    shrink(const std::vector<int64_t> &excluded, int flags,
           const c10::intrusive_ptr<c10d::Backend::Options> &options) override
    {
        return current("shrink")->shrink(excluded, flags, options);
    }
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 15)
    bool supportsSplitting() const override
    {
        return true;
    }
    bool supportsWindow() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor> &tensor) override
    {
        return current("new_window")->new_window(tensor);
    }
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 14)
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input,
                          const c10d::GatherOptions &options) override
    {
        return current("gather")->gather_single(output, input, options);
    }
#endif

    std::shared_ptr<c10::Allocator> getMemAllocator() override
    {
        return current("mem_allocator")->getMemAllocator();
    }
    bool supportsTensorAlloc(c10::DeviceIndex index) override
    {
        return current("supports_tensor_alloc")->supportsTensorAlloc(index);
    }
    at::Tensor allocateTensor(long size, at::TensorOptions options) override
    {
        return current("allocate_tensor")->allocateTensor(size, options);
    }

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override
    {
        return current("broadcast")->broadcast(tensors, options);
    }
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override
    {
        return current("all_reduce")->allreduce(tensors, options);
    }
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override
    {
        return current("all_reduce")->allreduce_sparse(tensors, options);
    }
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override
    {
        return current("all_reduce")->allreduce_coalesced(tensors, options);
    }
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override
    {
        return current("all_gather")->allgather(outputs, inputs, options);
    }
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override
    {
        return current("all_gather")->_allgather_base(output, input, options);
    }
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override
    {
        return current("all_gather")->allgather_coalesced(outputs, inputs, options);
    }
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) override
    {
        return current("all_gather")->allgather_into_tensor_coalesced(outputs, inputs, options);
    }
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override
    {
        return current("reduce")->reduce(tensors, options);
    }
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &options) override
    {
        return current("gather")->gather(outputs, inputs, options);
    }
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &options) override
    {
        return current("scatter")->scatter(outputs, inputs, options);
    }
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override
    {
        return current("reduce_scatter")->reduce_scatter(outputs, inputs, options);
    }
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override
    {
        return current("reduce_scatter")->_reduce_scatter_base(output, input, options);
    }
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) override
    {
        return current("reduce_scatter")->reduce_scatter_tensor_coalesced(outputs, inputs, options);
    }
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &options) override
    {
        return current("all_to_all")->alltoall(outputs, inputs, options);
    }
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &outputSplits,
                          std::vector<int64_t> &inputSplits,
                          const c10d::AllToAllOptions &options) override
    {
        return current("all_to_all")
            ->alltoall_base(output, input, outputSplits, inputSplits, options);
    }
    WorkPtr barrier(const c10d::BarrierOptions &options) override
    {
        return current("barrier")->barrier(options);
    }
    void monitoredBarrier(const c10d::BarrierOptions &options, bool waitAllRanks) override
    {
        current("monitored_barrier")->monitoredBarrier(options, waitAllRanks);
    }
    WorkPtr send(Tensors &tensors, int peer, int tag) override
    {
        return current("send")->send(tensors, peer, tag);
    }
    WorkPtr recv(Tensors &tensors, int peer, int tag) override
    {
        return current("recv")->recv(tensors, peer, tag);
    }
    WorkPtr recvAnysource(Tensors &tensors, int tag) override
    {
        return current("recv")->recvAnysource(tensors, tag);
    }

  private:
    struct Turn;
    Inner peek();
    void checkProcess() const;
    void begin(int64_t uuid);
    Inner make(int64_t uuid, const ReconfigureHandles &all, int rank,
               std::chrono::milliseconds timeout);
    void confirm(ProcessGroupShm &made, const ReconfigureHandles &all, int rank);
    void take(Inner made, int rank, int size);

    const c10::intrusive_ptr<GroupOptions> options_; // Python may write into it
    const Store store_;
    const int forks_; // forks before this process, when it made the group

    mutable std::mutex lock_; // guards what follows
    ReconfigureHandle own_;
    Inner current_;        // null: why_ says why
    std::string why_;      // why there is no group
    bool turning_ = false; // a thread is in change()
    bool failed_ = false;  // the last change() has not made a group
    std::unordered_set<int64_t> used_;
    std::map<int64_t, std::shared_ptr<const AbortHooks::Hook>> hooks_;
    std::chrono::milliseconds timeout_;
};

// The ProcessGroupShm of a backend of this library; null: another one's.
c10::intrusive_ptr<ProcessGroupShm> shmOf(const c10::intrusive_ptr<c10d::Backend> &backend,
                                          const char *what);

} // namespace shmcoll
