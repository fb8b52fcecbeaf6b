#include "planner/layout_bounds.h"

#include <algorithm>
#include <limits>

#include "base/integer.h"
#include "planner/cost.h"
#include "planner/ledger.h"
#include "schedule/replay.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

// Sums of rounded terms in another order.
constexpr double kRounding = 1 - 1e-9;

// One microbatch on a range of units.
struct ChunkWork {
  double forward = 0, backward = 0, weights = 0, recompute = 0, exposed = 0;
  // The share of backward that the gradient waits for, when weights can be apart.
  double input() const { return backward - weights; }
};

bool splits_backward(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kNaive:
    case ScheduleKind::kGPipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kInterleaved:
      return false;
    default:
      return true;
  }
}

// Most chunks that rank r holds, by the closed forms of docs/schedules.md.
int held_in_loop(ScheduleKind kind, int p, int v, int m, int r) {
  if (p == 1) return 1;
  switch (kind) {
    case ScheduleKind::kGPipe:
      return m;
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZb1p:
      return std::min(m, p - r);
    case ScheduleKind::kZb2p:
      return std::min(m, 2 * (p - r) - 1);
    case ScheduleKind::kInterleaved:
      return std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1);
    default:
      return 1;
  }
}

class WorkSum {
 public:
  WorkSum(PredictionMemo& memo, const ResolvedConfig& config)
      : passes_(memo.passes(config)),
        overlap_(memo.rates(config).overlap_share()),
        head_(memo.inventory().head()),
        every_(lowering_options(config).recompute_every) {}

  ChunkWork chunk(const StageUnits& units, bool splits) const {
    ChunkWork sum;
    for (int unit = units.first; unit < units.last; ++unit) {
      const PassSeconds& pass = passes_[static_cast<size_t>(unit)];
      if (unit == head_) {
        sum.backward += took(pass.head, pass.tensor_head);
        sum.exposed += pass.tensor_head.exposed.seconds;
        continue;
      }
      sum.forward += took(pass.forward, pass.tensor_forward);
      sum.exposed += pass.tensor_forward.exposed.seconds;
      add_backward(pass, splits && unit > 0, sum);
      if (unit > 0 && every_ > 0) add_recompute(units, unit, sum);
    }
    return sum;
  }

 private:
  double took(double seconds, const TensorSeconds& tensor) const {
    return seconds + tensor.exposed.seconds + std::max(0.0, tensor.hidden.seconds - seconds) +
           std::min(tensor.hidden.moving, seconds) * overlap_;
  }
  // Schedules with weight gradients apart may join some of them.
  void add_backward(const PassSeconds& pass, bool splits, ChunkWork& sum) const {
    const double whole = took(pass.backward, pass.tensor_backward);
    sum.exposed += splits
                       ? std::min(pass.tensor_backward.exposed.seconds, pass.tensor_backward_input.exposed.seconds +
                                                                            pass.tensor_backward_weight.exposed.seconds)
                       : pass.tensor_backward.exposed.seconds;
    if (!splits) {
      sum.backward += whole;
      return;
    }
    const double input = took(pass.backward - pass.backward_weight, pass.tensor_backward_input);
    const double weight = took(pass.backward_weight, pass.tensor_backward_weight);
    const double both = std::min(whole, input + weight);
    sum.backward += both;
    sum.weights += std::max(0.0, both - std::min(input, whole));
  }
  void add_recompute(const StageUnits& units, int unit, ChunkWork& sum) const {
    const PassSeconds& pass = passes_[static_cast<size_t>(unit)];
    const int first = std::max(units.first, 1), last = std::min(units.last, head_);
    const bool ends_segment = (unit - first) % every_ == every_ - 1 || unit == last - 1;
    const TensorSeconds& tensor = ends_segment ? pass.tensor_recompute_unused : pass.tensor_recompute;
    sum.recompute += took(ends_segment ? pass.recompute_unused : pass.recompute, tensor);
    sum.exposed += tensor.exposed.seconds;
  }

  const std::vector<PassSeconds>& passes_;
  double overlap_;
  int head_, every_;
};

