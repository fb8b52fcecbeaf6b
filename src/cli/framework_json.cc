#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/framework_host.h"
#include "cli/framework_steps.h"
#include "cli/framework_text.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/framework_knobs.h"
#include "planner/profiles/framework_switches.h"
#include "planner/profiles/published_error.h"
#include "reconcile/doctor.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

int64_t gpus_of(const FrameworkRun& run) { return run.dp * run.tp * run.cp * run.pp; }

Json parallel_json(const FrameworkRun& run) {
  return {{"dp", run.dp},
          {"tp", run.tp},
          {"sp", run.sp},
          {"pp", run.pp},
          {"vpp", run.vpp},
          {"schedule", run.vpp > 1 ? "interleaved" : "1f1b"},
          {"cp", run.cp},
          {"ep", run.ep},
          {"etp", run.expert_tp.value},
          {"zero", run.zero},
          {"shard_size", run.shard_size},
          {"stages", run.stage_layers}};
}

Json memory_json(const FrameworkPlan& plan) {
  Json lines = Json::object(), formulas = Json::object();
  for (const ProfileLine& line : plan.memory.peak().lines) {
    lines[line.name] = line.bytes;
    formulas[line.name] = line.formula;
  }
  return {{"peak", plan.needed},
          {"allocated", plan.memory.peak().bytes()},
          {"capacity", plan.capacity},
          {"fits", plan.fits()},
          {"error_pct", 100 * published_error(plan.run).memory},
          {"accounts", lines},
          {"formulas", formulas}};
}

Json time_json(const FrameworkTime& time) {
  Json parts = Json::object();
  for (int i = 0; i < kNumFrameworkParts; ++i)
    parts[std::string(to_string(static_cast<FrameworkPart>(i)))] = time.parts[static_cast<size_t>(i)];
  return parts;
}

std::string_view recompute_name(Checkpointing checkpointing) {
  if (checkpointing == Checkpointing::kNone) return "none";
  return checkpointing == Checkpointing::kFull ? "full" : "selective";
}

Json switches_json(const FrameworkRun& run) {
  Json json = Json::array();
  for (const SwitchValue& value : switch_values(run))
    json.push_back({{"name", value.name}, {"value", value.value}, {"assumed", value.assumed}});
  return json;
}

Json plan_json(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  const FrameworkRun& run = plan.run;
  const int64_t gpus = gpus_of(run), global = run.dp * run.micro * run.microbatches;
  return {
      {"gpus", gpus},
      {"layout", layout_text(run)},
      {"parallel", parallel_json(run)},
      {"batch",
       {{"global", global},
        {"micro", run.micro},
        {"sequence", run.sequence},
        {"accumulation", run.microbatches},
        {"tokens_per_step", global * run.sequence}}},
      {"precision", {{"compute", run.fp8 ? "fp8" : to_string(run.compute)}, {"grads", to_string(run.gradient_dtype)}}},
      {"recompute", recompute_name(run.checkpointing)},
      {"memory", memory_json(plan)},
      {"host", host_json(plan, hardware)},
      {"step_time", plan.time.seconds},
      {"parts", time_json(plan.time)},
      {"tokens_per_s", plan.tokens_per_s},
      {"tokens_per_s_per_gpu", plan.time.tokens_per_s},
      {"mfu", plan.time.mfu},
      {"hfu", plan.time.hfu},
      {"mfu_full", plan.time.mfu_full},
      {"hfu_full", plan.time.hfu_full},
      {"cost_per_hour", hardware.device.price_per_hour.value * static_cast<double>(gpus)}};
}

}  // namespace

