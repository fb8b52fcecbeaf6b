// PyTorch's fully_shard: shards of weights, gradients and states; units are gathered around their use. torchtitan
// (fp32 shards) and torchtune (bf16, also adapters and one GPU). Derivations and constants: docs/profiles/fsdp2.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/model_sizes.h"

namespace fivefold {
namespace {

constexpr double kNf4 = 0.5 + 1.0 / 64, kNf4Double = 0.5 + 1.0 / 64 + 4.0 / (64 * 256);

// Bytes for each element of a rank's logits at the loss.
double logits_bytes(const FrameworkRun& run) {
  switch (run.cross_entropy) {
    case CrossEntropyKernel::kUnfused:
      return 6;  // bf16, fp32
    case CrossEntropyKernel::kCompiled:
      return 3;
    case CrossEntropyKernel::kNativeFused:  // flash-attention's: bf16 logits and their gradient
      return 4;
    case CrossEntropyKernel::kChunked:
      return run.trains_adapter ? 2.5 : 4;  // bf16 in pieces, their gradients, one piece of eight in fp32
    default:
      // Over a cut vocabulary (loss parallel) every pass has its own tensor: logits, fp32 copy, log-softmax, two
      // gradients, and the softmax.
      return run.tp > 1 ? 22 : 14.8;
  }
}

class ShardedRun {
 public:
  // Stages of as many layers.
  ShardedRun(const FrameworkRun& run, const ModelSizes& sizes, int64_t stage)
      : run_(run), sizes_(sizes), stage_(stage) {
    const auto layers = static_cast<int64_t>(run.model.layers.size());
    const int64_t count = div_ceil(layers, run.pp), first = std::min(stage * count, layers - count);
    for (int64_t i = first; i < first + count; ++i) {
      const auto size = static_cast<double>(sizes.layers[static_cast<size_t>(i)]);
      layers_.push_back(run.model.layers[static_cast<size_t>(i)]);
      largest_ = std::max(largest_, widths_bytes(layers_.back(), false));
      largest_layer_ = std::max(largest_layer_, size);
      parameters_ += size;
    }
    if (is_first()) embeddings_ += static_cast<double>(sizes.table);
    if (is_last()) {
      embeddings_ += static_cast<double>(sizes.head);
      if (run.model.tied_embeddings && run.pp > 1) embeddings_ += static_cast<double>(sizes.table);
      parameters_ += static_cast<double>(sizes.norm);
    }
    parameters_ += embeddings_;
    if (run.trains_adapter) count_adapter();
  }

  ProfileMemory memory() const {
    ProfileMemory memory;
    ProfilePhase loss{.name = "loss", .lines = {}}, update{.name = "optimizer", .lines = {}};
    add_weights(loss);
    add_states(loss);
    memory.static_bytes = loss.bytes();
    update.lines = loss.lines;
    // A sharded run keeps what it once reserved for gradients; of one GPU's they are gone at the loss.
    const double gradients = gradient_bytes();
    const char* of = run_.reduces_once ? "whole, reduced once a step" : "of the shard";
    if (sharded()) add_line(loss, "gradients", gradients, of);
    add_line(update, "gradients", gradients, of);
    if (sharded()) add_line(loss, "unsharded", unsharded_bytes(), "two layers, and the token table or output matrix");
    add_activations(loss);
    memory.phases = {loss, update};
    return memory;
  }

 private:
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == run_.pp - 1; }
  double in_flight() const { return static_cast<double>(std::min(run_.microbatches, run_.pp - stage_)); }
  bool sharded() const { return run_.zero == 3 && shards() > 1; }
  double shards() const {
    if (run_.zero != 3) return 1;
    return static_cast<double>(run_.shard_size > 0 ? run_.shard_size : run_.dp * run_.cp);
  }
  double parameters() const { return parameters_; }
  double tokens() const { return static_cast<double>(rank_tokens(run_)); }
  double tp() const { return static_cast<double>(run_.tp); }
  double hidden() const { return static_cast<double>(run_.model.hidden); }
  double sequence_parts() const { return run_.sp ? tp() : 1; }
  double embeddings() const { return embeddings_; }

  // A and B of each target.
  void count_adapter() {
    const auto in_targets = [&](const char* name) {
      return std::ranges::any_of(run_.targets, [&](const std::string& target) { return target == name; });
    };
    for (const LayerSpec& layer : layers_) {
      const LayerWidths w = layer_widths(layer);
      const auto rank = static_cast<double>(run_.rank);
      const auto add = [&](const char* name, double sides) {
        if (in_targets(name)) adapter_ += rank * sides;
      };
      add("q_proj", hidden() + w.query);
      add("k_proj", hidden() + w.key_value / 2);
      add("v_proj", hidden() + w.key_value / 2);
      add("o_proj", hidden() + w.query);
      for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) add(matrix, hidden() + w.inner);
    }
  }

  double weight_bytes() const {
    switch (run_.frozen) {
      case FrozenWeights::kNf4:
        return kNf4 * (parameters() - embeddings()) + 2 * embeddings();
      case FrozenWeights::kNf4Double:
        return kNf4Double * (parameters() - embeddings()) + 2 * embeddings();
      default:
        return static_cast<double>(dtype_bytes(run_.weight_dtype)) * parameters();
    }
  }

  void add_weights(ProfilePhase& phase) const {
    if (run_.sharding.weights_on_host) return;
    add_line(phase, "weights", weight_bytes() / shards(),
             fmt::format("{:.0f} B / {:g} ranks", weight_bytes(), shards()));
  }

