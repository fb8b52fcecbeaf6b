#include "planner/profiles/megatron_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/integer.h"

namespace fivefold {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool is_a100(const FrameworkRun& run) { return run.gpu.starts_with("a100") || run.gpu.starts_with("a800"); }
bool is_blackwell(const FrameworkRun& run) { return run.gpu.starts_with("b") || run.gpu.starts_with("gb"); }

// Scratch of cuBLAS that stays allocated: of the threads of the forward and the backward pass, and Transformer
// Engine's, which has one more for each of four streams of grouped products and two for products beside collectives.
int64_t workspace_bytes(const FrameworkRun& run) {
  constexpr int64_t kRest = 14 * kMiB;  // what else lies there between steps: ids, masks, losses; measured
  const int64_t engine = (is_a100(run) ? 4 : 32) * kMiB;
  const int64_t thread = is_a100(run) && !run.megatron.deterministic ? div_exact(65 * kMiB, 8) : 32 * kMiB;
  return kRest + 2 * thread + (1 + (run.megatron.grouped_experts ? 4 : 0) + (run.megatron.tp_overlap ? 2 : 0)) * engine;
}

// Of an element of a weight, as products in 8 and 4 bits read it: for the forward pass and, where the card wants the
// other layout or the scales run along rows, once more for the backward pass.
double quantised_bytes(const FrameworkRun& run) {
  switch (run.megatron.recipe) {
    case ScalingRecipe::kTensorwise:
      return is_blackwell(run) ? 1 : 2;
    case ScalingRecipe::kBlockwise:
      return 2;
    case ScalingRecipe::kMxfp8:
      return 2 + 2.0 / 32;
    case ScalingRecipe::kNvfp4:
      return 1 + 2.0 / 16;
  }
  return 2;
}

bool is_linear(const ParameterEntry& entry) {
  return entry.decay == DecayClass::kMatrix && !entry.name.ends_with("router.weight") &&
         !entry.name.ends_with("conv.weight");
}

}  // namespace

MegatronStates::MegatronStates(const FrameworkRun& run, const Inventory& inventory, int64_t stage,
                               const std::vector<MegatronChunk>& chunks)
    : run_(run),
      inventory_(inventory),
      stage_(stage),
      vocabulary_(inventory.units[0].parameters[0].whole_shape[0]),
      chunks_(chunks) {
  for (const MegatronChunk& chunk : chunks_)
    for (int64_t layer = chunk.first; layer < chunk.first + chunk.count; ++layer) {
      count(layer_unit(layer));
      if (run.trains_adapter) count_adapter(layer_unit(layer));
      int64_t unit = 0;
      for (const ParameterEntry& entry : layer_unit(layer).parameters) unit += numel(entry);
      n_.largest_unit = std::max(n_.largest_unit, unit);
    }
  count_ends();
}

int64_t MegatronStates::table() const { return div_ceil(vocabulary_ * run_.model.hidden, run_.tp); }
bool MegatronStates::has_prediction() const { return is_last() && run_.megatron.mtp_layers > 0; }

std::vector<int64_t> MegatronStates::prediction_layers() const {
  const auto last = static_cast<int64_t>(run_.model.layers.size()) - 1;
  if (!run_.model.layers.back().single_norm) return {last};
  // Hybrids have mixer and MLP as layers of their own: the last attention and the last MLP.
  int64_t attention = -1, mlp = -1;
  for (int64_t i = 0; i <= last; ++i) {
    const LayerSpec& layer = run_.model.layers[static_cast<size_t>(i)];
    if (layer.mlp.kind != MlpKind::kNone) mlp = i;
    if (layer.mixer.kind == MixerKind::kAttention) attention = i;
  }
  std::vector<int64_t> layers;
  for (const int64_t i : {attention, mlp})
    if (i >= 0) layers.push_back(i);
  return layers;
}

int64_t MegatronStates::gradient_bytes() const {
  // --fp16 adds gradients up in fp16; bf16 in fp32.
  return run_.gradient_dtype.assumed && run_.compute == DType::kFloat16 ? 2 : dtype_bytes(run_.gradient_dtype);
}

int64_t MegatronStates::replicas(int64_t ranks) const {
  return run_.zero >= 1 ? std::max<int64_t>(1, div_floor(ranks, run_.megatron.optimizer_instances)) : 1;
}

int64_t MegatronStates::expert_replicas() const {
  return replicas(div_floor(run_.dp * run_.cp * run_.tp, run_.ep * run_.expert_tp));
}

int64_t MegatronStates::numel(const ParameterEntry& entry) const {
  if (entry.expert) return div_ceil(entry.numel(), run_.ep * run_.expert_tp);
  return entry.split == Split::kReplicated ? entry.numel() : div_ceil(entry.numel(), run_.tp);
}