// Gathers of a chunk's units at ZeRO level 3 at the least. Far from both ends of the chunk two reads lie further apart
// than the prefetch and buckets join: a gather for forward and one for backward of each microbatch.
double least_gathers(const StageUnits& chunk, const std::vector<double>& before, const ParallelConfig& parallel,
                     int64_t microbatches) {
  const int near = std::max(parallel.prefetch, 1) + 3 + 2 * (parallel.bucket_layers - 1), first = chunk.first + near,
            last = chunk.last - near;
  const double all = before[static_cast<size_t>(chunk.last)] - before[static_cast<size_t>(chunk.first)];
  if (first >= last) return all;
  const double far = before[static_cast<size_t>(last)] - before[static_cast<size_t>(first)];
  return all + static_cast<double>(2 * microbatches - 1) * far;
}

}  // namespace

LayoutBounds::LayoutBounds(PredictionMemo& memo, PeakBytes& peaks)
    : memo_(memo),
      peaks_(peaks),
      layers_alike_(std::all_of(memo.model().layers.begin(), memo.model().layers.end(),
                                [&](const LayerSpec& layer) { return layer == memo.model().layers[0]; })) {}

double LayoutBounds::split_seconds(const ResolvedConfig& config) {
  ResolvedConfig plain = config;
  plain.config.recompute = {};
  const WorkSum sum(memo_, plain);
  const ChunkWork all = sum.chunk({0, memo_.inventory().num_units()}, config.degrees.pp > 1);
  return kRounding * static_cast<double>(config.num_microbatches) * (all.forward + all.backward) / config.degrees.pp;
}

std::vector<LayoutBounds::RankWork> LayoutBounds::work(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  const WorkSum sum(memo_, config);
  const bool splits = splits_backward(parallel.schedule);
  const auto m = static_cast<double>(config.num_microbatches);
  const Transfers& transfers = memo_.transfers(config);
  std::vector<RankWork> ranks;
  double before = 0, after = 0;
  const RankGrid grid = RankGrid::create(config.degrees).value();
  for (const int rank : grid.group(GroupKind::kPp, 0)) {
    RankWork work{.stages = rank_stages(memo_.model(), config, rank)};
    const int place = static_cast<int>(ranks.size());
    work.before = before;
    work.after = after;
    for (const StageUnits& chunk : work.stages.chunks) {
      const ChunkWork one = sum.chunk(chunk, splits);
      work.computing += m * (one.forward + one.backward + one.recompute);
      work.inputs += m * (one.forward + one.input() + one.recompute);
      work.exposed += m * one.exposed;
      if (&chunk == &work.stages.chunks[0] && place + 1 < parallel.pp) {
        const double there = transfers(place, place + 1).seconds, back = transfers(place + 1, place).seconds;
        before += one.forward + there;
        after += one.input() + one.recompute + back;
      }
    }
    if (place > 0) work.transfers += m * transfers(place, place - 1).seconds;
    if (place + 1 < parallel.pp) work.transfers += m * transfers(place, place + 1).seconds;
    ranks.push_back(std::move(work));
  }
  return ranks;
}

double LayoutBounds::seconds_unsharded(const ResolvedConfig& config, const std::vector<RankWork>& work) const {
  double most = 0, chain = 0;
  for (const RankWork& rank : work) {
    most = std::max({most, rank.before + rank.computing, rank.before + rank.inputs + rank.after});
    chain += rank.computing;
  }
  if (config.config.parallel.schedule == ScheduleKind::kNaive) most = std::max(most, chain);
  return kRounding * most;
}

double LayoutBounds::makespan(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  if (parallel.pp == 1) return 0;
  const WorkSum sum(memo_, config);
  std::vector<StageTimes> times;
  for (const StageUnits& stage : stage_units(config.layers_per_chunk)) {
    const ChunkWork one = sum.chunk(stage, splits_backward(parallel.schedule));
    times.push_back(
        {.forward_s = one.forward, .backward_input_s = one.input() + one.recompute, .backward_weight_s = one.weights});
  }
  // An overlapped pair takes both: the forward, and a backward of one of the rank's chunks.
  double least = times[0].backward_s();
  for (const StageTimes& stage : times) least = std::min(least, stage.backward_s());
  for (StageTimes& stage : times) stage.overlapped_s = stage.forward_s + least;
  const Result<Replay> replay = replay_computations(without_transfers(*memo_.schedule(config)), times);
  return kRounding * replay->makespan_s;
}

