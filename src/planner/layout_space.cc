#include "planner/layout_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/integer.h"
#include "planner/scope.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// A batch of a size that models of a few billion parameters are trained with, when none is asked for; on a CPU one that
// a step of seconds gets through.
constexpr int64_t kTokensPerStepGpu = int64_t{1} << 19;
constexpr int64_t kTokensPerStepCpu = int64_t{1} << 14;
constexpr int64_t kMaxMicrobatch = 64;

constexpr ScheduleKind kPlainFirst[] = {ScheduleKind::k1F1B,        ScheduleKind::kGPipe, ScheduleKind::kNaive,
                                        ScheduleKind::kInterleaved, ScheduleKind::kZb1p,  ScheduleKind::kZbv,
                                        ScheduleKind::kZb2p,        ScheduleKind::kVHalf, ScheduleKind::kVMin,
                                        ScheduleKind::kDualPipeV};

int64_t power_of_two_at_least(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

int64_t chosen_global(const RunConfig& base, const FixedKeys& fixed, bool on_cpu, int ranks) {
  if (base.batch.global > 0) return base.batch.global;
  const int64_t tokens = on_cpu ? kTokensPerStepCpu : kTokensPerStepGpu;
  const int64_t rows = power_of_two_at_least(div_ceil(tokens, base.batch.sequence * ranks));
  return ranks * (fixed.micro ? round_up(rows, base.batch.micro) : rows);
}

std::vector<int> chunks_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
      return {2, 4, 8};
    case ScheduleKind::kZbv:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      return {2};
    default:
      return {1};
  }
}

// A product costs as much again as it saves, whichever it is: the small one alone, the large one, both. The attention
// itself costs more the longer the sequence, and saves the least.
std::vector<DroppedTensors> worth_dropping(const ModelSpec& model) {
  DroppedTensors qkv, mlp, products, all;
  for (const Droppable name : droppable_tensors(model)) {
    all.add(name);
    if (name == Droppable::kAttentionOut) continue;
    products.add(name);
    (name == Droppable::kAttentionQkv ? qkv : mlp).add(name);
  }
  std::vector<DroppedTensors> sets;
  for (const DroppedTensors& set : {qkv, mlp, products, all})
    if (!set.empty() && std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
  return sets;
}

}  // namespace

RecomputeConfig Recomputed::config() const {
  if (!dropped.empty()) return {.kind = RecomputeKind::kSelective, .tensors = dropped.names()};
  return {.kind = every > 0 ? RecomputeKind::kFull : RecomputeKind::kNone, .every = std::max<int64_t>(1, every)};
}

int ranks_of_node(const HardwareSpec& hardware, int ranks) {
  if (hardware.device.cores > 0 && !hardware.simulated) return ranks;
  const int64_t node = hardware.simulated ? hardware.simulated->devices_per_node : hardware.devices_per_node;
  return static_cast<int>(std::min<int64_t>(node, ranks));
}

Layout layout_of(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  return {.compute = config.precision.compute,
          .tp = parallel.tp,
          .sp = parallel.sp,
          .cp = parallel.cp,
          .cp_kind = parallel.cp_kind,
          .pp = parallel.pp,
          .micro = config.batch.micro,
          .schedule = parallel.schedule,
          .vpp = parallel.vpp,
          .every = config.recompute.kind == RecomputeKind::kFull ? config.recompute.every : 0,
          .dropped = dropped_tensors(config.recompute),
          .zero = parallel.zero,
          .shard_size = parallel.shard_size};
}

std::array<int64_t, 11> simplicity(const Layout& layout) {
  const int64_t splits = (layout.tp > 1) + (layout.cp > 1) + (layout.pp > 1);
  const auto* place = std::find(std::begin(kPlainFirst), std::end(kPlainFirst), layout.schedule);
  constexpr int kSegments = 1 + static_cast<int>(std::size(kDroppableNames));
  return {
      splits,      layout.pp,    layout.cp,          layout.tp, layout.every > 0 ? kSegments : layout.dropped.count(),
      layout.zero, layout.micro, -layout.shard_size, layout.sp, layout.pp > 1 ? place - std::begin(kPlainFirst) : 0,
      layout.vpp};
}

