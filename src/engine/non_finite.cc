#include "engine/non_finite.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "engine/agreement.h"

namespace fivefold {
namespace {

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  return visit_dtype(tensor, [&]<class T>(std::type_identity<T>) {
    const T* values = elements<T>(tensor);
    return std::all_of(values, values + tensor.numel(),
                       [](T value) { return std::isfinite(kernels::to_float(value)); });
  });
}

// Runs a rank's computation and looks at what each instruction leaves behind, until the first finding.
class FindingExecutor final : public StageExecutor {
 public:
  struct Finding {
    int instruction = 0;  // number of the computation within the step: comparable between ranks
    std::string text;
  };

  explicit FindingExecutor(TrainingExecutor& executor) : executor_(executor) {}

  const std::optional<Finding>& finding() const { return finding_; }

  void forward(int unit, int microbatch, Keep keep) override {
    executor_.forward(unit, microbatch, keep);
    look_at_forward("forward", unit, microbatch);
  }
  void recompute(int unit, int microbatch, bool output_unused) override {
    executor_.recompute(unit, microbatch, output_unused);
    if (!output_unused) look_at_forward("recompute", unit, microbatch);
  }
  void loss(const Instruction& i) override {
    executor_.loss(i);
    next();
    if (!std::isfinite(executor_.local_loss_sum())) return report("loss", i.unit, i.microbatch, bad_weight(i.unit));
    look_at_gradients("the backward of the loss", i.unit, i.microbatch);
  }
  void backward(const Instruction& i) override {
    executor_.backward(i);
    next();
    look_at_gradients("backward", i.unit, i.microbatch);
  }
  void backward_input(int unit, int microbatch) override {
    executor_.backward_input(unit, microbatch);
    next();
    if (!is_finite(executor_.microbatch(microbatch).stream_gradient))
      report("backward", unit, microbatch, "the gradient of its input is not finite");
  }
  void backward_weight(int unit, int microbatch, bool accumulate) override {
    executor_.backward_weight(unit, microbatch, accumulate);
    next();
    look_at_gradients("weights' part of the backward", unit, microbatch);
  }
  Buffer outgoing(const Instruction& send) override { return executor_.outgoing(send); }
  Buffer incoming(const Instruction& receive) override { return executor_.incoming(receive); }
  void free_sent(const Instruction& wait_send) override { executor_.free_sent(wait_send); }
  void accumulate_grads(int unit, bool accumulate) override { executor_.accumulate_grads(unit, accumulate); }
  void optimizer_step(int unit) override { executor_.optimizer_step(unit); }
  void allocate_unsharded(int unit) override { executor_.allocate_unsharded(unit); }
  void free_unsharded(int unit) override { executor_.free_unsharded(unit); }
  void allocate_transient_grads(int unit) override { executor_.allocate_transient_grads(unit); }
  void free_transient_grads(int unit) override { executor_.free_transient_grads(unit); }
  std::vector<InOut> unsharded_params(int unit) override { return executor_.unsharded_params(unit); }
  Buffer params(int unit) override { return executor_.params(unit); }
  Buffer transient_grads(int unit) override { return executor_.transient_grads(unit); }
  Buffer grads(int unit) override { return executor_.grads(unit); }
  Buffer pack_partial_grads(PartialOver over) override { return executor_.pack_partial_grads(over); }
  void unpack_partial_grads(PartialOver over) override { executor_.unpack_partial_grads(over); }
  int64_t local_valid_tokens() const override { return executor_.local_valid_tokens(); }
  void set_global_valid_tokens(int64_t tokens) override { executor_.set_global_valid_tokens(tokens); }
  double local_loss_sum() const override { return executor_.local_loss_sum(); }
  // All reductions are over by now: what the ranks computed was finite, the sum over them may not be.
  double local_squared_grad_norm() override {
    next();
    for (int unit = 0; unit < executor_.inventory().num_units() && !finding_; ++unit)
      if (executor_.holds(unit) && !is_finite(executor_.buffers(unit).grads_shard()))
        report("sum over ranks of the gradients", unit, -1, "");
    return executor_.local_squared_grad_norm();
  }
  void set_grad_norm(double norm) override { executor_.set_grad_norm(norm); }