double LayoutBounds::seconds(const ResolvedConfig& config, const std::vector<RankWork>& work, double makespan) {
  const ShardingPolicy policy = sharding_policy(config);
  const StateSums& sums = memo_.state_sums(config);
  // Without a pipeline longer steps are extrapolated from three microbatches (Note [Periods of a step]).
  const int64_t m = config.num_microbatches, replayed = config.degrees.pp > 1 ? m : std::min<int64_t>(m, 3);
  const bool accumulates = policy.transient_grads() && !policy.shards_grads();
  const double norm = memo_.links(config)(CollectiveKind::kAllReduce, GroupKind::kWorld, 16).seconds;
  double most = 0, first_ends = -1, least_ends = std::numeric_limits<double>::infinity(), chain = 0;
  for (const RankWork& rank : work) {
    double ends = norm + memo_.rates(config).step_overhead_seconds(), adds = 0;
    double sent = (rank.transfers + rank.exposed) * static_cast<double>(replayed) / static_cast<double>(m);
    const auto of = [](const std::vector<double>& sum, const StageUnits& chunk) {
      return sum[static_cast<size_t>(chunk.last)] - sum[static_cast<size_t>(chunk.first)];
    };
    for (const StageUnits& chunk : rank.stages.chunks) {
      ends += of(sums.ends, chunk);
      if (accumulates) adds += static_cast<double>(m) * of(sums.accumulate, chunk);
      if (policy.gathers_after_step()) sent += of(sums.gather, chunk);
      if (policy.shards_params()) sent += least_gathers(chunk, sums.gather, config.config.parallel, replayed);
      const double times = policy.shards_grads() ? static_cast<double>(replayed) : 1.0;
      if (policy.shards * policy.replicas > 1)
        sent += times * of(sums.reduce_scatter, chunk) + of(sums.all_reduce, chunk);
    }
    if (first_ends < 0) first_ends = ends;
    least_ends = std::min(least_ends, ends);
    most = std::max({most, ends + rank.computing + adds, first_ends + rank.before + rank.computing + adds,
                     first_ends + rank.before + rank.inputs + rank.after, sent});
    chain += rank.computing;
  }
  if (config.config.parallel.schedule == ScheduleKind::kNaive) most = std::max(most, first_ends + chain);
  return kRounding * std::max(most, least_ends + makespan);
}

LayoutBounds::ChunkBytes LayoutBounds::chunk_bytes(const ResolvedConfig& config, const StageUnits& chunk) {
  const std::vector<int64_t>& saved = peaks_.saved(config);
  const int64_t stream = stream_bytes(config);
  const int first = std::max(chunk.first, 1), last = std::min(chunk.last, memo_.inventory().head());
  const int every = lowering_options(config).recompute_every;
  ChunkBytes bytes;
  int64_t segment = 0, inputs = 0, most = 0;  // of the segment, and of those up to it
  for (int unit = first; unit < last; ++unit) {
    const auto index = static_cast<size_t>(unit);
    const bool smaller = bytes.layer < 0 || memo_.inventory().units[index].numel <
                                                memo_.inventory().units[static_cast<size_t>(bytes.layer)].numel;
    if (smaller) bytes.layer = unit;
    if (every > 0 && (unit - first) % every == 0) {
      segment = 0;
      inputs += stream;
    }
    segment += saved[index];
    most = std::max(most, inputs - (every > 0 ? stream : 0) + segment);
  }
  bytes.kept = every > 0 ? inputs : segment;
  bytes.working = bytes.layer < 0 ? 0 : most - bytes.kept + stream;
  // Without segments the last layer's backward runs while all of them are kept, and rebuilds what was dropped.
  if (bytes.layer >= 0 && every == 0) bytes.working += peaks_.backward_most(config)[static_cast<size_t>(last) - 1];
  return bytes;
}

int64_t LayoutBounds::stream_bytes(const ResolvedConfig& config) const {
  return tape_shape(config).stream_tokens() * memo_.model().hidden * dtype_bytes(config.compute);
}

