// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The c10d backend: checks, describes, submits. No algorithm is here.
//
// A call with asyncOp == false runs in the calling thread and returns a null Work, which Python treats
// as done. Any other call gets a Work, whose operation the core's engine runs by itself.

#include "backend/abort_hooks.hpp"
#include "backend/api.hpp"
#include "backend/coalescing.hpp"
#include "backend/comms_event.hpp"
#include "backend/hosts_side.hpp"
#include "backend/work_shm.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

// The name of an operation in a profile.
#define TITLE(name) (forGloo_ ? "gloo:" name : "shmcoll:" name)

namespace shmcoll
{

inline constexpr const char *kBackendName = "shmcoll";
inline constexpr const char *kGloo = "gloo";

struct SHMCOLL_EXPORT GroupOptions : c10d::Backend::Options {
    // With the name "gloo" the group takes gloo's place (docs/internals/adr/0021-gloos-place.md).
    explicit GroupOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout,
                          const std::string &name = kBackendName)
        : c10d::Backend::Options(name, timeout)
    {
    }

    bool isForGloo() const { return backend == kGloo; }

    // For the logger of torch's DDP. It casts the backend of a group called gloo to ProcessGroupGloo,
    // whatever it is, and reads options_->threads. So these two are here, and the first two members of
    // ProcessGroupShm there, in gloo's order and size. Before torch 2.9 gloo's have two more, which torch's
    // own options have from then on. tests/python/test_for_gloo.py reads the number.
#if !SHMCOLL_TORCH_AT_LEAST(2, 9)
    std::vector<uint64_t> global_ranks_in_group;
    std::string group_name;
#endif
    std::vector<std::shared_ptr<void>> gloosDevices;
    int gloosThreads = 2; // gloo's default

#if SHMCOLL_TORCH_AT_LEAST(2, 14)
    // torch gives the parts of a group that is split a copy of their parent's options.
    c10::intrusive_ptr<Options> clone() const override
    {
        return c10::make_intrusive<GroupOptions>(*this);
    }
#endif

    // Raises what is wrong with a timeout or a tuning text, before any group has it.
    void check() const;

    std::string tuning; // in the form of SHMCOLL_TUNING; empty: that variable counts
    // Of a group over several hosts: docs/guide/hosts.md. Empty, or 0: the variable of that name counts.
    std::string hosts, engine;
    int rails = 0;
    std::string order = "host", partials = "narrow";

#if !SHMCOLL_TORCH_AT_LEAST(2, 11) // from then on torch's own options have it
    std::string group_desc;
#endif
};

// Does torch's description of a group say anything? "undefined" is its word for none.
inline bool isDescription(const std::string &text)
{
    return !text.empty() && text != "undefined";
}

class SHMCOLL_EXPORT ProcessGroupShm : public c10d::Backend
{
  public:
    using Store = c10::intrusive_ptr<c10d::Store>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;
    using Tensors = std::vector<at::Tensor>;

    // Meets the other ranks through the store; blocks until all are there.
    ProcessGroupShm(const Store &store, int rank, int size,
                    c10::intrusive_ptr<GroupOptions> options);

    // The same over several hosts: finds out which ranks share memory. The group has no operation before
    // hosts()->connect().
    ProcessGroupShm(const Store &store, int rank, int size,
                    c10::intrusive_ptr<GroupOptions> options, const HostsWish &wish);

    // Null: all ranks share memory.
    HostsSide *hosts() { return hosts_.get(); }

    const std::string getBackendName() const override { return options_->backend; }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;
    void leave(); // waits for nothing: calls that are inside end with an error

    AbortHooks &abortHooks() { return *hooks_; }
#ifdef C10D_BACKEND_HAS_HOOKS
    bool supportsAbortHooks() const override
    {
        return true;
    }
    void registerAbortHook(int64_t id, c10d::AbortHook hook) override
    {
        hooks_->add(id, std::make_shared<const AbortHooks::Hook>(std::move(hook)));
    }
    void unregisterAbortHook(int64_t id) override
    {
        hooks_->remove(id);
    }
#endif

