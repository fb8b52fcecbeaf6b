// Megatron-LM: bf16 or fp16 weights, fp32 gradients in one buffer, Adam's states in fp32, divided by the distributed
// optimizer. Derivations and constants: docs/profiles.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/inventory_memo.h"
#include "spec/inventory.h"

namespace fivefold {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Scratch of cuBLAS that stays allocated.
int64_t workspace_bytes(const FrameworkRun& run) { return (run.gpu.starts_with("a100") ? 96 : 112) * kMiB; }

int64_t logits_bytes_per_element(const FrameworkRun& run) {
  switch (run.cross_entropy) {
    case CrossEntropyKernel::kTransformerEngine:
      return 2;
    case CrossEntropyKernel::kNativeFused:
      return run.gpu.starts_with("a100") ? 15 : 10;
    default:
      return 6;  // bf16 logits, fp32 copy
  }
}

class MegatronStage {
 public:
  MegatronStage(const FrameworkRun& run, const Inventory& inventory, int64_t stage)
      : run_(run), inventory_(inventory), stage_(stage) {
    const auto layers = static_cast<int64_t>(run.model.layers.size());
    if (!run.stage_layers.empty()) {
      for (int64_t before = 0; before < stage; ++before) first_ += run.stage_layers[static_cast<size_t>(before)];
      count_ = run.stage_layers[static_cast<size_t>(stage)];
    } else {
      // Interleaved stages have layers of every part of the model; only like ones are told apart here.
      count_ = div_ceil(layers, run.pp);
      first_ = std::min(stage * count_, layers - count_);
    }
    count_parameters();
  }

  ProfileMemory memory() const {
    ProfileMemory memory;
    add_states(memory);
    memory.static_bytes = 0;
    ProfilePhase step{.name = "step", .lines = states_};
    for (const ProfileLine& line : states_) memory.static_bytes += line.bytes;
    add_activations(step);
    memory.phases.push_back(std::move(step));
    return memory;
  }

 private:
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == run_.pp - 1; }
  bool cuts_vocabulary() const { return run_.vocabulary_stages != VocabularyStages::kLast && run_.pp > 1; }
  int64_t tokens() const { return run_.micro * div_exact(run_.sequence, run_.cp); }
  int64_t sequence_parts() const { return run_.sp ? run_.tp : 1; }
  int64_t vocabulary() const { return inventory_.units[0].parameters[0].whole_shape[0]; }
  int64_t expert_ranks() const { return run_.ep * run_.expert_tp; }

  void count(const Unit& unit) {
    for (const ParameterEntry& entry : unit.parameters) {
      const bool whole = entry.split == Split::kReplicated;
      (entry.expert ? expert_ : dense_) += entry.expert ? div_ceil(entry.numel(), expert_ranks())
                                           : whole      ? entry.numel()
                                                        : div_ceil(entry.numel(), run_.tp);
    }
  }
  // The token table and the output matrix, or their share of them.
  void count_parameters() {
    for (int64_t layer = first_; layer < first_ + count_; ++layer)
      count(inventory_.units[static_cast<size_t>(layer) + 1]);
    const int64_t before = dense_;
    if (is_first()) count(inventory_.units.front());
    if (is_last()) count(inventory_.units.back());
    // A tied output matrix on another stage than the token table is a copy of it.
    const int64_t table = div_ceil(vocabulary() * run_.model.hidden, run_.tp);
    if (is_last() && run_.model.tied_embeddings && run_.pp > 1) dense_ += table;
    if (!cuts_vocabulary()) return;
    dense_ =
        before + (is_last() ? run_.model.hidden : 0) + div_ceil((run_.model.tied_embeddings ? 1 : 2) * table, run_.pp);
  }

  void add_states(ProfileMemory&) const {
    const int64_t n = dense_ + expert_, gradient = dtype_bytes(run_.gradient_dtype);
    const auto line = [&](const char* name, int64_t bytes, const std::string& formula) {
      states_.push_back({name, bytes, formula});
    };
    line("weights", 2 * n, fmt::format("2 B x {} parameters of the rank", n));
    line("gradients", gradient * n, fmt::format("{} B x {}", gradient, n));
    const int64_t replicas = run_.zero >= 1 ? run_.dp * run_.cp : 1;
    const int64_t expert_replicas =
        run_.zero >= 1 ? std::max<int64_t>(1, div_floor(run_.dp * run_.cp * run_.tp, expert_ranks())) : 1;
    line("optimizer", div_ceil(12 * dense_, replicas) + div_ceil(12 * expert_, expert_replicas),
         fmt::format("12 B x ({} / {} + {} / {} of experts)", dense_, replicas, expert_, expert_replicas));
    if (run_.dummy_weight_gradients) add_dummies();
    line("workspace", workspace_bytes(run_), "cuBLAS, constant of the device");
  }

