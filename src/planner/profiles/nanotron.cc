// nanotron: bf16 weights, fp32 gradients in one buffer, Adam's states in fp32, 1F1B, stages cut by the cost of their
// blocks. Derivations and constants: docs/profiles/nanotron.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/model_sizes.h"

namespace fivefold {
// Layers of each stage. A stage ends with the block that brings the cost of all so far to its share: a layer costs its
// products (queries, keys and values counted as four of h x a d), the output matrix its own.
std::vector<int64_t> nanotron_stages(const FrameworkRun& run) {
  if (!run.stage_layers.empty()) return run.stage_layers;
  std::vector<double> costs;
  for (const LayerSpec& layer : run.model.layers) {
    const LayerWidths w = layer_widths(layer);
    costs.push_back((4 * w.query + 3 * w.inner) * static_cast<double>(run.model.hidden));
  }
  double total = static_cast<double>(run.model.vocab * run.model.hidden);
  for (const double cost : costs) total += cost;
  std::vector<int64_t> counts(static_cast<size_t>(run.pp), 0);
  size_t stage = 0;
  double sum = 0;
  for (const double cost : costs) {
    ++counts[stage];
    sum += cost;
    if (sum >= total * static_cast<double>(stage + 1) / static_cast<double>(run.pp) && stage + 1 < counts.size())
      ++stage;
  }
  return counts;
}

namespace {

// What is reserved beside the tensors of the activations: blocks that do not fit the next request.
constexpr double kReserveOfActivations = 0.14;
// Logits in bf16, in fp32, and the softmax that the loss keeps.
constexpr int64_t kLogitsBytes = 2 + 4 + 4;
// Reserved with DistributedDataParallel (ZeRO 0), a parameter.
constexpr double kDdpBytes = 0.5;
// Buffers of collectives on their own stream that have not come back yet: of a column linear's gathered input, and of
// the loss's stage, a token and entry of the whole vocabulary.
constexpr double kHeldInputs = 0.67, kHeldAtHead = 0.8;
constexpr double kRest = 0.2 * 0x1p30;

class NanotronStage {
 public:
  NanotronStage(const FrameworkRun& run, const ModelSizes& sizes, const std::vector<int64_t>& stage_layers,
                int64_t stage)
      : run_(run), sizes_(sizes), stage_(stage) {
    for (int64_t before = 0; before < stage; ++before) first_ += stage_layers[static_cast<size_t>(before)];
    count_ = stage_layers[static_cast<size_t>(stage)];
    for (int64_t layer = first_; layer < first_ + count_; ++layer)
      parameters_ += sizes.layers[static_cast<size_t>(layer)];
    if (stage == 0) parameters_ += sizes.table;
    if (is_last()) parameters_ += sizes.norm + sizes.head;
    // A tied output matrix on a stage without the token table is a copy of it.
    if (is_last() && run.model.tied_embeddings && run.pp > 1) parameters_ += sizes.table;
  }

  ProfileMemory memory() const {
    ProfileMemory memory;
    ProfilePhase step{.name = "step", .lines = {}};
    const auto n = static_cast<double>(parameters_);
    const int64_t replicas = run_.zero >= 1 ? run_.dp * run_.cp : 1;
    add_line(step, "weights", 2 * n, fmt::format("2 B x {} parameters of the rank", parameters_));
    add_line(step, "gradients", 4 * n, fmt::format("4 B x {}, fp32", parameters_));
    add_line(step, "optimizer", 12 * n / static_cast<double>(replicas),
             fmt::format("12 B x {} / {}", parameters_, replicas));
    memory.static_bytes = step.bytes();
    add_line(step, "bf16 gradients", 2 * n, fmt::format("2 B x {}, until the backward pass ends", parameters_));
    if (run_.zero == 0 && run_.dp > 1)
      add_line(step, "buckets", kDdpBytes * n, fmt::format("{:g} B x {}", kDdpBytes, parameters_));
    add_activations(step);
    if (is_last()) {
      const double elements = tokens() * static_cast<double>(run_.model.vocab) / tp();
      add_line(step, "logits", kLogitsBytes * elements, fmt::format("{} B x {:.0f}", kLogitsBytes, elements));
    }
    add_collectives(step);
    add_line(step, "rest", kRest, "constant");
    memory.phases.push_back(std::move(step));
    return memory;
  }

 private:
  bool is_last() const { return stage_ == run_.pp - 1; }
  double tokens() const { return static_cast<double>(rank_tokens(run_)); }
  double tp() const { return static_cast<double>(run_.tp); }
  double hidden() const { return static_cast<double>(run_.model.hidden); }
  double sequence_parts() const { return run_.sp ? tp() : 1; }
  double in_flight() const { return static_cast<double>(std::min(run_.microbatches, run_.pp - stage_)); }

