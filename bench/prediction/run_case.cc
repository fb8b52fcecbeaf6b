// One configuration on random tokens, as one JSON line: run_case [steps=N] [KEY=VALUE]... (fields of BenchCase).
//
// Wall time: median of the steps with an update. Processor time: of everything after loading. Resident memory: with the
// engine loaded (idle), after a step of a tiny model, which makes the buffers of the libraries (warm), the peak; and
// what the plan says that the ranks need, and what they counted.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "planner/ledger.h"
#include "prediction/bench_case.h"

namespace fivefold::bench {
namespace {

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t predicted_bytes(const BenchCase& bench) {
  const ProbeRequest request = probe_request(bench, 0);
  const Ledger ledger = predict_memory(request.model, build_inventory(request.model), request.config, bench.threads);
  return ledger.peak_total * bench.dp;
}

int64_t counted_bytes(const ProbeResult& result) {
  int64_t bytes = 0;
  for (const RankMemory& memory : result.memory) bytes += memory.peak_total;
  return bytes;
}

int run(std::vector<std::string> settings) {
  int steps = 6;
  std::erase_if(settings, [&](const std::string& setting) {
    if (!setting.starts_with("steps=")) return false;
    steps = std::stoi(setting.substr(6));
    return true;
  });
  const Result<BenchCase> bench = parse_case(settings);
  if (!bench.ok()) {
    fmt::print(stderr, "{}\n", bench.error().message());
    return 2;
  }
  EngineApi& engine = *load_engine().value();
  const int64_t idle = peak_resident_bytes();
  BenchCase tiny{
      .hidden = 64, .layers = 1, .heads = 2, .kv_heads = 2, .ffn = 128, .vocab = 64, .sequence = 64, .micro = 1};
  tiny.dp = bench->dp, tiny.threads = bench->threads, tiny.zero = bench->zero, tiny.bf16 = bench->bf16;
  engine.probe(probe_request(tiny, 1)).value();
  const int64_t warm = peak_resident_bytes();
  const double cpu_before = cpu_seconds();
  const ProbeResult result = engine.probe(probe_request(*bench, steps)).value();
  const double cpu = cpu_seconds() - cpu_before;
  const int64_t peak = peak_resident_bytes();
  // Without the first step and the last, which have no update.
  std::vector<double> seconds(result.step_seconds.begin() + 1, result.step_seconds.begin() + 1 + steps);
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  const double step = seconds[seconds.size() / 2];
  const double tokens = static_cast<double>(bench->micro * bench->accumulation * bench->sequence) * bench->dp;
  fmt::print(
      "{{\"case\": \"{}\", \"step_s\": {:.5f}, \"tokens_per_s\": {:.1f}, \"cpu_s\": {:.3f}, \"steps\": {}, "
      "\"idle_rss\": {}, \"warm_rss\": {}, \"peak_rss\": {}, \"predicted\": {}, \"counted\": {}, \"loss\": {:.4f}}}\n",
      bench->name(), step, tokens / step, cpu, result.step_seconds.size(), idle, warm, peak, predicted_bytes(*bench),
      counted_bytes(result), result.loss);
  return 0;
}

}  // namespace
}  // namespace fivefold::bench

int main(int argc, char** argv) { return fivefold::bench::run({argv + 1, argv + argc}); }