 private:
  void next() { ++instruction_; }
  const Unit& unit_of(int unit) const { return executor_.inventory().units[static_cast<size_t>(unit)]; }

  void look_at_forward(const std::string& what, int unit, int microbatch) {
    next();
    if (!is_finite(executor_.microbatch(microbatch).stream[static_cast<size_t>(unit)]))
      report(what, unit, microbatch, bad_weight(unit));
  }

  void look_at_gradients(const std::string& what, int unit, int microbatch) {
    const std::vector<ParameterEntry>& parameters = unit_of(unit).parameters;
    std::string bad;
    for (size_t p = 0; p < parameters.size() && bad.empty(); ++p)
      if (parameters[p].trained() && !is_finite(executor_.buffers(unit).weight_grad(static_cast<int>(p))))
        bad = "the gradient of " + parameters[p].name;
    if (!bad.empty()) return report(what, unit, microbatch, bad + " is not finite");
    if (!is_finite(executor_.microbatch(microbatch).stream_gradient))
      report(what, unit, microbatch, "the gradient of its input is not finite");
  }

  // A weight that the unit reads and that is not finite, as text; empty: none.
  std::string bad_weight(int unit) {
    const std::vector<ParameterEntry>& parameters = unit_of(unit).parameters;
    for (size_t p = 0; p < parameters.size(); ++p)
      if (parameters[p].storage != Storage::kFourBit && !is_finite(executor_.buffers(unit).weight(static_cast<int>(p))))
        return "its weight " + parameters[p].name + " is not finite";
    const Inventory& inventory = executor_.inventory();
    const bool reads_embedding = unit == inventory.head() && inventory.tied_embeddings;
    return reads_embedding ? bad_weight(inventory.embedding()) : "";
  }

  void report(const std::string& what, int unit, int microbatch, const std::string& detail) {
    if (finding_) return;
    std::string text = "the " + what + " of " + unit_of(unit).name;
    if (microbatch >= 0) text += ", microbatch " + std::to_string(microbatch);
    finding_ = Finding{instruction_, detail.empty() ? text : text + " (" + detail + ")"};
  }

  TrainingExecutor& executor_;
  int instruction_ = 0;
  std::optional<Finding> finding_;
};

// Of the texts "INSTRUCTION TEXT" of the ranks, those of the earliest instruction: "TEXT on rank 0, 2".
std::string earliest(const std::vector<std::string>& all) {
  int first = -1;
  for (const std::string& one : all)
    if (!one.empty() && (first < 0 || std::stoi(one) < first)) first = std::stoi(one);
  if (first < 0)
    return "not seen again when the step was repeated: a fault of memory or processor that passed, not of the model";
  std::string text;
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty() || std::stoi(all[rank]) != first) continue;
    if (text.empty()) text = all[rank].substr(all[rank].find(' ') + 1);
    ranks.push_back(std::to_string(rank));
  }
  return "first in " + text + (ranks.size() == 1 ? " on rank " : " on ranks ") + join(ranks, ", ");
}

}  // namespace

std::string explain_non_finite(RankSession& session, const std::vector<MicrobatchTokens>& microbatches) {
  session.interpreter().finish_parameter_gathers();
  session.load(microbatches);
  FindingExecutor finder(session.executor());
  {
    Interpreter again(session.communicator(), session.groups(), sharding_policy(session.config()), finder);
    again.run_step(session.program(), [](double, double) { return false; });
    again.finish_parameter_gathers();
  }
  const auto& finding = finder.finding();
  return earliest(gather_texts(session.communicator(), session.communicator().world(),
                               finding ? std::to_string(finding->instruction) + " " + finding->text : ""));
}

}  // namespace fivefold
