// The checklist of a run whose GPUs do less the more there are: the same run on fewer and on more replicas, with the
// batch of each replica kept and with the whole batch kept, and what grows.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/integer.h"
#include "base/text.h"
#include "reconcile/doctor_parts.h"
#include "reconcile/log_rows.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

struct Point {
  int64_t world = 0;
  double tokens_per_s = 0;                      // of a GPU
  double links = 0, bubble = 0, optimizer = 0;  // shares of a step
};

double links_share(const FrameworkTime& time) {
  double seconds = 0;
  for (const FrameworkPart part :
       {FrameworkPart::kTensor, FrameworkPart::kContext, FrameworkPart::kExperts, FrameworkPart::kExchange})
    seconds += time[part];
  return seconds / time.seconds;
}

Point point_of(const FrameworkPrediction& at) {
  const FrameworkTime& time = *at.time;
  return {.world = at.world(),
          .tokens_per_s = time.tokens_per_s,
          .links = links_share(time),
          .bubble = time[FrameworkPart::kBubble] / time.seconds,
          .optimizer = time[FrameworkPart::kOptimizer] / time.seconds};
}

enum class BatchRule : uint8_t { kOfReplica, kOfWorld };

// Replicas from one to four times as many as the run has.
std::vector<Point> points(const FrameworkPrediction& prediction, BatchRule rule) {
  std::vector<Point> found;
  const int dp = prediction.config.parallel.dp;
  std::vector<int> replicas;
  for (int fewer = 1; fewer < dp; fewer *= 2)
    if (dp % fewer == 0 && dp / fewer <= 64) replicas.push_back(fewer);
  for (const int factor : {1, 2, 4}) replicas.push_back(dp * factor);
  for (const int count : replicas) {
    RunConfig config = prediction.config;
    config.parallel.dp = count;
    if (count * config.parallel.cp < config.parallel.shard_size) config.parallel.shard_size = 0;
    if (rule == BatchRule::kOfReplica)
      config.batch.global = div_exact(config.batch.global, dp) * count;
    else if (config.batch.global % (config.batch.micro * count) != 0)
      continue;
    const auto at = changed(prediction, config);
    // Where it does not fit there is nothing to compare with.
    if (at && at->time && (at->fits() || count >= dp)) found.push_back(point_of(*at));
  }
  return found;
}

std::string table(const std::vector<Point>& points) {
  std::vector<std::string> texts;
  for (const Point& point : points)
    texts.push_back(format_count(point.world) + (point.world == 1 ? " GPU " : " GPUs ") +
                    percent(point.tokens_per_s / points.front().tokens_per_s));
  return join(texts, ", ");
}

// The part of the step that takes the largest further share from the first point to the last.
std::string growing(const std::vector<Point>& points) {
  const Point &first = points.front(), &last = points.back();
  const std::array<std::pair<const char*, double>, 3> parts = {
      std::pair{"waiting for links", last.links - first.links},
      std::pair{"the pipeline's bubble", last.bubble - first.bubble},
      std::pair{"the optimizer's step", last.optimizer - first.optimizer}};
  const auto most = std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  constexpr double kNoticeable = 0.01;
  if (most->second < kNoticeable) return "no part grows";
  const double before = most == parts.begin()       ? first.links
                        : most == parts.begin() + 1 ? first.bubble
                                                    : first.optimizer;
  return std::string("what grows is ") + most->first + ", from " + percent(before) + " to " +
         percent(before + most->second) + " of the step";
}

void add_curve(const FrameworkPrediction& prediction, BatchRule rule, Diagnosis& diagnosis) {
  const std::vector<Point> curve = points(prediction, rule);
  if (curve.size() < 2) return;
  const double lost = 1 - curve.back().tokens_per_s / curve.front().tokens_per_s;
  const bool weak = rule == BatchRule::kOfReplica;
  constexpr double kLost = 0.1;
  diagnosis.steps.push_back(
      {weak ? "more replicas, each with its batch" : "more replicas for the same batch",
       "tokens/s of a GPU: " + table(curve) + "; " + growing(curve),
       lost < kLost ? ""
       : weak       ? "less traffic between nodes for a token: shards inside a node, a larger batch of each replica"
              : "a larger global batch, if training allows it: the exchange of gradients does not shrink with the "
                "batch",
       lost >= kLost});
}

void check_tensor_group(const FrameworkPrediction& prediction, Diagnosis& diagnosis) {
  const FrameworkRun& run = prediction.run;
  const int64_t node = prediction.hardware.devices_per_node;
  if (run.tp * run.cp <= node || run.tp == 1) return;
  diagnosis.steps.push_back({"tensor parallelism over nodes",
                             "groups of tp = " + std::to_string(run.tp) + (run.cp > 1 ? " x cp" : "") +
                                 " do not fit in nodes of " + std::to_string(node) +
                                 ": their collectives wait for the network in every layer",
                             "tp up to " + std::to_string(node) + ", the rest pipeline stages", run.tp > node});
}

}  // namespace

Diagnosis diagnose_scaling(const DoctorCase& the_case) {
  const FrameworkPrediction& prediction = *the_case.prediction;
  Diagnosis diagnosis{.symptom = Symptom::kScaling, .need = prediction.need, .capacity = prediction.run.capacity_bytes};
  if (!prediction.time) {
    diagnosis.summary = "no time is predicted for this run: " + prediction.no_time;
    return diagnosis;
  }
  check_tensor_group(prediction, diagnosis);
  add_curve(prediction, BatchRule::kOfReplica, diagnosis);
  add_curve(prediction, BatchRule::kOfWorld, diagnosis);
  std::optional<double> measured = the_case.tokens_per_s;
  if (!measured && the_case.log) measured = measured_tokens_per_s(prediction, summarize(*the_case.log));
  if (measured) {
    const double share = *measured / prediction.time->tokens_per_s;
    const auto link = explain_by_network(prediction, *measured);
    if (link && share < kFaultyShare)
      diagnosis.steps.insert(diagnosis.steps.begin(),
                             {"inter-node bandwidth",
                              percent(share) + " of the predicted pace of " + std::to_string(prediction.world()) +
                                  " GPUs: links between nodes are not in use "
                                  "as stated",
                              "a bandwidth test over two nodes: all_reduce_perf -b 1G -e 8G of nccl-tests", true});
  }
  diagnosis.remedies = scaling_remedies(prediction);
  std::vector<std::string> causes;
  for (const DoctorStep& step : diagnosis.steps)
    if (step.cause) causes.push_back(step.title);
  diagnosis.summary =
      "scaling: " + (causes.empty() ? std::string("the plan loses little with more ranks") : join(causes, ", then "));
  return diagnosis;
}

}  // namespace fivefold
