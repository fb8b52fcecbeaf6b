// A small planned run and its record for the tests of reconcile and report. The plan is written by hand, so that its
// numbers do not follow the planner's; the record is what a run that keeps the plan exactly would write.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/units.h"
#include "reconcile/reconcile.h"

namespace fivefold::reconcile_testing {

// One layer: h 64, 2 heads of 32, f 128, V 256, untied. Two ranks, ZeRO-2, 2 sequences of 32 tokens a rank, bf16.
inline constexpr char kModel[] = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
  "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
  "vocab_size": 256, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "hidden_act": "silu"})";

inline RunConfig example_config(int dp) {
  RunConfig config;
  config.model.config = "config.json";
  config.parallel.dp = dp;
  config.parallel.zero = dp > 1 ? 2 : 0;
  config.batch.global = 2 * dp;
  config.batch.micro = 2;
  config.batch.sequence = 32;
  config.run.steps = 6;
  return config;
}

inline constexpr double kPlannedParts[] = {0.020, 0, 0.010, 0.040, 0.005, 0.010, 0.005, 0.005, 0.002, 0.003};  // 0.1 s

inline RunPlan example_plan(int dp) {
  RunPlan plan;
  plan.model = parse_model_config(kModel, "config.json").value();
  plan.inventory = build_inventory(plan.model);
  plan.config = resolve(example_config(dp), plan.model).value();
  plan.threads = 1;
  // One instruction per part of the step.
  const auto instruction = [](Opcode op, int unit, int microbatch) {
    Instruction made;
    made.op = op;
    made.unit = unit;
    made.microbatch = microbatch;
    return made;
  };
  plan.program.instructions = {instruction(Opcode::kCountTokens, -1, -1), instruction(Opcode::kWaitParameters, 1, -1),
                               instruction(Opcode::kForward, 1, 0),       instruction(Opcode::kLoss, 2, 0),
                               instruction(Opcode::kBackward, 1, 0),      instruction(Opcode::kWaitReduce, 1, -1),
                               instruction(Opcode::kGradNorm, -1, -1),    instruction(Opcode::kOptimizerStep, 1, -1)};
  plan.ledger.peak[Account::kParams] = 100 * kMiB;
  plan.ledger.peak[Account::kActivations] = 60 * kMiB;
  plan.ledger.peak[Account::kLogits] = 8 * kMiB;
  plan.ledger.at_peak[Account::kParams] = 100 * kMiB;
  plan.ledger.at_peak[Account::kActivations] = 60 * kMiB;
  plan.ledger.peak_total = 160 * kMiB;
  plan.library_bytes = 5 * kMiB;
  if (dp > 1)
    plan.traffic = {{CollectiveKind::kAllReduce, GroupKind::kDpCp, Purpose::kTokenCount, 1, 8},
                    {CollectiveKind::kReduceScatter, GroupKind::kShard, Purpose::kGradients, 3, 3000},
                    {CollectiveKind::kAllGather, GroupKind::kShard, Purpose::kParameters, 3, 3000}};
  plan.flops.matrices = 4e9;
  plan.flops.attention_causal = 1e9;
  plan.flops.attention_full = 2e9;
  plan.flops.recomputed_matrices = 1e9;
  plan.time.emplace();
  plan.time->hardware = "example";
  plan.time->calibrated = true;
  plan.time->step_s = 0.1;
  std::copy(std::begin(kPlannedParts), std::end(kPlannedParts), plan.time->parts.seconds.begin());
  plan.time->peak_flops_per_s = 1e11;
  std::vector<TimelineEntry>& timeline = plan.time->replay.timelines.emplace_back();
  double now = 0;
  for (const Instruction& step : plan.program.instructions) {
    const double seconds = plan.time->parts[part_of(step.op)];
    timeline.push_back({step, now, now + seconds, false});
    now += seconds;
  }
  return plan;
}

