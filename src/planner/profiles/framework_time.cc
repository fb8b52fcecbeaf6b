#include "planner/profiles/framework_time.h"

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/framework_profile.h"
#include "planner/work.h"
#include "schedule/generate.h"
#include "schedule/replay.h"
#include "spec/adapter.h"
#include "spec/inventory.h"
#include "spec/network.h"

namespace fivefold {
namespace {

// Bytes of an element: a microbatch's gradient read and added to the fp32 sum; Adam with fp32 states and a 2-byte copy;
// the sum of squares.
constexpr double kAccumulateBytes = 10, kOptimizerBytes = 30, kNormBytes = 4;
// Replayed microbatches beyond which every further one takes as long: rounds of the pipeline.
constexpr int64_t kSettledRounds = 4;

HardwareSpec paced(HardwareSpec hardware, const FrameworkRun& run, const FrameworkPace& pace) {
  DeviceSpec& device = hardware.device;
  const bool fused = run.framework != Framework::kHf || run.hf.fused_norms;
  device.elementwise_factor.value = pace.elementwise_factor * (fused ? 1 : pace.unfused_factor);
  if (device.link_share.known()) hardware.node_link.reached_share = device.link_share;
  hardware.network.reached_share.value =
      pace.network_share *
      (hardware.network.reached_share.known() ? hardware.network.reached_share.value : kLinkOfBandwidth);
  const auto scale = [](Figure& share, double factor) {
    if (share.known()) share.value = std::min(std::max(kMostShare, share.value), factor * share.value);
  };
  scale(device.gemm_share, pace.products_factor);
  scale(device.attention_share, pace.attention_factor);
  if (!run.fp8 || !device.peak_flops_per_s.fp8.known() || !device.gemm_share.known()) return hardware;
  // Products alone are in fp8; attention stays as it is.
  const bool four_bits = run.framework == Framework::kMegatron && run.megatron.recipe == ScalingRecipe::kNvfp4;
  const double share =
      pace.fp8_share * (run.sharding.rowwise_scaling ? pace.rowwise_share : 1) * (four_bits ? 2 * pace.fp4_share : 1);
  const double ratio = share * device.peak_flops_per_s.fp8.value / device.peak_flops_per_s.bf16.value;
  device.peak_flops_per_s.bf16.value *= ratio;
  device.attention_share.value /= ratio;
  return hardware;
}

// The model with what of it is trained.
ModelSpec trained_model(const FrameworkRun& run) {
  if (!run.trains_adapter) return run.model;
  MethodConfig method{.kind = MethodKind::kLora, .rank = std::max<int64_t>(run.rank, 1)};
  method.targets = run.targets.empty() ? std::vector<std::string>{"q_proj", "v_proj"} : run.targets;
  return with_method(run.model, method);
}

}  // namespace

// Layers go round the ranks chunk by chunk, as they are listed; listed stages of several chunks divide among them.
std::vector<FrameworkClock::Chunk> FrameworkClock::chunks_of(const FrameworkRun& run) {
  const auto layers = static_cast<int64_t>(run.model.layers.size()), count = run.pp * run.vpp;
  const bool cuts_head = run.vocabulary_stages != VocabularyStages::kLast;
  const std::vector<int64_t> listed =
      run.framework == Framework::kNanotron && run.pp > 1 ? nanotron_stages(run) : run.stage_layers;
  std::vector<Chunk> chunks;
  int64_t first = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t own = div_ceil(layers - first, count - i);
    if (static_cast<int64_t>(listed.size()) == count) {
      own = listed[static_cast<size_t>(i)];
    } else if (!listed.empty()) {
      const int64_t of_rank = listed[static_cast<size_t>(i % run.pp)], round = div_floor(i, run.pp);
      own = div_floor(of_rank * (round + 1), run.vpp) - div_floor(of_rank * round, run.vpp);
    }
    const int64_t last = std::min(layers, first + own);
    chunks.push_back({first, last, i == 0, cuts_head ? i >= count - run.pp : i == count - 1});
    first = last;
  }
  return chunks;
}

// Seconds of one microbatch on each virtual stage.
struct FrameworkClock::Stages {
  std::vector<StageTimes> times;
  double transfer_s = 0;
  // Of rank r: all of its chunks; of its first chunk alone.
  double work(int64_t rank, int64_t pp) const {
    double sum = 0;
    for (size_t i = static_cast<size_t>(rank); i < times.size(); i += static_cast<size_t>(pp))
      sum += times[i].forward_s + times[i].backward_s();
    return sum;
  }
  int64_t busiest(int64_t pp) const {
    int64_t most = 0;
    for (int64_t rank = 1; rank < pp; ++rank)
      if (work(rank, pp) > work(most, pp)) most = rank;
    return most;
  }
};