  void add_states(ProfilePhase& phase) const {
    if (run_.sharding.weights_on_host || run_.optimizer_on_host) return;
    const double of_each = run_.optimizer_state_bits / 4.0;  // two moments
    if (run_.trains_adapter)
      add_line(phase, "adapter", (2 + of_each) * adapter_ / shards(), fmt::format("{:.0f} parameters", adapter_));
    else
      add_line(phase, "optimizer", of_each * parameters() / shards(),
               fmt::format("{:g} B x {:.0f} / {:g}", of_each, parameters(), shards()));
  }

  double gradient_bytes() const {
    if (run_.sharding.weights_on_host || run_.sharding.optimizer_in_backward) return 0;
    const auto bytes = static_cast<double>(dtype_bytes(run_.gradient_dtype));
    return bytes * (run_.trains_adapter ? adapter_ : parameters()) / (run_.reduces_once ? 1 : shards());
  }

  double unsharded_bytes() const {
    const double layer = run_.frozen == FrozenWeights::kNf4Double ? kNf4Double
                         : run_.frozen == FrozenWeights::kNf4     ? kNf4
                                                                  : 2;
    return 2 * layer * largest_layer_ + (is_first() || is_last() ? 2 * static_cast<double>(sizes_.table) : 0);
  }

  // Rows of experts, as they come and as they go, and what is beside the products of queries, keys and values.
  double beside_products(const LayerWidths& w) const {
    const double uneven = run_.ep > 1 ? double{run_.expert_imbalance} : 1.0;
    return 4 * hidden() * w.rows * uneven / sequence_parts() + 2 * w.latent + 2 * w.state / tp();
  }

  // What a layer keeps for its backward pass, a token. Compiled layers make the norms' casts and SiLU again, and of a
  // frozen MLP the product too.
  double widths_bytes(const LayerSpec& layer, bool per_operation) const {
    const LayerWidths w = layer_widths(layer);
    const double attention = 2 * w.output + 4 * w.heads;
    // Every second product of queries, keys, values, output, gate, up and down, the attention output and the input.
    if (per_operation)
      return (layer.single_norm ? 2 : 4) * hidden() / sequence_parts() + beside_products(w) / 2 +
             (2 * w.query + w.key_value + 2 * w.inner + attention) / tp();
    const double inner = !w.gated ? 4 : !run_.sharding.compiled ? 8 : run_.trains_adapter ? 4 : 6;
    const double norms = (run_.sharding.compiled || run_.hf.fused_norms ? 8 : 16) * (layer.single_norm ? 0.5 : 1);
    return norms * hidden() / sequence_parts() + beside_products(w) +
           (2 * w.query + 2 * w.key_value + attention + inner * w.inner) / tp();
  }

  void add_activations(ProfilePhase& phase) const {
    double kept = 0;
    int64_t number = 0;
    for (const LayerSpec& layer : layers_) {
      const double input = 2 * hidden() / sequence_parts();
      switch (run_.checkpointing) {
        case Checkpointing::kFull:
          kept += run_.activations_on_host ? 0 : input;
          break;
        case Checkpointing::kPerOperation:
          kept += widths_bytes(layer, true);
          break;
        case Checkpointing::kEveryOther:
          kept += number++ % 2 == 0 ? input : widths_bytes(layer, false);
          break;
        default:
          kept += widths_bytes(layer, false);
      }
    }
    add_line(phase, "activations", kept * tokens() * in_flight(),
             fmt::format("{:g} B a token x {:g} x {:g} in flight", kept, tokens(), in_flight()));
    const double elements = is_last() ? tokens() * static_cast<double>(run_.model.vocab) / tp() : 0;
    const double logits = logits_bytes(run_) * elements;
    // The layer that runs again is there before the logits or after them.
    if (run_.checkpointing != Checkpointing::kNone && largest_ * tokens() > logits)
      add_line(phase, "layer that runs again", largest_ * tokens(), fmt::format("{:g} B a token", largest_));
    else
      add_line(phase, "logits", logits, fmt::format("{:g} B x {:.0f}", logits_bytes(run_), elements));
    // The output matrix's input in full and its gradient; async tensor parallelism sends and multiplies in pieces.
    if (is_last() && run_.tp > 1 && run_.sp && run_.keeps_gathered_inputs)
      add_line(phase, "gathered inputs", 4 * hidden() * tokens(), "2 x 2 B x h, whole sequence");
  }

  const FrameworkRun& run_;
  const ModelSizes& sizes_;
  int64_t stage_;
  std::vector<LayerSpec> layers_;           // of the stage
  double largest_ = 0, largest_layer_ = 0;  // bytes a token; parameters
  double parameters_ = 0, embeddings_ = 0, adapter_ = 0;
};

std::vector<std::string> assumptions(const FrameworkRun& run) {
  std::vector<std::string> assumed;
  if (run.cross_entropy.assumed)
    assumed.push_back(fmt::format("cross-entropy: {:g} B an element of the logits", logits_bytes(run)));
  if (run.sharding.compiled.assumed)
    assumed.emplace_back(run.sharding.compiled ? "layers: compiled" : "layers: not compiled");
  if (run.weight_dtype.assumed) assumed.push_back(fmt::format("weights: {} B each", dtype_bytes(run.weight_dtype)));
  return assumed;
}

}  // namespace

ProfileMemory fsdp2_memory(const FrameworkRun& run) {
  const ModelSizes sizes = model_sizes(run);
  ProfileMemory most = reported_memory(run, [&](int64_t stage) { return ShardedRun(run, sizes, stage).memory(); });
  most.assumed = assumptions(run);
  return most;
}

}  // namespace fivefold