    // batch_isend_irecv asks this before it makes a section; it names no device. If no tensor can be on
    // a GPU, it makes one call after another, as with gloo: that takes 2 us less, and each message has
    // a Work of its own.
    bool supportsCoalescing() const override
    {
        return CudaSide::isPossible();
    }
    void startCoalescing() override
    {
        sections_.begin();
    }
    WorkPtr endCoalescing() override;

#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    void setTimeout(std::chrono::milliseconds timeout) override
    {
        changeTimeout(timeout);
    }
    c10::intrusive_ptr<c10d::Backend>
    split(const Store &store, const std::vector<int> &ranks,
          const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    c10::intrusive_ptr<c10d::Backend>
    merge(const Store &store, const c10::intrusive_ptr<c10d::Backend::Options> &options,
          const int &rank, const int &size) override;
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 10)
    bool supportsShrinking() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend>
    shrink(const std::vector<int64_t> &excluded, int flags,
           const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 15)
    // For torch.distributed.split_group, which needed a GPU before.
    bool supportsSplitting() const override
    {
        return true;
    }
#endif
#if SHMCOLL_TORCH_AT_LEAST(2, 14)
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input,
                          const c10d::GatherOptions &options) override;
#endif

    // In shared memory (backend/memory.hpp). FSDP2 and DDP ask for it if their user does.
    std::shared_ptr<c10::Allocator> getMemAllocator() override;
    bool supportsTensorAlloc(c10::DeviceIndex index) override;
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &options) override;
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &options) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &options) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &outputSplits,
                          std::vector<int64_t> &inputSplits,
                          const c10d::AllToAllOptions &options) override;
    WorkPtr barrier(const c10d::BarrierOptions &options) override;
    void monitoredBarrier(const c10d::BarrierOptions &options, bool waitAllRanks) override;
    WorkPtr send(Tensors &tensors, int peer, int tag) override;
    WorkPtr recv(Tensors &tensors, int peer, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;

    // Direct calls: the same operations, with the group's time-out, for a caller that has no list and no
    // options. They return when the operation is done.
    void allReduceNow(const at::Tensor &tensor, const c10d::ReduceOp &reduceOp);
    // False, with nothing done: only in place, as of CUDA tensors, or over several hosts.
    bool allReduceInto(const at::Tensor &output, const at::Tensor &input,
                       const c10d::ReduceOp &reduceOp);
    void broadcastNow(const at::Tensor &tensor, int root); // a rank of the group
    void allGatherNow(const at::Tensor &output, const at::Tensor &input);
    void reduceScatterNow(const at::Tensor &output, const at::Tensor &input,
                          const c10d::ReduceOp &reduceOp);
    void allToAllNow(at::Tensor &output, at::Tensor &input);
    void barrierNow();

    // For its windows (backend/window.hpp). The group keeps a window's tensor; none: no longer.
    int numberWindow();
    void keepForWindow(int number, const at::Tensor &tensor);
    WorkPtr signalWindow(shc_op_kind kind, int number, int peer, std::chrono::milliseconds timeout);
#if SHMCOLL_TORCH_AT_LEAST(2, 15)
    bool supportsWindow() const override
    {
        return !hosts_;
    }
    c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor> &tensor) override;
#endif

    // For operations that begin after it; 0: no limit. If it is negative, throws and changes nothing.
    void changeTimeout(std::chrono::milliseconds timeout);

    // The group's own: names and ranks that torch writes into it stay there. A time-out that is written
    // into it changes nothing; the next call returns the group's again.
    c10::intrusive_ptr<GroupOptions> options();

    // Lines of key=value about the group's memory, kernels and waiting; and those of each of its GPUs
    // with the prefix "cuda:<index>.".
    std::string info();

  private:
    ProcessGroupShm(std::shared_ptr<HostsSide> hosts, int rank, int size,
                    c10::intrusive_ptr<GroupOptions> options);
    shc_status runNow(const shc_op &op);
    std::shared_ptr<Flight> flightOf(const Call &call) const;
    std::string tellHooks(shc_status status); // returns the text of the error of runNow()
    void close();