void MegatronStates::count(const Unit& unit, int64_t times) {
  for (const ParameterEntry& entry : unit.parameters) {
    const int64_t n = times * numel(entry);
    (entry.expert ? n_.expert : n_.dense) += n;
    if (unit.kind == UnitKind::kLayer && is_linear(entry)) (entry.expert ? n_.expert_linear : n_.dense_linear) += n;
  }
}

// A and B of each linear that is a target; both are cut over the tensor group. Packed linears have one adapter.
void MegatronStates::count_adapter(const Unit& unit) {
  static constexpr std::pair<std::string_view, std::array<std::string_view, 4>> kLinears[] = {
      {".qkv.weight", {"q_proj", "k_proj", "v_proj", "qkv_proj"}},
      {".out.weight", {"o_proj"}},
      {".gate_up.weight", {"gate_proj", "up_proj"}},
      {".up.weight", {"up_proj"}},
      {".down.weight", {"down_proj"}}};
  for (const ParameterEntry& entry : unit.parameters)
    for (const auto& [name, modules] : kLinears) {
      const auto is_target = [&](std::string_view module) {
        return std::ranges::find(run_.targets, module) != run_.targets.end();
      };
      if (!entry.expert && entry.name.ends_with(name) && std::ranges::any_of(modules, is_target))
        n_.adapter += div_ceil(run_.rank * (entry.rows() + entry.cols()), run_.tp);
    }
}

// Token table, output matrix and what else the ends of the pipeline have.
void MegatronStates::count_ends() {
  const int64_t h = run_.model.hidden, positions = run_.model.learned_positions ? run_.model.max_positions * h : 0;
  if (cuts_vocabulary()) {
    n_.tables = div_ceil((run_.model.tied_embeddings ? 1 : 2) * table(), run_.pp);
    n_.dense += n_.tables + (is_last() ? h : 0) + (is_first() ? positions : 0);
    return;
  }
  if (is_first()) count(inventory_.units.front());
  if (is_last()) count(inventory_.units.back());
  // A tied output matrix on another stage than the token table is a copy of it; so is the table that modules of
  // multi-token prediction read.
  const bool copies = is_last() && run_.pp > 1 && (run_.model.tied_embeddings || run_.megatron.mtp_layers > 0);
  if (copies) n_.dense += table();
  n_.tables = ((is_first() ? 1 : 0) + (is_last() && !run_.model.tied_embeddings ? 1 : 0) + (copies ? 1 : 0)) * table();
  if (has_prediction()) {
    const int64_t modules = run_.megatron.mtp_weights > 0 ? run_.megatron.mtp_weights : run_.megatron.mtp_layers;
    for (const int64_t layer : prediction_layers()) count(layer_unit(layer), modules);
    n_.dense += modules * (div_ceil(2 * h * h, run_.tp) + 3 * h);
    n_.dense_linear += modules * div_ceil(2 * h * h, run_.tp);
  }
  if (!run_.megatron.masked_lm) return;
  if (is_first()) n_.dense += 2 * h;
  // A dense layer with its norm, a bias of the logits; a pooler and a head of two classes.
  if (is_last()) n_.dense += h * h + 3 * h + div_ceil(vocabulary_, run_.tp) + h * h + h + 2 * h + 2;
}

// Bytes of two kinds of parameters, divided among the ranks that share them under Megatron-FSDP.
int64_t MegatronStates::sharded(int64_t dense, int64_t expert) const {
  if (!run_.megatron.fsdp) return dense + expert;
  return div_ceil(dense, dense_replicas()) + div_ceil(expert, expert_replicas());
}

ProfileLine MegatronStates::optimizer() const {
  if (run_.trains_adapter)
    return {"adapter", 6 * n_.adapter + div_ceil(12 * n_.adapter, dense_replicas()),
            fmt::format("(2 + 4 + 12 / {}) B x {}: weights, fp32 gradients, optimizer", dense_replicas(), n_.adapter)};
  if (run_.optimizer_on_host) return {"optimizer", 0, "on the host"};
  const int64_t master = run_.compute == DType::kFloat32 ? 0 : 4;
  const int64_t adam = master + div_exact(2 * int64_t{run_.optimizer_state_bits}, 8);
  if (!run_.megatron.muon)
    return {"optimizer", div_ceil(adam * n_.dense, dense_replicas()) + div_ceil(adam * n_.expert, expert_replicas()),
            fmt::format("{} B x ({} / {} + {} / {} of experts)", adam, n_.dense, dense_replicas(), n_.expert,
                        expert_replicas())};
  // One moment, of matrices.
  const int64_t muon = master + div_exact(int64_t{run_.optimizer_state_bits}, 8);
  const int64_t rest = n_.dense - n_.dense_linear, of_rest = run_.megatron.whole_adam ? 1 : dense_replicas();
  return {"optimizer",
          div_ceil(muon * n_.dense_linear, dense_replicas()) + div_ceil(muon * n_.expert, expert_replicas()) +
              div_ceil(adam * rest, of_rest),
          fmt::format("{} B x ({} / {} + {} / {} of experts) + {} B x {} / {}", muon, n_.dense_linear, dense_replicas(),
                      n_.expert, expert_replicas(), adam, rest, of_rest)};
}

