#include "spec/pipeline_stages.h"

#include <algorithm>
#include <limits>

#include "spec/inventory.h"

namespace fivefold {
namespace {

// Per token, forward and backward: 6 for each element of a matrix that multiplies it, and attention's 6 a d s.
double layer_flops(const ModelSpec& model, const Unit& unit, int64_t sequence) {
  const LayerSpec& layer = model.layers[static_cast<size_t>(unit.layer)];
  double elements = 0;
  for (const ParameterEntry& entry : unit.parameters) {
    if (entry.decay != DecayClass::kMatrix) continue;
    const double share = entry.expert ? static_cast<double>(layer.mlp.experts_per_token) /
                                            static_cast<double>(std::max<int64_t>(layer.mlp.num_experts, 1))
                                      : 1.0;
    elements += share * static_cast<double>(entry.numel());
  }
  const MixerSpec& mixer = layer.mixer;
  const int64_t seen = mixer.window > 0 ? std::min(mixer.window, sequence) : sequence;
  return 6 * elements + 6 * static_cast<double>(mixer.num_heads * mixer.head_dim * seen);
}

}  // namespace

Placement placement_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kZbv:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      return Placement::kV;
    default:
      return Placement::kLoop;
  }
}

int virtual_stage(Placement placement, int num_ranks, int rank, int chunk) {
  const bool back = placement == Placement::kV && chunk % 2 == 1;
  return back ? (chunk + 1) * num_ranks - 1 - rank : chunk * num_ranks + rank;
}

std::vector<StageUnits> stage_units(const std::vector<int64_t>& layers_per_stage) {
  std::vector<StageUnits> stages;
  int unit = 0;
  for (size_t i = 0; i < layers_per_stage.size(); ++i) {
    StageUnits stage{unit, unit + static_cast<int>(layers_per_stage[i])};
    if (i == 0) ++stage.last;
    if (i + 1 == layers_per_stage.size()) ++stage.last;
    unit = stage.last;
    stages.push_back(stage);
  }
  return stages;
}

std::vector<int64_t> balanced_layers(const ModelSpec& model, int64_t num_stages, int64_t sequence) {
  const auto layers = static_cast<int64_t>(model.layers.size());
  const Inventory inventory = build_inventory(model);
  std::vector<double> before(static_cast<size_t>(layers) + 1, 0.0);  // flops of the layers before each
  for (int64_t i = 0; i < layers; ++i)
    before[static_cast<size_t>(i) + 1] =
        before[static_cast<size_t>(i)] + layer_flops(model, inventory.units[static_cast<size_t>(i) + 1], sequence);
  const double head = 6.0 * static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  // best[k][n]: the first n layers in k stages: the slowest stage, and among equals the least sum of squares.
  struct Cut {
    double slowest = std::numeric_limits<double>::infinity(), squares = 0;
    int64_t from = 0;
    bool operator<(const Cut& other) const {
      return slowest != other.slowest ? slowest < other.slowest : squares < other.squares;
    }
  };
  std::vector<std::vector<Cut>> best(static_cast<size_t>(num_stages) + 1,
                                     std::vector<Cut>(static_cast<size_t>(layers) + 1));
  best[0][0].slowest = 0;
  for (int64_t k = 1; k <= num_stages; ++k) {
    for (int64_t n = 0; n <= layers; ++n) {
      Cut& cut = best[static_cast<size_t>(k)][static_cast<size_t>(n)];
      for (int64_t from = 0; from <= n; ++from) {
        const Cut& rest = best[static_cast<size_t>(k) - 1][static_cast<size_t>(from)];
        const double work =
            before[static_cast<size_t>(n)] - before[static_cast<size_t>(from)] + (k == num_stages ? head : 0.0);
        const Cut candidate{std::max(rest.slowest, work), rest.squares + work * work, from};
        if (candidate < cut) cut = candidate;
      }
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(num_stages));
  int64_t n = layers;
  for (int64_t k = num_stages; k > 0; --k) {
    const int64_t from = best[static_cast<size_t>(k)][static_cast<size_t>(n)].from;
    counts[static_cast<size_t>(k) - 1] = n - from;
    n = from;
  }
  return counts;
}

}  // namespace fivefold