LayoutSpace::LayoutSpace(const ModelSpec& model, const RunConfig& base, const FixedKeys& fixed,
                         const HardwareSpec& hardware, int ranks, TensorReach reach)
    : model_(model), base_(base), fixed_(fixed), ranks_(ranks), on_cpu_(hardware.device.cores > 0) {
  widest_tp_ = reach == TensorReach::kAnywhere ? ranks : ranks_of_node(hardware, ranks);
  global_ = chosen_global(base, fixed, on_cpu_, ranks);
}

std::vector<int> LayoutSpace::degrees(bool fixed, int value, int most) const {
  if (fixed) return {value};
  std::vector<int> all;
  for (int degree = 1; degree <= most; ++degree)
    if (ranks_ % degree == 0) all.push_back(degree);
  return all;
}

std::vector<Layout> LayoutSpace::splits() const {
  std::vector<ComputeKind> kinds{base_.precision.compute};
  // Leaving the master copy out is a wish for weights below fp32.
  const bool any = !base_.precision.params && base_.precision.master == MasterKind::kFp32;
  if (on_cpu_ && any && !fixed_.compute)
    kinds.push_back(kinds[0] == ComputeKind::kBf16 ? ComputeKind::kFp32 : ComputeKind::kBf16);
  std::vector<Layout> kept;
  const auto add = [&](const Layout& layout) {
    const int64_t rest = int64_t{layout.tp} * layout.cp * layout.pp;
    if (ranks_ % rest != 0) return;
    const int dp = static_cast<int>(ranks_ / rest);
    if ((fixed_.dp && dp != base_.parallel.dp) || global_ % dp != 0) return;
    const int64_t rows = global_ / dp;
    for (int64_t micro = 1; micro <= std::min(rows, fixed_.micro ? rows : kMaxMicrobatch); ++micro) {
      if (rows % micro != 0 || (fixed_.micro && micro != base_.batch.micro)) continue;
      Layout split = layout;
      split.micro = micro;
      // GPipe takes any number of microbatches.
      if (split.pp > 1) split.schedule = ScheduleKind::kGPipe;
      if (resolved(split))
        kept.push_back(split);
      else if (const std::vector<Layout> legal = schedules(split); !legal.empty())
        kept.push_back(legal[0]);
    }
  };
  const auto layers = static_cast<int>(model_.layers.size());
  const ParallelConfig& base = base_.parallel;
  const auto is_planned = [&](int tp, int cp) {
    RunConfig config = base_;
    config.parallel.tp = tp;
    config.parallel.cp = cp;
    return planner_scope(model_, config).empty();
  };
  for (const ComputeKind compute : kinds)
    for (const int pp : degrees(fixed_.pp, base.pp, std::min(ranks_, layers)))
      for (const int cp : degrees(fixed_.cp, base.cp, ranks_))
        for (const int tp : degrees(fixed_.tp, base.tp, widest_tp_))
          for (const bool sp : {false, true}) {
            if (!is_planned(tp, cp)) continue;
            if (fixed_.sp ? sp != base.sp : sp && tp == 1) continue;
            for (const CpKind kind : {CpKind::kRing, CpKind::kAllGather, CpKind::kUlysses}) {
              if (fixed_.cp_kind ? kind != base.cp_kind : cp == 1 && kind != CpKind::kRing) continue;
              add({.compute = compute, .tp = tp, .sp = sp, .cp = cp, .cp_kind = kind, .pp = pp});
            }
          }
  return kept;
}

std::vector<Layout> LayoutSpace::schedules(const Layout& split) const {
  const auto layers = static_cast<int>(model_.layers.size());
  std::vector<Layout> kept;
  Layout layout = split;
  const auto add = [&] {
    if (resolved(layout)) kept.push_back(layout);
  };
  if (split.pp == 1) {
    layout.vpp = fixed_.vpp ? base_.parallel.vpp : 1;
    layout.schedule = fixed_.schedule ? base_.parallel.schedule : ScheduleKind::k1F1B;
    add();
    return kept;
  }
  std::vector<ScheduleKind> kinds(std::begin(kPlainFirst), std::end(kPlainFirst));
  if (fixed_.schedule) kinds = {base_.parallel.schedule};
  for (const ScheduleKind kind : kinds) {
    layout.schedule = kind;
    std::vector<int> chunks = chunks_of(kind);
    if (kind == ScheduleKind::kFile) chunks = {base_.parallel.schedule_source.chunks_per_rank};
    if (fixed_.vpp) chunks = {base_.parallel.vpp};
    for (const int vpp : chunks) {
      if (!fixed_.vpp && split.pp * vpp > layers) continue;
      layout.vpp = vpp;
      add();
    }
  }
  return kept;
}

