// Megatron-LM: a stage's states, what its layers keep, the loss. Derivations and constants: docs/profiles/megatron.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/inventory_memo.h"
#include "planner/profiles/megatron_parts.h"
#include "planner/profiles/megatron_states.h"
#include "spec/inventory.h"

namespace fivefold {
namespace {

int64_t logits_bytes_per_element(const FrameworkRun& run) {
  switch (run.cross_entropy) {
    case CrossEntropyKernel::kTransformerEngine:
      return 2;
    case CrossEntropyKernel::kNativeFused:
      return run.gpu.starts_with("a100") ? 15 : 10;
    case CrossEntropyKernel::kEager:  // until June 2024 the loss subtracted the maximum into a copy
      return 10;
    default:
      return run.compute == DType::kFloat32 ? 4 : 6;  // bf16 logits, fp32 copy
  }
}

class MegatronStage {
 public:
  MegatronStage(const FrameworkRun& run, const Inventory& inventory, int64_t stage)
      : run_(run), stage_(stage), chunks_(megatron_chunks(run, stage)), states_(run, inventory, stage, chunks_) {}

  ProfileMemory memory() const {
    ProfileMemory memory;
    const std::vector<ProfileLine> states = states_.lines();
    for (const ProfileLine& line : states) memory.static_bytes += line.bytes;
    ProfilePhase backward{.name = "backward", .lines = states};
    for (ProfileLine& line : states_.gathered()) backward.lines.push_back(std::move(line));
    add_activations(backward);
    ProfilePhase optimizer{.name = "optimizer", .lines = states, .fragments = false};
    for (ProfileLine& line : states_.gradient_copies()) optimizer.lines.push_back(std::move(line));
    if (run_.megatron.figure == MemoryFigure::kReserved)
      for (ProfileLine& line : states_.reserved(backward.bytes(), largest_activation()))
        backward.lines.push_back(std::move(line));
    memory.phases = {std::move(backward), std::move(optimizer)};
    return memory;
  }

 private:
  bool is_last() const { return stage_ == run_.pp - 1; }
  bool cuts_vocabulary() const { return run_.vocabulary_stages != VocabularyStages::kLast && run_.pp > 1; }
  int64_t tokens() const { return run_.micro * div_exact(run_.sequence, run_.cp); }
  const LayerSpec& layer(int64_t index) const { return run_.model.layers[static_cast<size_t>(index)]; }
  int64_t largest_activation() const {
    int64_t width = run_.model.hidden;
    for (const LayerSpec& each : run_.model.layers) width = std::max(width, div_ceil(each.mlp.ffn, run_.tp));
    return 2 * width * tokens();
  }

  void add_activations(ProfilePhase& step) const {
    const auto tok = static_cast<double>(tokens()), h = static_cast<double>(run_.model.hidden);
    const auto parts = static_cast<double>(sequence_parts(run_));
    const int64_t elements =
        tokens() * div_ceil(states_.padded_vocabulary(), run_.tp * (cuts_vocabulary() ? run_.pp : 1));
    const bool has_logits = is_last() || cuts_vocabulary();
    const int64_t logits = has_logits ? logits_bytes_per_element(run_) * elements : 0;
    const auto line = [&](const char* name, double bytes, std::string formula) {
      if (bytes > 0) step.lines.push_back({name, static_cast<int64_t>(bytes), std::move(formula)});
    };
    // What a stage has received of the next one's gradients, and what it sends.
    if (run_.pp > 1)
      line("transfers", 4 * h / parts * tok,
           fmt::format("2 tensors x 2 B x h {} x {} tokens", run_.model.hidden, tok / parts));
    // The fp32 broadcast of the last hidden states and its 2-byte copy, two gradients of them, and three embeddings on
    // their way to the first stage.
    if (cuts_vocabulary()) line("collectives of the vocabulary", 16 * h * tok, fmt::format("16 B x h {} x {}", h, tok));
    if (is_last() && run_.megatron.deferred_head_gradients > 0)
      line("deferred gradients of the output matrix",
           static_cast<double>(run_.megatron.deferred_head_gradients) *
               (2 * static_cast<double>(elements) + 2 * h * tok),
           fmt::format("{} microbatches x 2 B x ({} + h {} x {})", int64_t{run_.megatron.deferred_head_gradients},
                       elements, h, tok));
    if (states_.has_prediction()) add_prediction(line, static_cast<double>(elements));
    if (add_kept(line, static_cast<double>(logits))) return;
    const MegatronChunk& last = chunks_.back();
    if (run_.checkpointing == Checkpointing::kCoreAttention && last.count > 0) {
      const double scores = megatron_scores_bytes(run_, layer(last.first + last.count - 1).mixer);
      line("scores of a layer", scores * tok, fmt::format("{:g} B a token x {:g}, made again", scores, tok));
    }
    const double gradients = last.count > 0 ? megatron_gradient_bytes(run_, layer(last.first + last.count - 1)) : 0;
    line("gradients of a layer", gradients * tok, fmt::format("{:g} B a token x {}", gradients, tok));
    line("logits", static_cast<double>(logits), fmt::format("{} B x {}", logits_bytes_per_element(run_), elements));
  }