  // Eager layers: both norms' inputs and outputs, Q, K and V after RoPE, the attention output and its log-sum-exp, gate
  // and up, SiLU's output, the product.
  double layer_bytes(const LayerSpec& layer) const {
    const LayerWidths w = layer_widths(layer);
    return (8 * hidden() + 8) / sequence_parts() +
           (2 * w.query + 2 * w.output + 2 * w.key_value + (w.gated ? 8 : 4) * w.inner + 4 * w.heads) / tp();
  }

  void add_activations(ProfilePhase& step) const {
    double kept = 0, largest = 0;
    for (int64_t layer = first_; layer < first_ + count_; ++layer) {
      const double bytes = layer_bytes(run_.model.layers[static_cast<size_t>(layer)]);
      largest = std::max(largest, bytes);
      kept += run_.checkpointing == Checkpointing::kFull ? 2 * hidden() / sequence_parts() : bytes;
    }
    double activations = kept * tokens() * in_flight();
    if (run_.checkpointing == Checkpointing::kFull) activations += largest * tokens();
    add_line(step, "activations", activations,
             fmt::format("{:g} B a token of {} layers x {} x {:g} in flight", kept, count_, tokens(), in_flight()));
    add_line(step, "reserved beside activations", kReserveOfActivations * activations,
             fmt::format("{:g} of them", kReserveOfActivations));
    if (run_.pp > 1)
      add_line(step, "stage outputs", 2 * hidden() / sequence_parts() * tokens() * in_flight(),
               fmt::format("2 B x h {} x {} in flight", hidden(), in_flight()));
  }

  // Two gather buffers stay allocated for good. What else a collective reads and writes is given back to the allocator
  // only once the GPU has passed it, which is later than the next request when the CPU is ahead.
  void add_collectives(ProfilePhase& step) const {
    if (run_.tp == 1 || !run_.sp) return;
    add_line(step, "gather buffers", 4 * hidden() * tokens(), "2 x 2 B x h, whole sequence");
    if (!run_.keeps_gathered_inputs) return;
    const double whole = 4 * hidden() * (1 - 1 / tp()) * tokens() * static_cast<double>(count_) * in_flight();
    add_line(step, "buffers of collectives", kHeldInputs * whole,
             fmt::format("{:g} x 4 B x h x (1 - 1/t) a token, layer and microbatch", kHeldInputs));
    if (run_.pp == 1)
      add_line(step, "buffers at the loss", kHeldAtHead * tokens() * static_cast<double>(run_.model.vocab),
               fmt::format("{:g} B x whole logits", kHeldAtHead));
  }

  const FrameworkRun& run_;
  const ModelSizes& sizes_;
  int64_t stage_, first_ = 0, count_ = 0;
  int64_t parameters_ = 0;
};

// Whether the CPU is ahead, so that buffers of collectives pile up, when nobody has said so. A stage that waits for its
// neighbour's tensors every microbatch is not, unless its work outlasts the wait.
bool cpu_is_ahead(const FrameworkRun& run, const ModelSizes& sizes, int64_t layers) {
  const int64_t world = run.tp * run.pp * run.dp * run.cp;
  if (run.tp == 1 || run.tp > 32 || world > 256) return false;
  if (run.pp == 1) return true;
  if (run.tp > 16) return false;
  double parameters = static_cast<double>(sizes.table);
  for (int64_t layer = 0; layer < layers; ++layer)
    parameters += static_cast<double>(sizes.layers[static_cast<size_t>(layer)]);
  if (run.pp == 2) return parameters * static_cast<double>(rank_tokens(run)) >= 1.4e13;
  return run.tp * run.dp <= 32;
}

}  // namespace

ProfileMemory nanotron_memory(const FrameworkRun& given) {
  FrameworkRun run = given;
  const ModelSizes sizes = model_sizes(run);
  const std::vector<int64_t> layers = nanotron_stages(run);
  if (run.keeps_gathered_inputs.assumed) run.keeps_gathered_inputs.value = cpu_is_ahead(run, sizes, layers.front());
  ProfileMemory most =
      reported_memory(run, [&](int64_t stage) { return NanotronStage(run, sizes, layers, stage).memory(); });
  if (run.tp > 1 && run.keeps_gathered_inputs.assumed)
    most.assumed.push_back(run.keeps_gathered_inputs ? "buffers of collectives pile up: the CPU is ahead"
                                                     : "buffers of collectives come back at once");
  return most;
}

}  // namespace fivefold