std::vector<ProfileLine> MegatronStates::lines() const {
  const int64_t n = n_.dense + n_.expert, weight = dtype_bytes(run_.compute), gradient = gradient_bytes();
  const bool quantised = run_.fp8 && run_.megatron.fp8_weights;
  const int64_t dense = n_.dense - (quantised ? n_.dense_linear : 0),
                expert = n_.expert - (quantised ? n_.expert_linear : 0);
  const std::string shards =
      run_.megatron.fsdp ? fmt::format(" / {} (experts {})", dense_replicas(), expert_replicas()) : "";
  std::vector<ProfileLine> lines = {
      {"weights", sharded(weight * dense, weight * expert),
       fmt::format("{} B x {} of {} parameters of the rank{}", weight, dense + expert, n, shards)},
      {"gradients", sharded(gradient * n_.dense, gradient * n_.expert),
       fmt::format("{} B x {}{}", gradient, n, shards)},
      optimizer()};
  if (run_.trains_adapter) lines.erase(lines.begin() + 1);  // what is frozen has no gradients
  if (run_.fp8) add_fp8_copies(lines);
  if (run_.dummy_weight_gradients) add_dummies(lines);
  lines.push_back({"workspace", workspace_bytes(run_), "cuBLAS, by device"});
  return lines;
}

void MegatronStates::add_fp8_copies(std::vector<ProfileLine>& lines) const {
  const double bytes = quantised_bytes(run_), shards = run_.megatron.fsdp ? static_cast<double>(dense_replicas()) : 1;
  const int64_t linear = n_.dense_linear + n_.expert_linear;
  lines.push_back({"quantised weights", static_cast<int64_t>(bytes * static_cast<double>(linear) / shards),
                   fmt::format("{:g} B x {} of linears", bytes, linear)});
}

std::vector<ProfileLine> MegatronStates::gradient_copies() const {
  if (gradient_bytes() >= 4 || run_.optimizer_on_host || run_.trains_adapter) return {};
  return {
      {"fp32 copies of gradients",
       div_ceil(4 * n_.dense, dense_replicas()) + div_ceil(4 * n_.expert, expert_replicas()),
       fmt::format("4 B x ({} / {} + {} / {} of experts)", n_.dense, dense_replicas(), n_.expert, expert_replicas())}};
}

// Whole under Megatron-FSDP: the layer at work, the next one and the tables, which belong to no layer.
std::vector<ProfileLine> MegatronStates::gathered() const {
  if (!run_.megatron.fsdp) return {};
  const int64_t bytes = dtype_bytes(run_.compute);
  return {{"gathered weights", bytes * (2 * n_.largest_unit + n_.tables),
           fmt::format("{} B x (2 x {} + {})", bytes, n_.largest_unit, n_.tables)}};
}

// Transformer Engine hands autograd empty gradients where it adds to the fp32 buffer itself: one for each shape of
// weight, of a layer and of the output matrix.
void MegatronStates::add_dummies(std::vector<ProfileLine>& lines) const {
  const MegatronChunk& chunk = chunks_.back();
  int64_t layer = 0;
  for (const ParameterEntry& entry : layer_unit(std::max<int64_t>(0, chunk.first + chunk.count - 1)).parameters)
    if (is_linear(entry) && !entry.expert) layer += numel(entry);
  lines.push_back({"dummy weight gradients", 2 * layer, fmt::format("2 B x {} weights of a layer", layer)});
  if (is_last())
    lines.push_back({"dummy gradient of the output matrix", 2 * table(), fmt::format("2 B x {}", table())});
}

// Gradients in two bytes: the copies of the first step and, at the same time, Adam's new moments want blocks as large
// as their weights; those of activations serve the small ones only, and the table's from before it moved into the
// buffer of all weights.
std::vector<ProfileLine> MegatronStates::reserved(int64_t tensors, int64_t block) const {
  std::vector<ProfileLine> lines = gradient_copies();
  if (lines.empty())
    return {{"cached blocks", static_cast<int64_t>(0.045 * static_cast<double>(tensors)), "0.045 of the tensors"}};
  int64_t small = 0;
  for (const MegatronChunk& chunk : chunks_)
    for (int64_t layer = chunk.first; layer < chunk.first + chunk.count; ++layer)
      for (const ParameterEntry& entry : layer_unit(layer).parameters)
        if (4 * numel(entry) <= block) small += numel(entry);
  const int64_t old_table = is_first() && !cuts_vocabulary() ? 2 * table() : 0;
  lines.push_back({"of them in cached blocks", -(div_ceil(12 * small, dense_replicas()) + old_table),
                   fmt::format("12 B x {} + {}", small, old_table)});
  return lines;
}

}  // namespace fivefold