  // Modules of multi-token prediction: their layers, and the softmax that each one's loss keeps while the next one's
  // logits are there.
  void add_prediction(auto line, double elements) const {
    const auto tok = static_cast<double>(tokens()), modules = static_cast<double>(run_.megatron.mtp_layers);
    double kept = megatron_prediction_bytes(run_);
    for (const int64_t like : states_.prediction_layers()) kept += megatron_layer_bytes(run_, layer(like));
    const int softmax = run_.cross_entropy == CrossEntropyKernel::kTransformerEngine ? 2 : 4;
    line("multi-token prediction", modules * kept * tok, fmt::format("{} x {:g} B a token x {}", modules, kept, tok));
    line("its losses", modules * softmax * elements, fmt::format("{} x {} B x {}", modules, softmax, elements));
  }

  // What is kept of the layers. Under full recompute the layer that runs again is there before the logits or after
  // them: true when it is the larger of the two, and so in their place.
  bool add_kept(auto line, double logits) const {
    const auto tok = static_cast<double>(tokens());
    const bool full = run_.checkpointing == Checkpointing::kFull;
    const double input = 2.0 * static_cast<double>(run_.model.hidden) / static_cast<double>(sequence_parts(run_));
    double kept = 0, largest = 0, flights = 0;
    for (const MegatronChunk& chunk : chunks_) {
      flights += chunk.in_flight * static_cast<double>(chunk.count);
      for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
        const double bytes = megatron_layer_bytes(run_, layer(i));
        kept += chunk.in_flight * (full ? input : bytes);
        largest = std::max(largest, bytes);
      }
    }
    // On the host but for the layer at work and the one that is on its way (--cpu-offloading).
    if (run_.activations_on_host) kept = std::min(kept, 2 * largest);
    line(full ? "layer inputs" : "activations", kept * tok,
         fmt::format("{:g} B a token of {:g} layers in flight x {}", kept, flights, tok));
    if (!full || largest * tok < logits) return false;
    line("layer that runs again", largest * tok, fmt::format("{:g} B a token x {}", largest, tok));
    return true;
  }

  const FrameworkRun& run_;
  int64_t stage_;
  std::vector<MegatronChunk> chunks_;
  MegatronStates states_;
};

std::vector<std::string> assumptions(const FrameworkRun& run) {
  std::vector<std::string> assumed;
  if (run.cross_entropy.assumed) assumed.emplace_back("cross-entropy: unfused, 6 B an element of the logits");
  if (run.attention.assumed) assumed.emplace_back("attention: a flash kernel, no scores kept");
  if (run.gradient_dtype.assumed)
    assumed.emplace_back(run.compute == DType::kFloat16 ? "gradients: fp16" : "gradients: fp32");
  if (run.ep > 1 && run.expert_imbalance.assumed)
    assumed.emplace_back("experts: the fullest rank has 1.1 times the mean of the rows");
  return assumed;
}

}  // namespace

ProfileMemory megatron_memory(const FrameworkRun& given) {
  FrameworkRun run = given;
  run.model.vocab = round_up(run.model.vocab, 128 * run.tp);
  const std::shared_ptr<const Inventory> known = remembered_inventory(run.model);
  const Inventory& inventory = *known;
  ProfileMemory most =
      reported_memory(run, [&](int64_t stage) { return MegatronStage(run, inventory, stage).memory(); });
  most.assumed = assumptions(run);
  return most;
}

}  // namespace fivefold