#if SHMCOLL_TORCH_AT_LEAST(2, 9)
    c10::intrusive_ptr<GroupOptions> optionsFor(const c10d::Backend::Options &options) const;
    static Store storeFor(const Store &store);
#endif
    WorkPtr startMessage(const Call &call);
    WorkPtr submit(const Group &group, const shc_op &op, const Call &call, HostsSide *hosts);
    static void record(at::RecordFunction &event, const Call &call);
    CommsGroup commsGroup(const Call &call);
    shc_status runShown(at::RecordFunction &event, const Call &call);
    // What the methods below do with the call that they have described: run() or examine().
    using Step = WorkPtr (ProcessGroupShm::*)(const Call &);
    WorkPtr run(const Call &call);
    WorkPtr examine(const Call &call);
    WorkPtr start(const Call &call);
    void takeDescription();
    int64_t globalRank(int64_t rank) const; // its number in the job
    WorkPtr startInside(Section &section, const Call &call);
    WorkPtr broadcastOne(at::TensorList tensors, const c10d::BroadcastOptions &options);
    WorkPtr reduceAll(at::TensorList tensors, const c10d::AllreduceOptions &options,
                      c10d::OpType type, const char *title, at::TensorList inputs = {});
    WorkPtr gatherAll(at::TensorList outputs, at::TensorList inputs,
                      const c10d::AllgatherOptions &options, c10d::OpType type, const char *title,
                      shc_op_kind kind = SHC_ALL_GATHER, Step step = &ProcessGroupShm::run);
    WorkPtr reduceAndScatter(const at::Tensor &output, at::TensorList inputs,
                             const c10d::ReduceScatterOptions &options, c10d::OpType type,
                             const char *title, shc_op_kind kind = SHC_REDUCE_SCATTER,
                             Step step = &ProcessGroupShm::run);
    WorkPtr gatherToRoot(at::TensorList outputs, at::TensorList inputs,
                         const c10d::GatherOptions &options, const char *title);
    WorkPtr exchangeAll(at::TensorList outputs, at::TensorList inputs,
                        const c10d::AllToAllOptions &options, c10d::OpType type, const char *title,
                        at::TensorList given);
    void checkCount(at::TensorList list, const char *op) const;
    WorkPtr transfer(shc_op_kind kind, Tensors &tensors, int peer, int tag, c10d::OpType type,
                     const char *title);
    WorkPtr message(shc_op_kind kind, Tensors &tensors, int peer, int tag, c10d::OpType type,
                    const char *title);
    WorkPtr post(shc_op_kind kind, Tensors &tensors, int peer, int tag,
                 std::chrono::milliseconds timeout, c10d::OpType type, const char *title);
    void checkList(at::TensorList list, const at::Tensor &one, const char *op) const;
    at::TensorList rootsList(const std::vector<Tensors> &lists, const at::Tensor &one, int64_t root,
                             const char *op) const;
    Tensors rowsOf(const at::Tensor &tensor, const std::vector<int64_t> &splits,
                   const char *which) const;

    std::shared_ptr<void> gloosStore_;         // nothing; GroupOptions says why these two are first
    c10::intrusive_ptr<GroupOptions> options_; // Python may write into it
    Store store_;                              // for shrink()
    const bool forGloo_;
    std::atomic<bool> described_{false};
    std::atomic<std::chrono::milliseconds> timeout_;
    std::shared_ptr<HostsSide> hosts_;
    Group group_; // over several hosts, what orders this rank's operations
    CudaSide cuda_;
    Sections sections_;
    std::atomic<int> windowCount_{0};
    std::mutex windowsLock_;                  // guards what follows
    std::map<int, at::Tensor> windowTensors_; // by the window's number
    const std::shared_ptr<AbortHooks> hooks_ = std::make_shared<AbortHooks>(options_->group_name);
};

} // namespace shmcoll
