#include "cli/plan_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// Peak bytes on fivefold's own engine: exact for every account but workspace and other.
constexpr double kErrorPercent = 1.0;

Json coordinates_json(const Coordinates& c) {
  return {{"dp", c.dp}, {"tp", c.tp}, {"cp", c.cp}, {"pp", c.pp}, {"shard", c.shard}, {"replicate", c.replicate}};
}

Json memory_json(const Ledger& ledger, int64_t capacity) {
  return {{"accounts", accounts_json(ledger.peak)},
          {"peak", ledger.peak_total},
          {"peak_moment", ledger.peak_moment},
          {"at_peak", accounts_json(ledger.at_peak)},
          {"persistent", accounts_json(ledger.persistent)},
          {"capacity", capacity},
          {"fits", ledger.peak_total <= capacity}};
}

Json traffic_json(const std::vector<TrafficLine>& traffic) {
  Json lines = Json::array();
  for (const TrafficLine& line : traffic)
    lines.push_back({{"kind", to_string(line.kind)},
                     {"group", to_string(line.group)},
                     {"purpose", to_string(line.purpose)},
                     {"calls", line.calls},
                     {"bytes", line.bytes}});
  return lines;
}

Json batch_json(const ResolvedConfig& config) {
  const BatchConfig& batch = config.config.batch;
  return {{"global", batch.global},
          {"micro", batch.micro},
          {"sequence", batch.sequence},
          {"accumulation", config.num_microbatches},
          {"tokens_per_step", config.tokens_per_step}};
}

Json parts_json(const StepCost& cost) {
  Json parts;
  for (int i = 0; i < kNumTimeParts; ++i)
    parts[std::string(to_string(static_cast<TimePart>(i)))] = cost.parts[static_cast<size_t>(i)];
  return parts;
}

std::string recompute_text(const RecomputeConfig& recompute) {
  switch (recompute.kind) {
    case RecomputeKind::kNone:
      return "none";
    case RecomputeKind::kFull:
      return fmt::format("full/{}", recompute.every);
    case RecomputeKind::kSelective:
      return fmt::format("selective/{}", fmt::join(recompute.tensors, "+"));
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

Json accounts_json(const AccountBytes& bytes) {
  Json accounts = Json::object();
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (bytes[account] != 0) accounts[std::string(to_string(account))] = bytes[account];
  }
  return accounts;
}

Json parallel_json(const ParallelConfig& parallel) {
  return {{"dp", parallel.dp},
          {"tp", parallel.tp},
          {"sp", parallel.sp},
          {"pp", parallel.pp},
          {"vpp", parallel.vpp},
          {"schedule", to_string(parallel.schedule)},
          {"cp", parallel.cp},
          {"cp_kind", to_string(parallel.cp_kind)},
          {"ep", parallel.ep},
          {"zero", parallel.zero},
          {"shard_size", parallel.shard_size},
          {"prefetch", parallel.prefetch}};
}

Json explanation_json(const ModelSpec& model, const Inventory& inventory, const Explanation& e, RankListing listing) {
  Json json;
  const RankGrid grid = RankGrid::create(e.config.degrees).value();
  const int world = grid.world();
  // Data-parallel ranks are alike: one entry stands for all.
  const int entries = listing == RankListing::kEach ? world : 1;
  for (int rank = 0; rank < entries; ++rank) {
    const bool alone = listing == RankListing::kEach || world == 1;
    json["ranks"].push_back({{"ranks", alone ? std::to_string(rank) : fmt::format("0-{}", world - 1)},
                             {"count", alone ? 1 : world},
                             {"coordinates", coordinates_json(grid.coordinates(rank))},
                             {"memory", memory_json(e.ledger, e.capacity)},
                             {"traffic", traffic_json(e.traffic)}});
  }
  json["time"] = {{"step_seconds", e.cost.seconds},
                  {"parts", parts_json(e.cost)},
                  {"communication_seconds", e.cost.communication_seconds},
                  {"tokens_per_s", e.tokens_per_s},
                  {"mfu", e.mfu()},
                  {"hfu", e.hfu()}};
  json["bubble"] = e.cost[TimePart::kBubble] / e.cost.seconds;
  json["flops"] = {{"parameters", multiplied_parameters(model)},   {"matrices", e.flops.matrices},
                   {"attention_causal", e.flops.attention_causal}, {"attention_full", e.flops.attention_full},
                   {"model_causal", e.flops.model_causal()},       {"model_full", e.flops.model_full()},
                   {"hardware_causal", e.flops.hardware_causal()}, {"hardware_full", e.flops.hardware_full()}};
  json["parallel"] = parallel_json(e.config.config.parallel);
  json["batch"] = batch_json(e.config);
  for (const SavedTensor& tensor : saved_tensors_by_range(model, inventory, e.config))
    json["saved_tensors"].push_back({{"name", tensor.name}, {"bytes_per_token", tensor.bytes_per_token}});
  return json;
}

Json candidate_json(const Candidate& plan, const HardwareSpec& hardware) {
  const RunConfig& config = plan.config.config;
  Json memory = memory_json(plan.ledger, plan.capacity);
  memory["error_pct"] = kErrorPercent;
  Json json{{"gpus", plan.config.degrees.world()},
            {"parallel", parallel_json(config.parallel)},
            {"batch", batch_json(plan.config)},
            {"precision",
             {{"compute", to_string(config.precision.compute)},
              {"params", to_string(plan.config.params)},
              {"grads", to_string(plan.config.grads)},
              {"optimizer_state", to_string(config.precision.optimizer_state)}}},
            {"recompute", recompute_text(config.recompute)},
            {"memory", memory},
            {"step_time", plan.cost.seconds},
            {"time", parts_json(plan.cost)},
            {"tokens_per_s", plan.tokens_per_s},
            {"mfu", plan.mfu},
            {"hfu", plan.hfu}};
  const Figure& price = hardware.device.price_per_hour;
  json["cost_per_hour"] = price.known() ? Json(price.value * plan.config.degrees.world()) : Json(nullptr);
  return json;
}

}  // namespace fivefold
