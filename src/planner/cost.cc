#include "planner/cost.h"

#include <algorithm>

#include "spec/rank_grid.h"

namespace fivefold {
namespace {

// Of the rank with the least bubble: the one that computes longest.
StepCost steady_state(const StepTimes& times, const std::vector<Program>& programs) {
  const std::vector<StepCost> costs = replay_steady_step(programs, times);
  return *std::min_element(costs.begin(), costs.end(), [](const StepCost& a, const StepCost& b) {
    return a[TimePart::kBubble] < b[TimePart::kBubble];
  });
}

}  // namespace

int64_t replayed_microbatches(const ResolvedConfig& config) {
  return config.degrees.pp > 1 ? config.num_microbatches : std::min<int64_t>(config.num_microbatches, 3);
}

Program pipeline_program(PredictionMemo& memo, ResolvedConfig config, int rank, int64_t num_microbatches) {
  config.num_microbatches = num_microbatches;
  return lower(*memo.schedule(config), memo.inventory(),
               lowering_options(config, rank_stages(memo.model(), config, rank), rank));
}

std::vector<Program> pipeline_programs(PredictionMemo& memo, const ResolvedConfig& config, int64_t num_microbatches) {
  std::vector<Program> programs;
  const RankGrid grid = RankGrid::create(config.degrees).value();
  for (const int rank : grid.group(GroupKind::kPp, 0))
    programs.push_back(pipeline_program(memo, config, rank, num_microbatches));
  return programs;
}

RankPlacement rank_placement(const ResolvedConfig& config, const HardwareSpec& hardware) {
  if (hardware.device.cores == 0) return {};
  return {.threads = threads_per_rank(config, static_cast<int>(hardware.device.cores)),
          .ranks = config.degrees.world()};
}

// Note [Periods of a step]
// Without a pipeline microbatches between the first and the last are alike, so a step of m > 3 takes what one of 3
// takes and m - 3 times what the third added to a step of 2.
StepCost predict_cost(PredictionMemo& memo, const ResolvedConfig& config, const std::vector<Program>& programs) {
  const StepTimes times = predict_step_times(memo, config);
  const int64_t m = config.num_microbatches;
  StepCost cost = steady_state(times, programs);
  if (replayed_microbatches(config) == m) return cost;
  const StepCost two = steady_state(times, pipeline_programs(memo, config, 2));
  const auto extend = [&](double& three, double of_two) { three += static_cast<double>(m - 3) * (three - of_two); };
  extend(cost.seconds, two.seconds);
  extend(cost.communication_seconds, two.communication_seconds);
  for (size_t i = 0; i < cost.parts.size(); ++i) extend(cost.parts[i], two.parts[i]);
  return cost;
}

StepCost predict_cost(PredictionMemo& memo, const ResolvedConfig& config) {
  return predict_cost(memo, config, pipeline_programs(memo, config, replayed_microbatches(config)));
}

StepCost predict_cost(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                      const HardwareSpec& hardware) {
  PredictionMemo memo(model, inventory, hardware);
  return predict_cost(memo, config);
}

std::vector<std::vector<CommunicationTime>> predict_communication(const ModelSpec& model, const Inventory& inventory,
                                                                  const ResolvedConfig& config,
                                                                  const HardwareSpec& hardware) {
  PredictionMemo memo(model, inventory, hardware);
  const StepTimes times = predict_step_times(memo, config);
  const int64_t m = config.num_microbatches, replayed = replayed_microbatches(config);
  auto ranks = replay_steady_communication(pipeline_programs(memo, config, replayed), times);
  if (replayed == m) return ranks;
  const auto of_two = replay_steady_communication(pipeline_programs(memo, config, 2), times);
  for (const CommunicationTime& two : of_two[0])  // Note [Periods of a step]
    for (CommunicationTime& three : ranks[0])
      if (three.group == two.group && three.purpose == two.purpose) {
        three.seconds += static_cast<double>(m - 3) * (three.seconds - two.seconds);
        three.exposed += static_cast<double>(m - 3) * (three.exposed - two.exposed);
      }
  return ranks;
}

StepReplay predict_step(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                        const HardwareSpec& hardware) {
  PredictionMemo memo(model, inventory, hardware);
  return replay_step(pipeline_programs(memo, config, config.num_microbatches), predict_step_times(memo, config));
}

double peak_flops_per_s(const ResolvedConfig& config, const HardwareSpec& hardware) {
  const double peak = matrix_rate(hardware.device.peak_flops_per_s, config.compute);
  const double device = peak > 0 ? peak : matrix_rate(hardware.device.peak_flops_per_s, DType::kFloat32);
  if (hardware.device.cores == 0) return device * config.degrees.world();
  const RankPlacement placement = rank_placement(config, hardware);
  const double busy = static_cast<double>(placement.threads) * placement.ranks;
  return device * std::min(1.0, busy / static_cast<double>(hardware.device.cores));
}

}  // namespace fivefold
