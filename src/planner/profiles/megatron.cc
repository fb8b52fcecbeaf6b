// Megatron-LM: bf16 or fp16 weights, gradients in one buffer, Adam's states in fp32, divided by the distributed
// optimizer. Derivations and constants: docs/profiles/megatron.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/inventory_memo.h"
#include "planner/profiles/megatron_parts.h"
#include "spec/inventory.h"

namespace fivefold {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool is_a100(const FrameworkRun& run) { return run.gpu.starts_with("a100") || run.gpu.starts_with("a800"); }

// Scratch of cuBLAS that stays allocated; Transformer Engine's grouped products have one for each of four streams.
int64_t workspace_bytes(const FrameworkRun& run) {
  return ((is_a100(run) ? 96 : 112) + (run.megatron.grouped_experts ? 4 * (is_a100(run) ? 4 : 32) : 0)) * kMiB;
}

int64_t logits_bytes_per_element(const FrameworkRun& run) {
  switch (run.cross_entropy) {
    case CrossEntropyKernel::kTransformerEngine:
      return 2;
    case CrossEntropyKernel::kNativeFused:
      return is_a100(run) ? 15 : 10;
    case CrossEntropyKernel::kEager:  // until June 2024 the loss subtracted the maximum into a copy
      return 10;
    default:
      return 6;  // bf16 logits, fp32 copy
  }
}

class MegatronStage {
 public:
  MegatronStage(const FrameworkRun& run, const Inventory& inventory, int64_t stage)
      : run_(run), inventory_(inventory), stage_(stage), chunks_(megatron_chunks(run, stage)) {
    count_parameters();
  }

  ProfileMemory memory() const {
    ProfileMemory memory;
    const std::vector<ProfileLine> states = state_lines();
    for (const ProfileLine& line : states) memory.static_bytes += line.bytes;
    ProfilePhase backward{.name = "backward", .lines = states};
    add_activations(backward);
    ProfilePhase optimizer{.name = "optimizer", .lines = states, .fragments = false};
    if (gradient_bytes() < 4) optimizer.lines.push_back(gradient_copies());
    if (run_.megatron.figure == MemoryFigure::kReserved) add_reserved(backward);
    memory.phases = {std::move(backward), std::move(optimizer)};
    return memory;
  }

 private:
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == run_.pp - 1; }
  bool cuts_vocabulary() const { return run_.vocabulary_stages != VocabularyStages::kLast && run_.pp > 1; }
  int64_t tokens() const { return run_.micro * div_exact(run_.sequence, run_.cp); }
  int64_t vocabulary() const { return inventory_.units[0].parameters[0].whole_shape[0]; }
  int64_t table() const { return div_ceil(vocabulary() * run_.model.hidden, run_.tp); }
  int64_t expert_ranks() const { return run_.ep * run_.expert_tp; }
  // --fp16 adds gradients up in fp16; bf16 in fp32.
  int64_t gradient_bytes() const {
    return run_.gradient_dtype.assumed && run_.compute == DType::kFloat16 ? 2 : dtype_bytes(run_.gradient_dtype);
  }
  int64_t replicas(int64_t ranks) const {
    return run_.zero >= 1 ? std::max<int64_t>(1, div_floor(ranks, run_.megatron.optimizer_instances)) : 1;
  }
  int64_t dense_replicas() const { return replicas(run_.dp * run_.cp); }
  int64_t expert_replicas() const { return replicas(div_floor(run_.dp * run_.cp * run_.tp, expert_ranks())); }
  int64_t numel(const ParameterEntry& entry) const {
    return entry.expert                        ? div_ceil(entry.numel(), expert_ranks())
           : entry.split == Split::kReplicated ? entry.numel()
                                               : div_ceil(entry.numel(), run_.tp);
  }
  const Unit& layer_unit(int64_t layer) const { return inventory_.units[static_cast<size_t>(layer) + 1]; }

  void count(const Unit& unit) {
    for (const ParameterEntry& entry : unit.parameters) (entry.expert ? expert_ : dense_) += numel(entry);
  }
  // The token table and the output matrix, or their share of them.
  void count_parameters() {
    for (const MegatronChunk& chunk : chunks_)
      for (int64_t layer = chunk.first; layer < chunk.first + chunk.count; ++layer) count(layer_unit(layer));
    const int64_t before = dense_, h = run_.model.hidden;
    if (is_first()) count(inventory_.units.front());
    if (is_last()) count(inventory_.units.back());
    // A tied output matrix on another stage than the token table is a copy of it.
    if (is_last() && run_.model.tied_embeddings && run_.pp > 1) dense_ += table();
    if (run_.megatron.masked_lm && is_first()) dense_ += 2 * h;
    // A dense layer with its norm, a bias of the logits; a pooler and a head of two classes.
    if (run_.megatron.masked_lm && is_last())
      dense_ += h * h + 3 * h + div_ceil(vocabulary(), run_.tp) + h * h + h + 2 * h + 2;
    if (cuts_vocabulary())
      dense_ = before + (is_last() ? h : 0) +
               (is_first() && run_.model.learned_positions ? run_.model.max_positions * h : 0) +
               div_ceil((run_.model.tied_embeddings ? 1 : 2) * table(), run_.pp);
  }

