#include "spec/pipeline_stages.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>

#include "base/integer.h"
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

// Work of layers [0, n) for each n: the work of any cut is a difference.
std::vector<double> work_before(const ModelSpec& model, int64_t sequence) {
  const Inventory inventory = build_inventory(model);
  std::vector<double> before{0.0};
  for (size_t i = 0; i < model.layers.size(); ++i)
    before.push_back(before.back() + layer_flops(model, inventory.units[i + 1], sequence));
  return before;
}
double head_flops(const ModelSpec& model) { return 6.0 * static_cast<double>(model.vocab * model.hidden); }

std::vector<double> flops_of(const std::vector<double>& before, double head, const std::vector<int64_t>& layers) {
  std::vector<double> flops;
  size_t first = 0;
  for (const int64_t count : layers) {
    const size_t last = first + static_cast<size_t>(count);
    flops.push_back(before[last] - before[first]);
    first = last;
  }
  flops.back() += head;
  return flops;
}

// The cut whose slowest stage is quickest, and among equals that with the least sum of squares: exact, by the number of
// layers in the first k stages.
std::vector<int64_t> quickest_stages(const std::vector<double>& before, double head, size_t num_stages) {
  struct Cut {
    double slowest = std::numeric_limits<double>::infinity(), squares = 0;
    size_t from = 0;
    bool operator<(const Cut& other) const {
      return slowest != other.slowest ? slowest < other.slowest : squares < other.squares;
    }
  };
  std::vector<std::vector<Cut>> best(num_stages + 1, std::vector<Cut>(before.size()));
  best[0][0].slowest = 0;
  for (size_t k = 1; k <= num_stages; ++k) {
    for (size_t n = 0; n < before.size(); ++n) {
      for (size_t from = 0; from <= n; ++from) {
        const Cut& rest = best[k - 1][from];
        const double work = before[n] - before[from] + (k == num_stages ? head : 0.0);
        const Cut candidate{std::max(rest.slowest, work), rest.squares + work * work, from};
        if (candidate < best[k][n]) best[k][n] = candidate;
      }
    }
  }
  std::vector<int64_t> counts(num_stages);
  size_t n = before.size() - 1;
  for (size_t k = num_stages; k > 0; --k) {
    counts[k - 1] = static_cast<int64_t>(n - best[k][n].from);
    n = best[k][n].from;
  }
  return counts;
}

// What a cut is judged by, in this order.
struct Balance {
  double slowest_rank = 0, slowest_stage = 0, squares = 0;
  auto operator<=>(const Balance&) const = default;
};

Balance balance_of(const ParallelConfig& parallel, const std::vector<double>& flops) {
  Balance balance;
  for (int rank = 0; rank < parallel.pp; ++rank) {
    double work = 0;
    for (int chunk = 0; chunk < parallel.vpp; ++chunk) {
      const double stage = flops[static_cast<size_t>(virtual_stage(placement_of(parallel), parallel.pp, rank, chunk))];
      work += stage;
      balance.slowest_stage = std::max(balance.slowest_stage, stage);
    }
    balance.slowest_rank = std::max(balance.slowest_rank, work);
    balance.squares += work * work;
  }
  return balance;
}

std::vector<int64_t> even_split(int64_t items, int64_t parts) {
  std::vector<int64_t> split(static_cast<size_t>(parts), div_floor(items, parts));
  for (int64_t i = 0; i < items % parts; ++i) ++split[static_cast<size_t>(i)];
  return split;
}

}  // namespace

Placement placement_of(const ParallelConfig& parallel) {
  switch (parallel.schedule) {
    case ScheduleKind::kZbv:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      return Placement::kV;
    case ScheduleKind::kFile:
      return parallel.schedule_source.placement;
    default:
      return Placement::kLoop;
  }
}

int virtual_stage(Placement placement, int num_ranks, int rank, int chunk) {
  const bool back = placement == Placement::kV && chunk % 2 == 1;
  return back ? (chunk + 1) * num_ranks - 1 - rank : chunk * num_ranks + rank;
}

int64_t least_microbatches(const ParallelConfig& parallel, int64_t at_least) {
  if (parallel.pp == 1) return at_least;
  switch (parallel.schedule) {
    case ScheduleKind::kInterleaved:
      return round_up(at_least, int64_t{parallel.pp});
    case ScheduleKind::kDualPipeV:
      return std::max(at_least, 2 * int64_t{parallel.pp});
    case ScheduleKind::kFile:
      return parallel.schedule_source.num_microbatches > 0 ? parallel.schedule_source.num_microbatches : at_least;
    default:
      return at_least;
  }
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

std::vector<double> stage_flops(const ModelSpec& model, const std::vector<int64_t>& layers_per_stage,
                                int64_t sequence) {
  return flops_of(work_before(model, sequence), head_flops(model), layers_per_stage);
}

namespace {

// The virtual stages of the last round, without the very last one: the fewest layers first, then the most.
std::vector<int64_t> fuller_behind_the_first(std::vector<int64_t> layers, const ParallelConfig& parallel) {
  if (parallel.pp < 3 || placement_of(parallel) == Placement::kV) return layers;
  const auto first = layers.end() - parallel.pp, last = layers.end() - 1;
  std::sort(first, last, std::greater<>());
  std::rotate(first, last - 1, last);
  return layers;
}

std::vector<int64_t> quickest_ranks(const std::vector<double>& before, double head, const ParallelConfig& parallel) {
  std::vector<int64_t> best =
      quickest_stages(before, head, static_cast<size_t>(parallel.pp) * static_cast<size_t>(parallel.vpp));
  if (parallel.vpp == 1) return best;
  Balance balance = balance_of(parallel, flops_of(before, head, best));
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t from = 0; from < best.size(); ++from) {
      for (size_t to = 0; to < best.size(); ++to) {
        if (from == to || best[from] == 0) continue;
        std::vector<int64_t> other = best;
        --other[from];
        ++other[to];
        const Balance candidate = balance_of(parallel, flops_of(before, head, other));
        if (!(candidate < balance)) continue;
        best = std::move(other);
        balance = candidate;
        moved = true;
      }
    }
  }
  return best;
}

}  // namespace

std::vector<int64_t> balanced_layers(const ModelSpec& model, const ParallelConfig& parallel, int64_t sequence) {
  const std::vector<double> before = work_before(model, sequence);
  const double head = head_flops(model);
  const std::vector<int64_t> best = quickest_ranks(before, head, parallel);
  std::vector<int64_t> other = fuller_behind_the_first(best, parallel);
  const auto balance = [&](const std::vector<int64_t>& layers) {
    return balance_of(parallel, flops_of(before, head, layers));
  };
  return balance(best) < balance(other) ? best : other;
}

std::vector<int64_t> layers_per_stage(const ModelSpec& model, const ParallelConfig& parallel, int64_t sequence) {
  switch (parallel.stages.cut) {
    case StageCut::kEven:
      break;
    case StageCut::kBalanced:
      return balanced_layers(model, parallel, sequence);
    case StageCut::kListed:
      return parallel.stages.layers;
  }
  return even_split(static_cast<int64_t>(model.layers.size()), int64_t{parallel.pp} * parallel.vpp);
}

}  // namespace fivefold
