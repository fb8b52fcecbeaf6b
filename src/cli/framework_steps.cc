#include "cli/framework_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/text.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/framework_knobs.h"
#include "spec/model_count.h"

namespace fivefold {
namespace {

std::string lines_text(const std::vector<ProfileLine>& lines, int64_t least) {
  std::vector<std::string> words;
  for (const ProfileLine& line : lines)
    if (line.bytes >= least) words.push_back(fmt::format("{} {}", line.name, format_bytes(line.bytes)));
  return join(words, ", ");
}

class FrameworkDecision {
 public:
  FrameworkDecision(const FrameworkRequest& request, const FrameworkResult& result)
      : request_(request), result_(result) {}

  std::vector<DecisionStep> steps() const { return {memory(), sharding(), splits(), batch(), precision()}; }

 private:
  const FrameworkPlan* best() const { return result_.plans.empty() ? nullptr : &result_.plans[0]; }
  // What there is a plan of, or of what needs least.
  const FrameworkPlan& shown() const { return best() != nullptr ? *best() : *result_.smallest; }

  // No split but data parallelism, one sequence at a time, nothing recomputed.
  FrameworkRun plain(int64_t replicas, int zero) const {
    FrameworkRun run = request_.base;
    run.dp = replicas;
    run.tp = run.cp = run.pp = run.vpp = run.ep = run.micro = run.microbatches = 1;
    run.expert_tp.value = 1;
    run.sp = false;
    run.zero = zero;
    run.shard_size = 0;
    run.stage_layers.clear();
    run.checkpointing = Checkpointing::kNone;
    return run;
  }
  std::vector<int> levels() const {
    switch (request_.base.framework) {
      case Framework::kFsdp2:
        return {3};
      case Framework::kHf:
        return {0, 3};
      case Framework::kDeepspeed:
        return {0, 1, 2, 3};
      default:
        return {0, 1};
    }
  }

  DecisionStep memory() const {
    const FrameworkRun run = plain(1, levels().front());
    const ProfileMemory memory = profile_memory(run);
    const int64_t parameters = count_parameters(run.model), active = count_active_parameters(run.model);
    const int64_t states = memory.static_bytes, peak = memory.peak().bytes();
    std::vector<std::string> lines = {
        fmt::format("{} parameters{}", format_count(parameters),
                    active < parameters ? fmt::format(", of which a token uses {}", format_count(active)) : ""),
        fmt::format("one copy on one GPU: {} of states, {} more at the peak of a sequence of {} tokens",
                    format_bytes(states), format_bytes(peak - states), run.sequence),
        fmt::format("at that peak: {}", lines_text(memory.peak().lines, div_floor(peak, int64_t{100}))),
        fmt::format("a GPU has {}; the allocator's loss of {:.0f} % and {} outside it count against that",
                    format_bytes(run.capacity_bytes), 100 * kFragmentedShare, format_bytes(kOutsideAllocator))};
    return {"Memory of one copy",
            lines,
            {{"parameters", static_cast<double>(parameters)},
             {"active_parameters", static_cast<double>(active)},
             {"state_bytes", static_cast<double>(states)},
             {"activation_bytes", static_cast<double>(peak - states)},
             {"capacity", static_cast<double>(run.capacity_bytes)}}};
  }

  DecisionStep sharding() const {
    DecisionStep step{"Must the states be sharded, and at which level", {}, {}};
    for (const int zero : levels()) {
      const int64_t bytes = profile_memory(plain(request_.gpus, zero)).static_bytes;
      const bool fits = bytes <= request_.base.capacity_bytes;
      step.lines.push_back(fmt::format("{} over {} GPUs, no other split: {} of states a GPU{}", level_text(zero),
                                       request_.gpus, format_bytes(bytes), fits ? "" : ", more than there is"));
      step.numbers.emplace_back(fmt::format("zero{}_state_bytes", zero), static_cast<double>(bytes));
    }
    if (request_.base.framework == Framework::kMegatron)
      step.lines.emplace_back("its distributed optimizer leaves weights and fp32 gradients whole: 6 B a parameter");
    const FrameworkRun& run = shown().run;
    step.lines.push_back(run.dp * run.cp == 1 ? std::string("chosen: one replica, nothing to shard over")
                                              : fmt::format("chosen: {} over {} GPUs", level_text(run.zero),
                                                            run.shard_size > 0 ? run.shard_size : run.dp * run.cp));
    step.numbers.emplace_back("zero", run.zero);
    return step;
  }
  std::string level_text(int zero) const {
    if (request_.base.framework == Framework::kMegatron || request_.base.framework == Framework::kNanotron)
      return zero == 0 ? "whole" : "distributed optimizer";
    if (request_.base.framework == Framework::kFsdp2) return "FSDP";
    return zero == 0 ? "DDP" : fmt::format("ZeRO-{}", zero);
  }

