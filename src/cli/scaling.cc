#include "cli/scaling.h"

#include <algorithm>
#include <thread>

#include "cli/machine.h"
#include "cli/random_batch.h"
#include "schedule/run_program.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// The configuration at another number of ranks, with the same work on each.
Result<ResolvedConfig> at_ranks(const LoadedRun& run, int ranks, int threads) {
  RunConfig config = run.config.config;
  config.parallel.dp = ranks;
  config.parallel.shard_size = 0;
  config.parallel.threads = threads;
  config.batch.global = config.batch.micro * ranks * run.config.num_microbatches;
  for (const Error& error : validate_layout(run.model, config)) return error;
  for (const Error& error : validate_engine(run.model, config)) return error;
  return resolve(config, run.model);
}

}  // namespace

Result<std::vector<ScalingPoint>> measure_scaling(const LoadedRun& run, const std::vector<int>& ranks, int steps) {
  FIVEFOLD_ASSIGN(EngineApi * engine, load_engine());
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int most = *std::max_element(ranks.begin(), ranks.end());
  const int threads =
      run.config.config.parallel.threads > 0 ? run.config.config.parallel.threads : std::max(1, cores / most);
  std::vector<ScalingPoint> points;
  for (const int count : ranks) {
    ProbeRequest request;
    request.model = run.model;
    FIVEFOLD_ASSIGN(request.config, at_ranks(run, count, threads));
    request.batch = random_batch(request.config, run.model.vocab, RandomTargets::kAll);
    request.updates = steps;
    request.want_gradients = false;
    FIVEFOLD_ASSIGN(request.simulate, load_simulated_network(request.config.config));
    FIVEFOLD_ASSIGN(const ProbeResult result, engine->probe(request));
    std::vector<double> seconds(
        result.step_seconds.begin() + std::min<std::ptrdiff_t>(2, std::ssize(result.step_seconds) - 1),
        result.step_seconds.end());
    std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
    ScalingPoint point{.ranks = count, .step_s = seconds[seconds.size() / 2]};
    point.tokens_per_s = static_cast<double>(request.config.tokens_per_step) / point.step_s;
    points.push_back(point);
  }
  for (ScalingPoint& point : points)
    point.efficiency = point.tokens_per_s / point.ranks / (points[0].tokens_per_s / points[0].ranks);
  return points;
}

}  // namespace fivefold