  std::vector<ProfileLine> state_lines() const {
    const int64_t n = dense_ + expert_, gradient = gradient_bytes();
    std::vector<ProfileLine> lines = {
        {"weights", 2 * n, fmt::format("2 B x {} parameters of the rank", n)},
        {"gradients", gradient * n, fmt::format("{} B x {}", gradient, n)},
        {"optimizer", div_ceil(12 * dense_, dense_replicas()) + div_ceil(12 * expert_, expert_replicas()),
         fmt::format("12 B x ({} / {} + {} / {} of experts)", dense_, dense_replicas(), expert_, expert_replicas())}};
    if (run_.dummy_weight_gradients) add_dummies(lines);
    lines.push_back({"workspace", workspace_bytes(run_), "cuBLAS, constant of the device"});
    return lines;
  }

  // The optimizer steps on fp32 copies of gradients that were added up in two bytes.
  ProfileLine gradient_copies() const {
    return {"fp32 copies of gradients",
            div_ceil(4 * dense_, dense_replicas()) + div_ceil(4 * expert_, expert_replicas()),
            fmt::format("4 B x ({} / {} + {} / {} of experts)", dense_, dense_replicas(), expert_, expert_replicas())};
  }

  // Transformer Engine hands autograd empty gradients where it adds to the fp32 buffer itself: one for each shape of
  // weight, of a layer and of the output matrix.
  void add_dummies(std::vector<ProfileLine>& lines) const {
    const MegatronChunk& chunk = chunks_.back();
    int64_t layer = 0;
    for (const ParameterEntry& entry : layer_unit(std::max<int64_t>(0, chunk.first + chunk.count - 1)).parameters)
      if (entry.decay == DecayClass::kMatrix && !entry.expert && !entry.name.ends_with("router.weight"))
        layer += numel(entry);
    lines.push_back({"dummy weight gradients", 2 * layer, fmt::format("2 B x {} weights of a layer", layer)});
    if (is_last())
      lines.push_back({"dummy gradient of the output matrix", 2 * table(), fmt::format("2 B x {}", table())});
  }

  // What the caching allocator holds beside the tensors. Gradients in two bytes: the copies of the first step and, at
  // the same time, Adam's new moments want blocks as large as their weights; those of activations serve the small ones
  // only, and the table's from before it moved into the buffer of all weights.
  void add_reserved(ProfilePhase& phase) const {
    if (gradient_bytes() >= 4) {
      phase.lines.push_back(
          {"cached blocks", static_cast<int64_t>(0.045 * static_cast<double>(phase.bytes())), "0.045 of the tensors"});
      return;
    }
    phase.lines.push_back(gradient_copies());
    int64_t small = 0;
    for (const MegatronChunk& chunk : chunks_)
      for (int64_t layer = chunk.first; layer < chunk.first + chunk.count; ++layer)
        for (const ParameterEntry& entry : layer_unit(layer).parameters)
          if (4 * numel(entry) <= largest_activation()) small += numel(entry);
    const int64_t old_table = is_first() && !cuts_vocabulary() ? 2 * table() : 0;
    phase.lines.push_back({"of them in cached blocks", -(div_ceil(12 * small, dense_replicas()) + old_table),
                           fmt::format("12 B x {} + {}", small, old_table)});
  }
  int64_t largest_activation() const {
    int64_t width = run_.model.hidden;
    for (const LayerSpec& layer : run_.model.layers) width = std::max(width, div_ceil(layer.mlp.ffn, run_.tp));
    return 2 * width * tokens();
  }

  void add_activations(ProfilePhase& step) const {
    const auto tok = static_cast<double>(tokens()), h = static_cast<double>(run_.model.hidden);
    const auto parts = static_cast<double>(sequence_parts(run_));
    const int64_t elements = tokens() * div_ceil(vocabulary(), run_.tp * (cuts_vocabulary() ? run_.pp : 1));
    const int64_t logits = is_last() || cuts_vocabulary() ? logits_bytes_per_element(run_) * elements : 0;
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

  const LayerSpec& layer(int64_t index) const { return run_.model.layers[static_cast<size_t>(index)]; }

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
    line(full ? "layer inputs" : "activations", kept * tok,
         fmt::format("{:g} B a token of {:g} layers in flight x {}", kept, flights, tok));
    if (!full || largest * tok < logits) return false;
    line("layer that runs again", largest * tok, fmt::format("{:g} B a token x {}", largest, tok));
    return true;
  }

  const FrameworkRun& run_;
  const Inventory& inventory_;
  int64_t stage_;
  std::vector<MegatronChunk> chunks_;
  int64_t dense_ = 0, expert_ = 0;  // parameters of the rank
};

std::vector<std::string> assumptions(const FrameworkRun& run) {
  std::vector<std::string> assumed;
  if (run.cross_entropy.assumed) assumed.emplace_back("cross-entropy: unfused, 6 B an element of the logits");
  if (run.attention.assumed) assumed.emplace_back("attention: a flash kernel, no scores kept");
  if (run.gradient_dtype.assumed)
    assumed.emplace_back(run.compute == DType::kFloat16 ? "gradients: fp16" : "gradients: fp32");
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
