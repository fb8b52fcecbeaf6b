// DroppedTensors: the saved tensors of a layer that selective recompute does not keep: a set of the names that
// recompute.tensors takes. What is computed again for them is spec/rebuild.h. Plain data, thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// A name stands for what is kept or dropped together: a product and what follows from it in place.
enum class Droppable : uint8_t {
  kAttentionQkv,  // packed queries, keys and values, after their norm and RoPE, and what the norm keeps
  kAttentionOut,  // the heads' output and the scores' log-sum-exp
  kMlpGateUp,     // of a gated MLP
  kMlpUp,         // of a plain one
};
inline constexpr std::string_view kDroppableNames[] = {"attention.qkv", "attention.out", "mlp.gate_up", "mlp.up"};
constexpr std::string_view to_string(Droppable name) { return kDroppableNames[static_cast<size_t>(name)]; }

class DroppedTensors {
 public:
  void add(Droppable name) { bits_ |= bit(name); }
  bool has(Droppable name) const { return (bits_ & bit(name)) != 0; }
  bool empty() const { return bits_ == 0; }
  int count() const;
  std::vector<std::string> names() const;
  auto operator<=>(const DroppedTensors&) const = default;

 private:
  static constexpr uint8_t bit(Droppable name) { return static_cast<uint8_t>(1U << static_cast<unsigned>(name)); }
  uint8_t bits_ = 0;
};

std::optional<Droppable> droppable(std::string_view name);
// The names that some layer of the model has.
std::vector<Droppable> droppable_tensors(const ModelSpec& model);
// Empty unless the kind is selective. REQUIRES: the names are valid.
DroppedTensors dropped_tensors(const RecomputeConfig& recompute);

}  // namespace fivefold
