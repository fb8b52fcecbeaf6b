#include "reconcile/run_plan.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "planner/scope.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// Of one rank: its instructions grouped, which with what the steady state adds make up the step.
PartSeconds parts_of_timeline(const std::vector<TimelineEntry>& timeline, const StepCost& cost) {
  PartSeconds parts;
  double sum = 0;
  for (const TimelineEntry& entry : timeline) {
    if (entry.communication) continue;
    parts[part_of(entry.instruction.op)] += entry.end_s - entry.begin_s;
    sum += entry.end_s - entry.begin_s;
  }
  parts[StepPart::kBetween] = cost[TimePart::kOverhead];
  sum += cost[TimePart::kOverhead];
  // The timeline is of a first step; a later one also meets the parameter gathers that the step before it left behind.
  parts[StepPart::kExposedGathers] += cost.seconds - sum;
  return parts;
}

PlannedTime planned_time(const RunPlan& plan, const StepCost& cost, const HardwareSpec& hardware) {
  PlannedTime time;
  time.hardware = hardware.name + (hardware.simulated ? ", links of " + hardware.simulated->name : "");
  time.calibrated = !hardware.device.gemm.points.empty() && hardware.device.gemm.kind == Provenance::kMeasured;
  time.step_s = cost.seconds;
  time.times = predict_step_times(plan.model, plan.inventory, plan.config, hardware);
  time.replay = predict_step(plan.model, plan.inventory, plan.config, hardware);
  time.communication = predict_communication(plan.model, plan.inventory, plan.config, hardware);
  time.peak_flops_per_s = peak_flops_per_s(plan.config, hardware);
  time.parts = parts_of_timeline(time.replay.timelines[0], cost);
  return time;
}

// Ranks of a data-parallel run are alike; where the model is split they are not.
std::vector<RankPlan> plans_of_others(const RunPlan& plan, const StepCost* cost) {
  std::vector<RankPlan> others;
  const Degrees& degrees = plan.config.degrees;
  if (degrees.tp * degrees.cp * degrees.pp == 1) return others;
  for (int rank = 1; rank < degrees.world(); ++rank) {
    others.push_back(
        {.program = training_program(plan.inventory, plan.config, rank_stages(plan.model, plan.config, rank), rank),
         .ledger = predict_memory(plan.model, plan.inventory, plan.config, rank),
         .traffic = predict_traffic(plan.model, plan.inventory, plan.config, rank),
         .parts = {}});
    if (cost) others.back().parts = parts_of_timeline(plan.timeline_of(rank), *cost);
  }
  return others;
}

Json accounts_json(const AccountBytes& bytes) {
  Json json = Json::object();
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (bytes[account] != 0) json[std::string(to_string(account))] = bytes[account];
  }
  return json;
}

Json time_json(const PlannedTime& time) {
  Json parts;
  for (int i = 0; i < kNumStepParts; ++i) {
    const auto part = static_cast<StepPart>(i);
    parts[std::string(to_string(part))] = time.parts[part];
  }
  return {{"hardware", time.hardware},
          {"calibrated", time.calibrated},
          {"step", time.step_s},
          {"parts", std::move(parts)},
          {"peak_flops_per_s", time.peak_flops_per_s}};
}

}  // namespace

int RunPlan::pipeline_rank(int rank) const { return RankGrid::create(config.degrees).value().coordinates(rank).pp; }

std::vector<Program> RunPlan::pipeline_programs() const {
  std::vector<Program> programs;
  for (const int rank : RankGrid::create(config.degrees).value().group(GroupKind::kPp, 0))
    programs.push_back(program_of(rank));
  return programs;
}

RecordedInstruction as_recorded(const Instruction& instruction, const Inventory& inventory) {
  return {std::string(to_string(instruction.op)),
          instruction.unit < 0 ? "" : inventory.units[static_cast<size_t>(instruction.unit)].name,
          instruction.microbatch};
}

const Ledger& RunPlan::fullest_ledger() const {
  const Ledger* fullest = &ledger;
  for (const RankPlan& rank : others)
    if (rank.ledger.peak_total > fullest->peak_total) fullest = &rank.ledger;
  return *fullest;
}

Result<RunPlan> make_run_plan(const ModelSpec& model, const ResolvedConfig& config, int threads,
                              const HardwareSpec* hardware) {
  const std::vector<Error> outside = planner_scope(model, config.config);
  if (!outside.empty()) return outside.front();
  RunPlan plan;
  plan.model = model;
  plan.inventory = build_inventory(model);
  plan.config = config;
  plan.threads = threads;
  plan.program = training_program(plan.inventory, config, rank_stages(model, config, 0), 0);
  plan.ledger = predict_memory(model, plan.inventory, config);
  plan.traffic = predict_traffic(model, plan.inventory, config);
  plan.flops = step_flops(model, plan.inventory, config);
  std::optional<StepCost> cost;
  if (hardware) cost = predict_cost(model, plan.inventory, config, *hardware);
  if (hardware) plan.time = planned_time(plan, *cost, *hardware);
  plan.others = plans_of_others(plan, cost ? &*cost : nullptr);
  if (hardware) plan.library_bytes = library_bytes(hardware->device, config.compute);
  return plan;
}

Json plan_json(const RunPlan& plan) {
  Json traffic = Json::array();
  for (const TrafficLine& line : plan.traffic)
    traffic.push_back({{"kind", std::string(to_string(line.kind))},
                       {"group", std::string(to_string(line.group))},
                       {"purpose", std::string(to_string(line.purpose))},
                       {"calls", line.calls},
                       {"bytes", line.bytes}});
  return {{"model", plan.model.name},
          {"parameters", plan.inventory.num_parameters()},
          {"ranks", plan.config.degrees.world()},
          {"threads", plan.threads},
          {"tokens_per_step", plan.config.tokens_per_step},
          {"memory",
           {{"accounts", accounts_json(plan.ledger.peak)},
            {"persistent", accounts_json(plan.ledger.persistent)},
            {"at_peak", accounts_json(plan.ledger.at_peak)},
            {"peak", plan.ledger.peak_total},
            {"libraries", plan.library_bytes},
            {"peak_moment", plan.ledger.peak_moment}}},
          {"traffic", std::move(traffic)},
          {"flops",
           {{"model_causal", plan.flops.model_causal()},
            {"model_full", plan.flops.model_full()},
            {"hardware_causal", plan.flops.hardware_causal()},
            {"hardware_full", plan.flops.hardware_full()}}},
          {"time", plan.time ? time_json(*plan.time) : Json(nullptr)}};
}

Status write_plan_json(const RunPlan& plan, const std::filesystem::path& run_directory) {
  const std::filesystem::path file = run_directory / "plan.json", temporary = run_directory / "plan.json.tmp";
  {
    std::ofstream stream(temporary, std::ios::trunc);
    stream << plan_json(plan).dump(2) << "\n";
    if (!stream.flush()) return Error{file.string(), "cannot be written", ""};
  }
  std::error_code error;
  std::filesystem::rename(temporary, file, error);
  if (error) return Error{file.string(), "cannot be written: " + error.message(), ""};
  return Ok{};
}

}  // namespace fivefold