  DecisionStep splits() const {
    DecisionStep step{"Is tensor, pipeline, context or expert parallelism needed, and where", {}, {}};
    for (const FrameworkLoser& loser : result_.losers)
      if (loser.kind == to_string(SplitKind::kNone)) {
        const bool fits = loser.plan && loser.plan->fits();
        step.lines.push_back(
            !loser.plan ? fmt::format("without a split there is no layout: {} replicas, {} sequences a step",
                                      request_.gpus, shown().run.dp * shown().run.micro * shown().run.microbatches)
                        : fmt::format("without a split: {}: {}", layout_text(loser.plan->run),
                                      best() != nullptr ? losing_reason(*best(), *loser.plan) : needs(*loser.plan)));
        step.numbers.emplace_back("needed", fits ? 0.0 : 1.0);
      }
    const FrameworkRun& run = shown().run;
    step.lines.push_back(fmt::format("{}: {}", best() != nullptr ? "chosen" : "what needs least", layout_text(run)));
    if (run.tp > 1)
      step.lines.push_back(fmt::format("tp = {}: {}, {} GPUs a node", run.tp,
                                       run.tp <= request_.hardware.devices_per_node ? "within a node" : "across nodes",
                                       request_.hardware.devices_per_node));
    if (!run.stage_layers.empty())
      step.lines.push_back(fmt::format("layers by chunk: {}", chunks_text(run.stage_layers)));
    return step;
  }
  // "7, 14 x 8, 7".
  static std::string chunks_text(const std::vector<int64_t>& layers) {
    std::vector<std::string> words;
    for (size_t i = 0; i < layers.size();) {
      size_t end = i;
      while (end < layers.size() && layers[end] == layers[i]) ++end;
      words.push_back(end - i == 1 ? fmt::format("{}", layers[i]) : fmt::format("{} x {}", end - i, layers[i]));
      i = end;
    }
    return join(words, ", ");
  }
  static std::string needs(const FrameworkPlan& plan) {
    return fmt::format("needs {} of {}", format_bytes(plan.needed), format_bytes(plan.capacity));
  }

  DecisionStep batch() const {
    DecisionStep step{"Batch, micro-batch, accumulation", {}, {}};
    const FrameworkRun& run = shown().run;
    const int64_t global = run.dp * run.micro * run.microbatches, tokens = global * run.sequence;
    step.lines.push_back(fmt::format(
        "{} sequences = {} replicas x {} a micro-batch x {} accumulated; {} tokens a step{}", global, run.dp, run.micro,
        run.microbatches, format_count(tokens), request_.global_batch == 0 ? " (chosen; set --global-batch)" : ""));
    step.lines.emplace_back(
        "a rate tuned at another batch scales by the square root of the ratio (Adam): twice the batch, lr x 1.41; only "
        "up "
        "to the critical batch");
    step.lines.push_back(fmt::format("warm-up: at least 2 / (1 - beta2) = 40 steps at beta2 = 0.95, {} tokens here",
                                     format_count(40 * tokens)));
    if (best() != nullptr && run.pp > 1)
      step.lines.push_back(fmt::format("{} micro-batches fill {} stages: bubble {:.1f} % of the step", run.microbatches,
                                       run.pp, 100 * best()->time[FrameworkPart::kBubble] / best()->time.seconds));
    step.numbers = {{"global", static_cast<double>(global)},
                    {"micro", static_cast<double>(run.micro)},
                    {"accumulation", static_cast<double>(run.microbatches)},
                    {"tokens_per_step", static_cast<double>(tokens)}};
    return step;
  }

  DecisionStep precision() const {
    DecisionStep step{"Precision and recompute", {}, {}};
    const FrameworkRun& run = shown().run;
    step.lines.push_back(fmt::format("{} products, {} gradients, optimizer states in {} bits",
                                     run.fp8 ? "fp8" : to_string(run.compute), to_string(run.gradient_dtype),
                                     run.optimizer_state_bits.value));
    const auto priced = [&](const char* name, const FrameworkRun& changed) {
      if (!framework_refusals(changed).empty()) return;
      const FrameworkPlan plan = framework_plan(changed, request_.hardware);
      step.lines.push_back(fmt::format("{}: {}, step {}{}", name, needs(plan), format_seconds(plan.time.seconds),
                                       plan.fits() ? "" : ", does not fit"));
      step.numbers.emplace_back(std::string(name) + " step_time", plan.time.seconds);
      step.numbers.emplace_back(std::string(name) + " needed", static_cast<double>(plan.needed));
    };
    FrameworkRun changed = run;
    changed.checkpointing = Checkpointing::kNone;
    priced("nothing recomputed", changed);
    changed.checkpointing = Checkpointing::kFull;
    priced("every layer recomputed", changed);
    changed = run;
    changed.fp8 = !run.fp8;
    const bool has_fp8 = run.framework == Framework::kMegatron || run.framework == Framework::kFsdp2;
    if (has_fp8 && request_.hardware.device.peak_flops_per_s.fp8.known())
      priced(run.fp8 ? "in bf16" : "in fp8", changed);
    return step;
  }

  const FrameworkRequest& request_;
  const FrameworkResult& result_;
};

}  // namespace

std::vector<DecisionStep> framework_steps(const FrameworkRequest& request, const FrameworkResult& result) {
  return FrameworkDecision(request, result).steps();
}

std::string losing_reason(const FrameworkPlan& best, const FrameworkPlan& other) {
  if (!other.fits()) {
    const int64_t missing = other.needed - other.capacity;
    const bool states = other.memory.static_bytes > other.capacity;
    return fmt::format("does not fit: needs {}, {} more than there is ({})", format_bytes(other.needed),
                       format_bytes(missing), states ? "states" : "activations");
  }
  const double change = other.time.seconds / best.time.seconds - 1;
  const std::string parts = changed_parts(best.time, other.time);
  const std::string where = parts.empty() ? "" : ": " + parts;
  if (change < 0) return fmt::format("{:.1f} % faster, and less simple{}", -100 * change, where);
  return fmt::format("{:.1f} % slower{}", 100 * change, where);
}

}  // namespace fivefold