std::string_view to_string(FrameworkPart part) {
  static constexpr std::string_view kNames[] = {"forward", "backward", "recompute", "tensor",    "context",
                                                "experts", "exchange", "bubble",    "optimizer", "overhead"};
  return kNames[static_cast<size_t>(part)];
}

FrameworkClock::FrameworkClock(const FrameworkRun& like, const HardwareSpec& hardware)
    : pace_(framework_pace(like)),
      hardware_(std::make_shared<const HardwareSpec>(paced(hardware, like, pace_))),
      rates_(*hardware_, like.compute, {}),
      network_(network_of(*hardware_)) {
  const Inventory inventory = build_inventory(trained_model(like));
  for (const Unit& unit : inventory.units) {
    Elements elements;
    for (const ParameterEntry& entry : unit.parameters) {
      if (!entry.trained()) continue;
      double& kind = entry.expert                        ? elements.expert
                     : entry.split == Split::kReplicated ? elements.whole
                                                         : elements.split;
      kind += static_cast<double>(entry.numel());
    }
    if (unit.kind == UnitKind::kLayer) {
      layers_.push_back(elements);
    } else {
      ends_elements_.whole += elements.whole;
      ends_elements_.split += elements.split;
    }
  }
  peak_rate_ = matrix_rate(hardware.device.peak_flops_per_s, like.fp8 ? DType::kFloat8E4M3 : like.compute);
  flops_per_token_ = model_flops_per_token(like.model, like.sequence);
  if (like.trains_adapter) frozen_share_ = 2.0 / 3.0;
}

ModelTimes FrameworkClock::times(const FrameworkRun& run) const {
  LayerPace pace{.loss_passes = pace_.loss_passes,
                 .dequantised_bytes = pace_.dequantised_bytes,
                 .backward_host = pace_.backward_host,
                 .hidden_tensor = pace_.hidden_tensor,
                 .hidden_experts = pace_.hidden_experts};
  // What async TP does not keep it has not gathered whole.
  if (run.framework == Framework::kFsdp2 && !run.keeps_gathered_inputs) pace.hidden_tensor = pace_.async_tensor;
  pace.host_s = pace_.layer_host_s + (run.tp > 1 ? pace_.tensor_host_s : 0) + (run.pp > 1 ? pace_.pipeline_host_s : 0);
  if (run.trains_adapter && !run.hf.fused_adapters) pace.host_s += pace_.adapter_host_s;
  if (run.frozen != FrozenWeights::kNone && run.frozen != FrozenWeights::kBf16) pace.host_s += pace_.quantised_host_s;
  if (run.tp > 1 && run.pp > 1 && rank_groups(run, network_).pp.nodes > 1)
    pace.host_s =
        std::max(pace.host_s, pace_.crossing_host_s + pace_.crossing_tensor_host_s * static_cast<double>(run.tp));
  return model_times(run, rates_, network_, pace);
}

double FrameworkClock::transfer_seconds(const FrameworkRun& run) const {
  if (run.pp == 1) return 0;
  const int64_t tokens = run.micro * div_ceil(run.sequence, run.cp * (run.sp ? run.tp : 1));
  const GroupShape group = rank_groups(run, network_).pp;
  return collective_cost(network_, CollectiveKind::kSend, group, static_cast<double>(2 * tokens * run.model.hidden))
      .seconds();
}

FrameworkClock::Stages FrameworkClock::stages(const FrameworkRun& run, const ModelTimes& times) const {
  Stages stages;
  stages.transfer_s = transfer_seconds(run);
  for (const Chunk& chunk : chunks_of(run)) {
    const auto from = static_cast<size_t>(chunk.first), to = static_cast<size_t>(chunk.last);
    StageTimes stage{.forward_s = times.forward_before[to] - times.forward_before[from],
                     .backward_input_s = times.backward_before[to] - times.backward_before[from],
                     .backward_weight_s = 0};
    const auto add = [&](const LayerTime& end) {
      stage.forward_s += end.forward.total();
      stage.backward_input_s += end.backward.total();
    };
    if (chunk.embedding) add(times.embedding);
    if (chunk.head) add(times.head);
    stages.times.push_back(stage);
  }
  return stages;
}

