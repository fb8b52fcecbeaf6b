#include "spec/adapter.h"

#include <algorithm>
#include <cmath>

#include "spec/inventory.h"
#include "spec/run_config.h"

namespace fivefold {
namespace {

constexpr std::string_view kWeight = ".weight";

// "q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string module_name(const std::string& hub_name) {
  const std::string module = hub_name.substr(0, hub_name.size() - kWeight.size());
  return module.substr(module.rfind('.') + 1);
}

// Matrices of layers that multiply all tokens: not the router, not a convolution, not routed experts.
bool is_linear(const Unit& unit, const ParameterEntry& entry) {
  return unit.kind == UnitKind::kLayer && entry.decay == DecayClass::kMatrix && !entry.expert &&
         entry.name.ends_with(kWeight) && !entry.name.ends_with(".router.weight") &&
         !entry.name.ends_with(".conv.weight");
}

std::string peft_name(const std::string& hub_name, const char* tensor) {
  return "base_model.model." + hub_name.substr(0, hub_name.size() - kWeight.size()) + "." + tensor;
}

// Entries A and B of one linear, and with DoRA its magnitudes; B's rows are those of the adapted tensors, A's a block
// of `rank` for each.
void append_adapter(Unit& unit, const ParameterEntry& base, const std::vector<int>& adapted, const AdapterSpec& spec) {
  const bool row = base.split == Split::kRow, whole = base.parts.size() != base.pieces.size();
  const std::string stem = base.name.substr(0, base.name.size() - kWeight.size());
  ParameterEntry a, b;
  a.adapter = b.adapter = true;
  a.name = stem + ".lora_a.weight";
  b.name = stem + ".lora_b.weight";
  a.split = row ? Split::kRow : Split::kReplicated;
  b.split = row ? Split::kReplicated : base.split;
  a.replicated_grad = b.replicated_grad = ReplicatedGrad::kPartial;
  // PEFT's start: Kaiming's uniform with a = sqrt(5), which is uniform in +-1 / sqrt(in); B is zero.
  a.initializer = Initializer::kUniform;
  a.init_std = 1.0 / std::sqrt(3.0 * static_cast<double>(base.cols()));
  b.initializer = Initializer::kZeros;
  b.adapted_parts = adapted;
  int64_t rows = 0;
  for (size_t i = 0; i < adapted.size(); ++i) {
    const HubPart& part = base.parts[static_cast<size_t>(adapted[i])];
    a.parts.push_back({peft_name(part.name, "lora_A.weight"), static_cast<int64_t>(i) * spec.rank, spec.rank, false});
    b.parts.push_back({peft_name(part.name, "lora_B.weight"), rows, part.rows, false});
    rows += part.rows;
    if (!whole) b.pieces.push_back(base.pieces[static_cast<size_t>(adapted[i])]);
  }
  if (whole) b.pieces = base.pieces;
  const auto count = static_cast<int64_t>(adapted.size());
  a.pieces = {count * spec.rank};
  a.shape = {count * spec.rank, base.cols()};
  b.shape = {rows, spec.rank};
  unit.parameters.push_back(std::move(a));
  unit.parameters.push_back(b);
  if (!spec.dora) return;
  ParameterEntry magnitude = std::move(b);
  magnitude.name = stem + ".lora_magnitude";
  magnitude.shape = {rows};
  magnitude.decay = DecayClass::kVector;
  magnitude.initializer = Initializer::kRowLengths;
  for (size_t i = 0; i < adapted.size(); ++i)
    magnitude.parts[i].name = peft_name(base.parts[static_cast<size_t>(adapted[i])].name, "lora_magnitude_vector");
  unit.parameters.push_back(std::move(magnitude));
}

}  // namespace

ModelSpec with_method(ModelSpec model, const MethodConfig& method) {
  model.adapter.reset();
  if (method.kind == MethodKind::kFull) return model;
  const auto rank = static_cast<double>(method.rank);
  model.adapter = AdapterSpec{.rank = method.rank,
                              .scale = method.alpha / (method.rank_stabilized ? std::sqrt(rank) : rank),
                              .dropout = method.dropout,
                              .dora = method.dora,
                              .four_bit_base = method.kind == MethodKind::kQlora,
                              .double_quantization = method.double_quantization,
                              .targets = method.targets};
  return model;
}

std::vector<std::string> adapter_targets(const ModelSpec& model) {
  ModelSpec base = model;
  base.adapter.reset();
  std::vector<std::string> names;
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    const auto index = static_cast<size_t>(layer);
    if (layer > 0 && model.layers[index] == model.layers[index - 1]) continue;
    const Unit unit = build_unit(base, layer + 1);
    for (const ParameterEntry& entry : unit.parameters) {
      if (!is_linear(unit, entry)) continue;
      for (const HubPart& part : entry.parts) {
        const std::string name = module_name(part.name);
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  return names;
}

void attach_adapter(Unit& unit, const AdapterSpec& adapter) {
  const bool all = std::find(adapter.targets.begin(), adapter.targets.end(), "all-linear") != adapter.targets.end();
  const size_t count = unit.parameters.size();
  for (size_t p = 0; p < count; ++p) {
    const ParameterEntry base = unit.parameters[p];
    const bool linear = is_linear(unit, base);
    unit.parameters[p].storage = linear && adapter.four_bit_base ? Storage::kFourBit : Storage::kFrozen;
    if (!linear) continue;
    std::vector<int> adapted;
    for (size_t i = 0; i < base.parts.size(); ++i) {
      const std::string name = module_name(base.parts[i].name);
      if (all || std::find(adapter.targets.begin(), adapter.targets.end(), name) != adapter.targets.end())
        adapted.push_back(static_cast<int>(i));
    }
    if (!adapted.empty()) append_adapter(unit, base, adapted, adapter);
  }
}

}  // namespace fivefold