std::vector<Recomputed> LayoutSpace::recomputed(int64_t longest_chunk) const {
  const auto layers = static_cast<int64_t>(model_.layers.size());
  const auto may = [&](RecomputeKind kind) { return !fixed_.recompute || base_.recompute.kind == kind; };
  std::vector<Recomputed> kept;
  if (may(RecomputeKind::kNone)) kept.push_back({});
  if (fixed_.recompute && base_.recompute.kind == RecomputeKind::kSelective)
    kept.push_back({.dropped = dropped_tensors(base_.recompute)});
  else if (may(RecomputeKind::kSelective))
    for (const DroppedTensors& dropped : worth_dropping(model_)) kept.push_back({.dropped = dropped});
  if (!may(RecomputeKind::kFull)) return kept;
  if (fixed_.every) {
    kept.push_back({.every = base_.recompute.every});
    return kept;
  }
  const std::set<int64_t> lengths{1, 2, 4, 8, std::lround(std::sqrt(static_cast<double>(layers)))};
  for (const int64_t every : lengths) {
    if (every > layers) break;
    kept.push_back({.every = every});
    if (every >= longest_chunk) break;
  }
  return kept;
}

std::vector<std::pair<int, int>> LayoutSpace::shardings(const Layout& split) const {
  const int members = dp(split) * split.cp;
  std::vector<std::pair<int, int>> kept;
  for (int zero = 0; zero <= 3; ++zero) {
    if (fixed_.zero ? zero != base_.parallel.zero : zero > 0 && members == 1) continue;
    const int asked = base_.parallel.shard_size;
    for (int shards = 1; shards <= members; ++shards) {
      if (members % shards != 0) continue;
      const bool free = zero == 0 ? shards == 1 : shards > 1 || members == 1;
      const bool as_asked = zero == 0 ? shards == 1 && asked <= 1 : shards == (asked == 0 ? members : asked);
      if (fixed_.shard_size ? as_asked : free) kept.emplace_back(zero, shards);
    }
  }
  return kept;
}

RunConfig LayoutSpace::config(const Layout& layout) const {
  RunConfig config = base_;
  ParallelConfig& parallel = config.parallel;
  config.precision.compute = layout.compute;
  parallel.dp = dp(layout);
  parallel.tp = layout.tp;
  parallel.sp = layout.sp;
  parallel.cp = layout.cp;
  parallel.cp_kind = layout.cp_kind;
  parallel.pp = layout.pp;
  parallel.vpp = layout.vpp;
  parallel.schedule = layout.schedule;
  parallel.zero = layout.zero;
  if (layout.zero != 3) parallel.reduce = ReduceWhen::kMicrobatch;  // a setting of level 3
  parallel.shard_size = layout.zero == 0 ? std::min(layout.shard_size, 1) : layout.shard_size;
  config.batch.micro = layout.micro;
  config.batch.global = global_;
  config.recompute = Recomputed{layout.every, layout.dropped}.config();
  return config;
}

std::optional<ResolvedConfig> LayoutSpace::resolved(const Layout& layout) const {
  Result<ResolvedConfig> result = resolve(config(layout), model_);
  if (!result.ok()) return std::nullopt;
  return *std::move(result);
}

// The model, the number of ranks and what only concerns the run are the same for all layouts.
std::vector<Error> layout_refusals(const ModelSpec& model, const RunConfig& config) {
  std::vector<Error> errors = validate_engine(model, config);
  std::erase_if(errors, [](const Error& error) {
    const bool of_layout = error.where.starts_with("parallel.") || error.where.starts_with("precision.") ||
                           error.where.starts_with("recompute.");
    return !of_layout || error.where == "parallel.dp";
  });
  return errors;
}

}  // namespace fivefold