// Reduce-scatter of the gradients and gather of the weights, or an all-reduce, of what a rank holds; the optimizer's
// pass over its share.
FrameworkClock::Ends FrameworkClock::ends(const FrameworkRun& run, const ModelTimes& times) const {
  const auto tp = static_cast<double>(run.tp), pp = static_cast<double>(run.pp),
             experts = static_cast<double>(run.ep * run.expert_tp);
  double dense = 0, expert = 0;
  for (const Elements& layer : layers_) {
    dense += layer.whole + layer.split / tp;
    expert += layer.expert / experts;
  }
  // First and last stage have a table each, a copy when it is tied.
  const double tables = run.pp == 1 || run.model.tied_embeddings ? 1 : 0.5;
  dense = dense / pp + tables * (ends_elements_.whole + ends_elements_.split / tp);
  expert /= pp;
  const RankGroups groups = rank_groups(run, network_);
  const auto gradient = static_cast<double>(dtype_bytes(run.gradient_dtype));
  const auto seconds = [&](double elements, const GroupShape& group) {
    const double back = run.zero >= 1 ? 2 * elements : gradient * elements;
    return collective_cost(network_, CollectiveKind::kReduceScatter, group, gradient * elements).seconds() +
           collective_cost(network_, CollectiveKind::kAllGather, group, back).seconds();
  };
  Ends ends;
  if (!gathers_layers(run)) {
    ends.exchange = seconds(dense, groups.shard) + (expert > 0 ? seconds(expert, groups.edp) : 0);
    if (groups.replicate.ranks > 1)
      ends.exchange +=
          collective_cost(network_, CollectiveKind::kAllReduce, groups.replicate, gradient * dense / groups.shard.ranks)
              .seconds();
    // Without ZeRO the gradients of the last microbatch go off as its backward makes them; a pipeline's go one by one
    // when all is done.
    const bool alone = run.zero == 0 && run.pp > 1, beside = run.zero == 0 && run.pp == 1;
    const double messages = alone ? pace_.reduced_messages : pace_.sharded_messages;
    ends.exchange += messages * static_cast<double>(layers_.size()) / pp *
                     collective_cost(network_, CollectiveKind::kAllGather, groups.shard, 0).seconds();
    ends.exchange *= pace_.exchange_factor * (1 - pace_.hidden_gradients);
    if (beside)
      ends.exchange = std::max(0.0, ends.exchange - pace_.hidden_beside_backward * times.backward_before.back());
  }
  const double shards = run.zero >= 1 ? groups.shard.ranks : 1, expert_shards = run.zero >= 1 ? groups.edp.ranks : 1;
  const double own = dense / shards + expert / expert_shards;
  ends.optimizer = rates_.stream_seconds(StreamKind::kOptimizer, own * kOptimizerBytes) +
                   rates_.stream_seconds(StreamKind::kSumOfSquares, own * kNormBytes);
  // A microbatch's gradients are added to those before.
  ends.optimizer += static_cast<double>(run.microbatches) *
                    rates_.stream_seconds(StreamKind::kAccumulate, (dense + expert) * kAccumulateBytes);
  ends.overhead = rates_.step_overhead_seconds();
  return ends;
}

// Whether every microbatch gathers each layer's weights: with a pipeline they stay gathered for the step.
bool FrameworkClock::gathers_layers(const FrameworkRun& run) const {
  return run.zero >= 3 && run.pp == 1 && run.dp * run.cp > 1;
}

// What the gathers and reductions of a microbatch add to its layers: they go on beside the computation, one layer
// ahead.
double FrameworkClock::sharded_seconds(const FrameworkRun& run, const ModelTimes& times) const {
  if (!gathers_layers(run)) return 0;
  const RankGroups groups = rank_groups(run, network_);
  const auto tp = static_cast<double>(run.tp), experts = static_cast<double>(run.ep * run.expert_tp);
  const auto gradient = static_cast<double>(dtype_bytes(run.gradient_dtype));
  const auto add = [&](double computing, double moving) {
    const double together = std::min(computing, moving);
    return std::max((1 - pace_.hidden_gathers) * moving, moving - computing) + together * rates_.overlap_share();
  };
  const auto collective = [&](CollectiveKind kind, const GroupShape& group, double bytes) {
    return pace_.exchange_factor * collective_cost(network_, kind, group, bytes).seconds();
  };
  double sum = 0;
  const auto unit = [&](const Elements& e, const LayerTime& time) {
    const double dense = e.whole + e.split / tp, expert = e.expert / experts;
    double gather = collective(CollectiveKind::kAllGather, groups.shard, 2 * dense),
           reduce = collective(CollectiveKind::kReduceScatter, groups.shard, gradient * dense);
    if (expert > 0) {
      gather += collective(CollectiveKind::kAllGather, groups.edp, 2 * expert);
      reduce += collective(CollectiveKind::kReduceScatter, groups.edp, gradient * expert);
    }
    if (groups.replicate.ranks > 1)
      reduce += collective(CollectiveKind::kAllReduce, groups.replicate, gradient * dense / groups.shard.ranks) /
                static_cast<double>(run.microbatches);
    sum += add(time.forward.total(), gather) + add(time.backward.total() + time.again.total(), gather + reduce);
  };
  for (size_t i = 0; i < layers_.size(); ++i) unit(layers_[i], times.layers[i]);
  unit(ends_elements_, times.head);
  return sum;
}