Json framework_plan_json(const FrameworkAnswer& answer, double wall_seconds) {
  const auto& [request, result, base, tokens, with_more, assumed] = answer;
  Json json{{"fits", !result.plans.empty()},
            {"framework", to_string(request.base.framework)},
            {"steps", Json::array()},
            {"plans", Json::array()},
            {"rejected", Json::array()}};
  for (const DecisionStep& step : framework_steps(request, result)) {
    Json numbers = Json::object();
    for (const auto& [name, value] : step.numbers) numbers[name] = value;
    json["steps"].push_back({{"title", step.title}, {"lines", step.lines}, {"numbers", numbers}});
  }
  for (const FrameworkPlan& plan : result.plans) json["plans"].push_back(plan_json(plan, request.hardware));
  for (const FrameworkLoser& loser : result.losers) {
    Json entry{
        {"kind", loser.kind}, {"parallel", Json()}, {"layout", Json()}, {"reason", "has no legal layout"}, {"fix", ""}};
    if (loser.plan) {
      entry["parallel"] = parallel_json(loser.plan->run);
      entry["layout"] = layout_text(loser.plan->run);
      entry["reason"] = result.plans.empty() ? "does not fit" : losing_reason(result.plans[0], *loser.plan);
    }
    json["rejected"].push_back(entry);
  }
  if (!result.plans.empty()) {
    for (const Knob& knob : framework_knobs(result.plans[0], request.hardware))
      json["knobs"].push_back({{"change", knob.change},
                               {"refused", knob.refused},
                               {"needed", knob.plan ? Json(knob.plan->needed) : Json()},
                               {"fits", knob.plan && knob.plan->fits()},
                               {"step_time", knob.plan ? Json(knob.plan->time.seconds) : Json()}});
    json["switches"] = switches_json(result.plans[0].run);
  } else {
    json["smallest"] = plan_json(*result.smallest, request.hardware);
    if (with_more) json["with_more_gpus"] = plan_json(*with_more, request.hardware);
    const RunConfig config = framework_run_config(result.smallest->run, base);
    if (const Result<FrameworkPrediction> predicted = predict_framework(request.base.model, config, request.hardware);
        predicted.ok())
      json["does_not_fit"] = to_json(diagnose({.prediction = *predicted}, Symptom::kOutOfMemory));
  }
  json["assumed"] = assumed;
  json["layouts"] = result.layouts;
  json["evaluated"] = result.bounds;
  json["sized"] = result.sized;
  json["replayed"] = result.replayed;
  json["wall_time"] = wall_seconds;
  return json;
}

Json framework_cards_json(const std::vector<FrameworkCardsRow>& rows) {
  Json json{{"cards", Json::array()}};
  for (const FrameworkCardsRow& row : rows) {
    const bool fits = row.answer.ok() && !row.answer->result.plans.empty();
    Json entry{{"gpus", row.cards}, {"method", to_string(row.method)}, {"fits", fits}};
    if (!row.answer.ok())
      entry["reason"] = row.answer.error().message();
    else if (!fits)
      entry["reason"] = "does not fit";
    else
      entry["plan"] = plan_json(row.answer->result.plans[0], row.answer->request.hardware);
    json["cards"].push_back(entry);
  }
  return json;
}

Json framework_explanation_json(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  Json json = plan_json(plan, hardware);
  const int64_t gpus = gpus_of(plan.run);
  Json accounts = memory_json(plan);
  json["framework"] = to_string(plan.run.framework);
  json["ranks"] = Json::array();
  json["ranks"].push_back({{"ranks", gpus == 1 ? "0" : fmt::format("0-{}", gpus - 1)},
                           {"count", gpus},
                           {"coordinates", {{"pp", plan.memory.stage}}},
                           {"memory", {{"accounts", accounts["accounts"]}, {"peak", plan.needed}}},
                           {"traffic", Json::array()}});
  json["time"] = {
      {"step_seconds", plan.time.seconds}, {"parts", time_json(plan.time)}, {"tokens_per_s", plan.tokens_per_s}};
  json["bubble"] = plan.time[FrameworkPart::kBubble] / plan.time.seconds;
  json["switches"] = switches_json(plan.run);
  return json;
}

}  // namespace fivefold
