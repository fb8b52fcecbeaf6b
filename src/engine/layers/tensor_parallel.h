// TensorParallel: the collectives of one rank's tensor group on activations, in the two forms that linears need: whole
// tensors that every rank has, or, under sequence parallelism, tensors of which each rank has the rows of its tokens.
// One thread per object.
#pragma once

#include <utility>

#include "engine/tensors.h"
#include "spec/tensor_split.h"

namespace fivefold {

// A collective in flight. Waits for it when it goes out of scope, so that its tensors outlive it even while an
// exception passes.
class PendingWork {
 public:
  PendingWork() = default;
  explicit PendingWork(Work work) : work_(std::move(work)), pending_(true) {}
  PendingWork(PendingWork&& other) noexcept
      : work_(std::move(other.work_)), pending_(std::exchange(other.pending_, false)) {}
  PendingWork& operator=(PendingWork&& other) noexcept {
    work_ = std::move(other.work_);
    pending_ = std::exchange(other.pending_, false);
    return *this;
  }
  ~PendingWork();
  void wait();

 private:
  Work work_;
  bool pending_ = false;
};

class TensorParallel {
 public:
  // REQUIRES: `communicator` outlives the object; `group` is the rank's tensor group, of split.size ranks.
  TensorParallel(Communicator& communicator, Group group, const TensorSplit& split)
      : communicator_(communicator), group_(std::move(group)), split_(split) {}

  const TensorSplit& split() const { return split_; }
  bool sequence_parallel() const { return split_.sequence_parts() > 1; }

  // Every rank's partial sum becomes the sum, in place.
  Work all_reduce(const at::Tensor& data, Purpose purpose, Mode mode = Mode::kSync) const;
  // `full` [tokens, width] becomes everybody's `own` [tokens / t, width], in rank order.
  Work gather(const at::Tensor& own, const at::Tensor& full, Purpose purpose, Mode mode = Mode::kSync) const;
  // `own` becomes this rank's rows of the sum of everybody's `full`.
  Work reduce_scatter(const at::Tensor& full, const at::Tensor& own, Purpose purpose, Mode mode = Mode::kSync) const;
  // `all` [t, ...] becomes everybody's `own`.
  void gather_statistics(const at::Tensor& own, const at::Tensor& all) const;
  // Each number becomes the largest of the ranks'.
  void share_largest(std::vector<float>& numbers) const;

 private:
  Communicator& communicator_;
  Group group_;
  TensorSplit split_;
};

}  // namespace fivefold