double FrameworkClock::least_seconds(const FrameworkRun& run, const ModelTimes& times) const {
  const Stages all = stages(run, times);
  const Ends after = ends(run, times);
  const auto m = static_cast<double>(run.microbatches);
  double most = 0, before = 0;
  for (int64_t rank = 0; rank < run.pp; ++rank) {
    most = std::max(most, before + m * all.work(rank, run.pp));
    const StageTimes& first = all.times[static_cast<size_t>(rank)];
    before += first.forward_s + first.backward_s() + 2 * all.transfer_s;
  }
  return most + m * sharded_seconds(run, times) + after.exchange + after.optimizer + after.overhead;
}

// Note [Settled pipelines]
// Once the pipeline is full every further round of microbatches takes as long as the one before, so long steps are
// extrapolated from two of a few rounds.
double FrameworkClock::makespan(const FrameworkRun& run, const Stages& all) {
  const auto replayed = [&](int64_t m) {
    const Schedule schedule =
        generate_computations(run.vpp > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B, static_cast<int>(run.pp),
                              static_cast<int>(run.vpp), static_cast<int>(m))
            .value();
    return replay_computations(schedule, all.times, all.transfer_s).value().makespan_s;
  };
  const int64_t m = run.microbatches, settled = run.pp * kSettledRounds + m % run.pp;
  if (run.pp == 1) return static_cast<double>(m) * (all.times[0].forward_s + all.times[0].backward_s());
  if (m <= settled + run.pp) return replayed(m);
  const double fewer = replayed(settled), more = replayed(settled + run.pp);
  return more + static_cast<double>(m - settled - run.pp) / static_cast<double>(run.pp) * (more - fewer);
}

FrameworkTime FrameworkClock::step(const FrameworkRun& run, const ModelTimes& times) const {
  const Stages all = stages(run, times);
  const Ends after = ends(run, times);
  const auto m = static_cast<double>(run.microbatches);
  FrameworkTime time;
  const auto add = [&](FrameworkPart part, double seconds) { time.parts[static_cast<size_t>(part)] += seconds; };
  const auto pass = [&](FrameworkPart part, const PassTime& pass) {
    add(part, m * pass.compute);
    add(FrameworkPart::kTensor, m * pass.tensor);
    add(FrameworkPart::kContext, m * pass.context);
    add(FrameworkPart::kExperts, m * pass.experts);
  };
  const auto unit = [&](const LayerTime& layer) {
    pass(FrameworkPart::kForward, layer.forward);
    pass(FrameworkPart::kBackward, layer.backward);
    pass(FrameworkPart::kRecompute, layer.again);
  };
  const int64_t busiest = all.busiest(run.pp);
  const std::vector<Chunk> chunks = chunks_of(run);
  for (size_t i = static_cast<size_t>(busiest); i < chunks.size(); i += static_cast<size_t>(run.pp)) {
    for (int64_t layer = chunks[i].first; layer < chunks[i].last; ++layer)
      unit(times.layers[static_cast<size_t>(layer)]);
    if (chunks[i].embedding) unit(times.embedding);
    if (chunks[i].head) unit(times.head);
  }
  add(FrameworkPart::kBubble, makespan(run, all) - m * all.work(busiest, run.pp));
  add(FrameworkPart::kExchange, after.exchange + m * sharded_seconds(run, times));
  add(FrameworkPart::kOptimizer, after.optimizer);
  add(FrameworkPart::kOverhead, after.overhead);
  for (const double part : time.parts) time.seconds += part;
  const double tokens =
      m * static_cast<double>(run.micro * run.sequence) / static_cast<double>(run.tp * run.pp * run.cp);
  time.tokens_per_s = tokens / time.seconds;
  const double peak = peak_rate_;
  if (peak > 0) {
    const double per_flop = frozen_share_ * time.tokens_per_s / peak;
    const double again = 1 + (run.checkpointing == Checkpointing::kFull ? 1.0 / (3 * frozen_share_) : 0);
    time.mfu = flops_per_token_.causal * per_flop;
    time.mfu_full = flops_per_token_.full * per_flop;
    time.hfu = again * time.mfu;
    time.hfu_full = again * time.mfu_full;
  }
  return time;
}

Result<FrameworkTime> framework_time(const FrameworkRun& run, const HardwareSpec& hardware) {
  if (const std::vector<Error> errors = framework_refusals(run); !errors.empty()) return errors.front();
  const FrameworkClock clock(run, hardware);
  return clock.step(run, clock.times(run));
}

}  // namespace fivefold
