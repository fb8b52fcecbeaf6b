#include "engine/layers/tensor_parallel.h"

#include <exception>

namespace fivefold {
namespace {

Buffer buffer_of(const at::Tensor& tensor) { return as_buffer(tensor, dtype_of(tensor)); }

CallOptions call(Mode mode) { return {.mode = mode, .stream = {}, .keep_alive = {}}; }

}  // namespace

PendingWork::~PendingWork() {
  if (!pending_) return;
  try {
    work_.wait_host();
  } catch (const std::exception&) {
    // What ended the call is on its way already.
  }
}

void PendingWork::wait() {
  if (std::exchange(pending_, false)) work_.wait_host();
}

Work TensorParallel::all_reduce(const at::Tensor& data, Purpose purpose, Mode mode) const {
  return communicator_.all_reduce(group_, buffer_of(data), Reduction::kSum, purpose, call(mode));
}

void TensorParallel::share_largest(std::vector<float>& numbers) const {
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(float));
  communicator_.all_reduce(group_, {numbers.data(), bytes, DType::kFloat32, {}}, Reduction::kMax, Purpose::kScales);
}

Work TensorParallel::gather(const at::Tensor& own, const at::Tensor& full, Purpose purpose, Mode mode) const {
  return communicator_.all_gather(group_, buffer_of(own), buffer_of(full), purpose, call(mode));
}

Work TensorParallel::reduce_scatter(const at::Tensor& full, const at::Tensor& own, Purpose purpose, Mode mode) const {
  return communicator_.reduce_scatter(group_, buffer_of(full), buffer_of(own), Reduction::kSum, purpose, call(mode));
}

void TensorParallel::gather_statistics(const at::Tensor& own, const at::Tensor& all) const {
  communicator_.all_gather(group_, buffer_of(own), buffer_of(all), Purpose::kLoss);
}

}  // namespace fivefold
