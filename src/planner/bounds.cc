#include "planner/bounds.h"

#include <algorithm>

#include "base/integer.h"
#include "planner/rank_view.h"

namespace fivefold {

int64_t state_bytes(const Inventory& inventory, const ResolvedConfig& config) {
  int64_t bytes = 0;
  for (const Unit& unit : inventory.units)
    for (const StateBuffer& buffer :
         state_buffers(unit, sharding_policy(config), optimizer_states(config.config.optimizer)))
      bytes += buffer.bytes();
  return bytes;
}

int64_t saved_activation_bytes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  const TapeShape shape = tape_shape(config);
  const auto layers = static_cast<int64_t>(model.layers.size());
  if (const int64_t every = lowering_options(config).recompute_every; every > 0)
    return div_ceil(layers, every) * shape.tokens * model.hidden * dtype_bytes(config.compute);
  int64_t per_token = 0, of_layer = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool repeats =
        layer > 0 && model.layers[static_cast<size_t>(layer)] == model.layers[static_cast<size_t>(layer) - 1];
    if (!repeats) {
      of_layer = 0;
      const UnitOperations operations = unit_operations(model, inventory, static_cast<int>(layer) + 1, {}, {},
                                                        dropped_tensors(config.config.recompute));
      for (const SavedTensor& tensor : saved_tensors(operations, "", config.compute))
        of_layer += tensor.bytes_per_token;
    }
    per_token += of_layer;
  }
  return per_token * shape.tokens;
}

int64_t one_layer_bytes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  const RankView part(model, inventory, config, 0);
  TapeShape shape = tape_shape(config);
  shape.tokens = div_exact(config.padded_sequence, config.degrees.cp);
  int64_t largest = 0;
  for (int unit = 1; unit < inventory.head(); ++unit) {
    const bool repeats =
        unit > 1 && model.layers[static_cast<size_t>(unit) - 1] == model.layers[static_cast<size_t>(unit) - 2];
    if (repeats) continue;
    // Weights and their gradients.
    const Unit& own = part.inventory().units[static_cast<size_t>(unit)];
    int64_t bytes = (2 * own.aligned_numel + own.frozen_numel) * dtype_bytes(config.compute) + own.four_bit_bytes;
    for (const SavedTensor& tensor : saved_tensors(
             unit_operations(part.model(), part.inventory(), unit, part.split(), part.context(), part.dropped()), "",
             config.compute))
      bytes += saved_bytes(tensor, shape);
    largest = std::max(largest, bytes);
  }
  return largest;
}

}  // namespace fivefold