// One microbatch of the chunk, the output of its last layer, its gradient, and a chunk of logits.
int64_t LayoutBounds::loss_bytes(const ResolvedConfig& config, const RankStages& stages) {
  const int head = memo_.inventory().head();
  const TapeShape shape = tape_shape(config);
  const int64_t vocabulary = div_exact(config.padded_vocab, config.degrees.tp);
  int64_t bytes =
      2 * stream_bytes(config) + std::min(shape.loss_chunk, shape.tokens) * vocabulary * dtype_bytes(config.compute);
  for (const StageUnits& chunk : stages.chunks)
    if (chunk.contains(head)) bytes += chunk_bytes(config, chunk).kept;
  return bytes;
}

std::vector<LayoutBounds::RankHeld> LayoutBounds::held(const ResolvedConfig& config) {
  std::vector<RankHeld> ranks;
  const RankGrid grid = RankGrid::create(config.degrees).value();
  for (const int rank : grid.group(GroupKind::kPp, 0)) {
    RankHeld held{.stages = rank_stages(memo_.model(), config, rank)};
    ChunkBytes least{.kept = -1};
    for (const StageUnits& chunk : held.stages.chunks) {
      const ChunkBytes bytes = chunk_bytes(config, chunk);
      if (least.kept < 0) {
        least = bytes;
        continue;
      }
      least.kept = std::min(least.kept, bytes.kept);
      least.working = std::min(least.working, bytes.working);
      if (bytes.layer < 0) least.layer = -1;
    }
    const int64_t chunks = held_chunks(config)[ranks.size()];
    held.activations = chunks * least.kept;
    if (held.stages.computes_head()) held.at_loss = loss_bytes(config, held.stages);
    if (held.stages.computes_embedding() && held.stages.chunks.size() == 1)
      held.at_ends = (chunks - 1) * least.kept + stream_bytes(config);
    held.working = least.working;
    held.layer = least.layer;
    ranks.push_back(std::move(held));
  }
  return ranks;
}

// Layers of unlike chunks may be unlike: then none is counted.
int64_t LayoutBounds::bytes(const ResolvedConfig& config, const std::vector<RankHeld>& held) {
  const ShardingPolicy policy = sharding_policy(config);
  const RankPart* part = memo_.part(config);
  const Inventory& inventory = part != nullptr ? part->inventory : memo_.inventory();
  const auto full = [&](int unit) {
    return inventory.units[static_cast<size_t>(unit)].padded_numel(policy.shards) * dtype_bytes(policy.compute);
  };
  const bool transient = policy.transient_grads(), in_two_parts = splits_backward(config.config.parallel.schedule);
  const auto gathered = [&](int unit) {
    return policy.shards_params() ? gathered_bytes(inventory.units[static_cast<size_t>(unit)], policy) : int64_t{0};
  };
  const auto in_use = [&](int unit, bool gradient) { return gathered(unit) + (gradient ? full(unit) : 0); };
  int64_t most = 0;
  for (const RankHeld& rank : held) {
    int64_t bytes = rank.activations + rank.working;
    if (rank.layer >= 0 && layers_alike_) bytes += in_use(rank.layer, transient && !in_two_parts);
    if (rank.at_loss > 0) bytes = std::max(bytes, rank.at_loss + in_use(inventory.head(), transient));
    if (rank.at_ends > 0)
      bytes = std::max(bytes, rank.at_ends + std::max(gathered(inventory.embedding()),
                                                      transient ? full(inventory.embedding()) : int64_t{0}));
    most = std::max(most, peaks_.persistent(config, rank.stages) + bytes);
  }
  return most;
}

const std::vector<int>& LayoutBounds::held_chunks(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  std::vector<int>& held = held_[{parallel.schedule, parallel.pp, parallel.vpp, config.num_microbatches}];
  if (!held.empty()) return held;
  const int p = parallel.pp, v = parallel.vpp;
  const auto m = static_cast<int>(std::min<int64_t>(config.num_microbatches, std::numeric_limits<int>::max()));
  for (int r = 0; r < p && placement_of(parallel) == Placement::kLoop; ++r)
    held.push_back(held_in_loop(parallel.schedule, p, v, m, r));
  if (!held.empty()) return held;
  const Result<std::vector<LiveChunks>> live = check_schedule(*memo_.schedule(config));
  for (const LiveChunks& rank : *live) held.push_back(rank.activations);
  return held;
}

}  // namespace fivefold