  // Transformer Engine hands autograd empty gradients where it adds to the fp32 buffer itself: one for each shape of
  // weight, of a layer and of the output matrix.
  void add_dummies() const {
    int64_t layer = 0;
    for (const ParameterEntry& entry :
         inventory_.units[static_cast<size_t>(first_) + 1 + static_cast<size_t>(count_ - 1)].parameters)
      if (entry.decay == DecayClass::kMatrix && !entry.expert && !entry.name.ends_with("router.weight"))
        layer += entry.split == Split::kReplicated ? entry.numel() : div_ceil(entry.numel(), run_.tp);
    states_.push_back({"dummy weight gradients", 2 * layer, fmt::format("2 B x {} weights of a layer", layer)});
    if (!is_last()) return;
    const int64_t head = div_ceil(vocabulary() * run_.model.hidden, run_.tp);
    states_.push_back({"dummy gradient of the output matrix", 2 * head, fmt::format("2 B x {}", head)});
  }

  double mixer_bytes(const MixerSpec& m) const {
    const auto t = static_cast<double>(run_.tp);
    const auto a = static_cast<double>(m.num_heads), k = static_cast<double>(m.num_kv_heads),
               d = static_cast<double>(m.head_dim);
    double bytes = (2 * (a + 2 * k) * d + 2 * a * d + 4 * a) / t;
    double scored = a;
    if (m.kind == MixerKind::kLatentAttention) {
      const auto nope = static_cast<double>(m.qk_nope_head_dim), rope = static_cast<double>(m.qk_rope_head_dim),
                 v = static_cast<double>(m.v_head_dim);
      // Query and key in full width, value, output; latents before and after their norms.
      bytes = a * (4 * (nope + rope) + 4 * v + 4) / t + 4 * static_cast<double>(m.q_lora_rank) +
              4 * static_cast<double>(m.kv_lora_rank) + 2 * rope;
    }
    if (m.qk_norm) bytes += (2 * (a + k) * d + 4 * (a + k)) / t;
    if (run_.attention == AttentionKernel::kUnfused)
      bytes += (run_.dropout ? 5 : 4) * scored * static_cast<double>(div_exact(run_.sequence, run_.cp)) / t;
    return bytes;
  }

  double mlp_bytes(const MlpSpec& m) const {
    const auto h = static_cast<double>(run_.model.hidden), t = static_cast<double>(run_.tp);
    const auto inner = [](bool gated) { return gated ? 6.0 : 4.0; };
    if (m.kind != MlpKind::kMoe) return inner(m.kind == MlpKind::kGated) * static_cast<double>(m.ffn) / t;
    const double rows =
        static_cast<double>(m.experts_per_token * run_.expert_tp) / static_cast<double>(sequence_parts());
    const double expert =
        inner(m.expert_gated) * static_cast<double>(m.expert_ffn) / static_cast<double>(run_.expert_tp);
    // Rows as dispatched, inside the experts, and as they come out; the router's logits and probabilities.
    const double gathered = run_.gathers_for_experts ? 2 * h * static_cast<double>(run_.ep) : 0.0;
    return gathered + rows * run_.expert_imbalance * (2 * h + expert) + rows * 2 * h +
           8 * static_cast<double>(m.num_experts) / static_cast<double>(sequence_parts()) +
           inner(m.expert_gated) * static_cast<double>(m.shared_ffn) / t;
  }

  double layer_bytes(const LayerSpec& layer) const {
    const auto h = static_cast<double>(run_.model.hidden);
    return (8 + (run_.dropout ? 2 : 0)) * h / static_cast<double>(sequence_parts()) + mixer_bytes(layer.mixer) +
           mlp_bytes(layer.mlp);
  }