// Sets how long the instruction of a part takes in a step; those after it move.
inline void set_part(StepRecord& step, const RunPlan& plan, StepPart part, double seconds) {
  double shift = 0;
  for (size_t i = 0; i < step.times.size(); ++i) {
    RecordedTime& time = step.times[i];
    time.begin_s += shift;
    time.end_s += shift;
    if (part_of(plan.program.instructions[i].op) != part) continue;
    const double before = time.end_s - time.begin_s;
    shift += seconds - before;
    time.end_s = time.begin_s + seconds;
    time.cpu_s = seconds;
  }
  step.seconds += shift;
}

inline RankRecord example_rank(const RunPlan& plan, int rank) {
  RankRecord record;
  record.rank = rank;
  RecordedSession session;
  session.start.rank = rank;
  session.start.world = plan.config.degrees.world();
  session.start.started_at = 1000;
  for (const Instruction& instruction : plan.program.instructions)
    session.program.push_back(
        {std::string(to_string(instruction.op)),
         instruction.unit < 0 ? "" : plan.inventory.units[static_cast<size_t>(instruction.unit)].name,
         instruction.microbatch});
  for (int64_t number = 1; number <= 6; ++number) {
    StepRecord step;
    step.step = number;
    step.loss = 6.0 - 0.5 * static_cast<double>(number);
    step.grad_norm = 1.5;
    step.tokens = plan.config.tokens_per_step;
    step.valid_tokens = plan.config.tokens_per_step;
    step.samples_consumed = plan.config.config.batch.global * number;
    step.begin_s = 1.0 + 0.2 * static_cast<double>(number - 1);
    step.seconds = 0.1;
    step.live[Account::kParams] = plan.ledger.peak[Account::kParams];
    step.peak = plan.ledger.peak;
    step.at_peak = plan.ledger.at_peak;
    step.peak_total = plan.ledger.peak_total;
    for (const TrafficLine& line : plan.traffic)
      step.traffic.push_back({line.kind, line.group, line.purpose, line.calls, line.bytes});
    for (const TimelineEntry& entry : plan.timeline_of(rank))
      step.times.push_back({entry.begin_s, entry.end_s, entry.end_s - entry.begin_s});
    session.steps.push_back(std::move(step));
  }
  session.summary = SummaryRecord{6, 6 * plan.config.tokens_per_step, 2.5, true};
  record.sessions.push_back(std::move(session));
  return record;
}

inline PlannedRun example_run(int dp = 2) {
  PlannedRun run{example_plan(dp), {}};
  for (int rank = 0; rank < dp; ++rank) run.record.ranks.push_back(example_rank(run.plan, rank));
  ProcessRecord process;
  process.ranks = dp;
  process.rss_idle = 50 * kMiB;
  process.rss_before_model = 52 * kMiB;
  process.rss_peak = 50 * kMiB + dp * 160 * kMiB + 2 * kMiB + 5 * kMiB;
  run.record.ranks[0].sessions[0].processes.push_back(process);
  return run;
}

inline std::vector<StepRecord>& steps_of(PlannedRun& run, int rank) {
  return run.record.ranks[static_cast<size_t>(rank)].sessions.back().steps;
}

// The row of a quantity and rank; an empty row, and a failure, when there is none.
inline ReconcileRow row_of(const Reconciliation& result, const std::string& quantity, int rank = kAllRanks) {
  for (const ReconcileRow& row : result.rows)
    if (row.quantity == quantity && row.rank == rank) return row;
  ADD_FAILURE() << "no row " << quantity << " of rank " << rank;
  return {};
}

// Quantities (and ranks) outside their bound.
inline std::vector<std::string> outside(const Reconciliation& result) {
  std::vector<std::string> names;
  for (const ReconcileRow& row : result.rows)
    if (!row.pass()) names.push_back(row.quantity + "@" + std::to_string(row.rank));
  return names;
}

}  // namespace fivefold::reconcile_testing
