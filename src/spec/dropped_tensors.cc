#include "spec/dropped_tensors.h"

#include <bit>

namespace fivefold {
namespace {

constexpr Droppable kAll[] = {Droppable::kAttentionQkv, Droppable::kAttentionOut, Droppable::kMlpGateUp,
                              Droppable::kMlpUp};

}  // namespace

int DroppedTensors::count() const { return std::popcount(bits_); }

std::vector<std::string> DroppedTensors::names() const {
  std::vector<std::string> names;
  for (const Droppable name : kAll)
    if (has(name)) names.emplace_back(to_string(name));
  return names;
}

std::optional<Droppable> droppable(std::string_view name) {
  for (const Droppable known : kAll)
    if (to_string(known) == name) return known;
  return std::nullopt;
}

std::vector<Droppable> droppable_tensors(const ModelSpec& model) {
  DroppedTensors all;
  for (const LayerSpec& layer : model.layers) {
    if (layer.mixer.kind == MixerKind::kAttention) {
      all.add(Droppable::kAttentionQkv);
      all.add(Droppable::kAttentionOut);
    }
    if (layer.mlp.kind == MlpKind::kGated) all.add(Droppable::kMlpGateUp);
    if (layer.mlp.kind == MlpKind::kPlain) all.add(Droppable::kMlpUp);
  }
  std::vector<Droppable> names;
  for (const Droppable name : kAll)
    if (all.has(name)) names.push_back(name);
  return names;
}

DroppedTensors dropped_tensors(const RecomputeConfig& recompute) {
  DroppedTensors dropped;
  if (recompute.kind != RecomputeKind::kSelective) return dropped;
  for (const std::string& tensor : recompute.tensors) {
    const std::optional<Droppable> name = droppable(tensor);
    FIVEFOLD_CHECK(name.has_value(), tensor);
    dropped.add(*name);
  }
  return dropped;
}

}  // namespace fivefold