  // Microbatches in flight, in units of all the stage's layers.
  double in_flight() const {
    const auto m = static_cast<double>(run_.microbatches), p = static_cast<double>(run_.pp),
               v = static_cast<double>(run_.vpp), r = static_cast<double>(stage_);
    if (run_.pp == 1) return 1;
    double flight = v > 1 ? std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1) / v : std::min(m, p - r);
    switch (run_.vocabulary_stages) {
      case VocabularyStages::kLast:
        break;
      case VocabularyStages::kOneMore:
        flight += 1;
        break;
      case VocabularyStages::kTwoMore:
        flight += 2;
        break;
      case VocabularyStages::kInterlaced:
        flight *= 1.5;
        break;
    }
    return flight;
  }

  // What the backward of a layer begins with: the gradients of its output and of the product inside its MLP.
  double gradient_bytes(const LayerSpec& layer) const {
    const MlpSpec& m = layer.mlp;
    const double inner = m.kind == MlpKind::kMoe ? static_cast<double>(m.experts_per_token * m.expert_ffn) /
                                                           static_cast<double>(sequence_parts()) +
                                                       static_cast<double>(m.shared_ffn) / static_cast<double>(run_.tp)
                                                 : static_cast<double>(m.ffn) / static_cast<double>(run_.tp);
    return 2 * static_cast<double>(run_.model.hidden) / static_cast<double>(sequence_parts()) + 2 * inner;
  }

  void add_activations(ProfilePhase& step) const {
    double per_token = 0, largest = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const double layer = layer_bytes(run_.model.layers[static_cast<size_t>(first_ + i)]);
      per_token += layer;
      largest = std::max(largest, layer);
    }
    const auto tok = static_cast<double>(tokens());
    const int64_t elements = tokens() * div_ceil(vocabulary(), run_.tp * (cuts_vocabulary() ? run_.pp : 1));
    const int64_t logits = is_last() || cuts_vocabulary() ? logits_bytes_per_element(run_) * elements : 0;
    const auto line = [&](const char* name, double bytes, std::string formula) {
      if (bytes > 0) step.lines.push_back({name, static_cast<int64_t>(bytes), std::move(formula)});
    };
    // What a stage has received of the next one's gradients, and what it sends.
    if (run_.pp > 1)
      line("transfers", 4.0 * static_cast<double>(run_.model.hidden) / static_cast<double>(sequence_parts()) * tok,
           fmt::format("2 tensors x 2 B x h {} x {} tokens", run_.model.hidden, tokens() / sequence_parts()));
    if (run_.checkpointing == Checkpointing::kFull) {
      const double inputs =
          2.0 * static_cast<double>(run_.model.hidden * count_) / static_cast<double>(sequence_parts());
      line("layer inputs", inputs * tok * in_flight(),
           fmt::format("{} B a token x {} x {:g} in flight", inputs, tokens(), in_flight()));
      // The layer that runs again is there before the logits or after them.
      if (largest * tok >= static_cast<double>(logits))
        return line("layer that runs again", largest * tok, fmt::format("{:g} B a token x {}", largest, tokens()));
    } else {
      line("activations", per_token * tok * in_flight(),
           fmt::format("{:g} B a token of {} layers x {} x {:g} in flight", per_token, count_, tokens(), in_flight()));
    }
    const double gradients =
        count_ > 0 ? gradient_bytes(run_.model.layers[static_cast<size_t>(first_ + count_ - 1)]) : 0;
    line("gradients of a layer", gradients * tok, fmt::format("{:g} B a token x {}", gradients, tokens()));
    line("logits", static_cast<double>(logits), fmt::format("{} B x {}", logits_bytes_per_element(run_), elements));
  }

  const FrameworkRun& run_;
  const Inventory& inventory_;
  int64_t stage_, first_ = 0, count_ = 0;
  int64_t dense_ = 0, expert_ = 0;  // parameters of the rank
  mutable std::vector<ProfileLine> states_;
};

std::vector<std::string> assumptions(const FrameworkRun& run) {
  std::vector<std::string> assumed;
  if (run.cross_entropy.assumed) assumed.emplace_back("cross-entropy: unfused, 6 B an element of the logits");
  if (run.attention.assumed) assumed.emplace_back("attention: a flash kernel, no scores kept");
  if (run.gradient_dtype.assumed) assumed.emplace_back("gradients: fp32");
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
