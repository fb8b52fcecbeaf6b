// One configuration on random tokens, as one JSON line: run_case [steps=N] [KEY=VALUE]... (fields of BenchCase).
//
// Wall time: median of the steps with an update. Processor time: of everything after loading. Resident memory: with the
// engine loaded (idle), the peak; and what the plan says that the ranks need, what the calibrated machine says that
// libraries need, and what was counted.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "base/process_memory.h"
#include "cli/machine.h"
#include "planner/ledger.h"
#include "prediction/bench_case.h"

namespace fivefold::bench {
namespace {

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
  const Ledger ledger = predict_memory(request.model, build_inventory(request.model), request.config);
  return ledger.peak_total * bench.dp;
}

// 0: this machine was not calibrated.
int64_t predicted_library_bytes(const BenchCase& bench) {
  const Result<HardwareSpec> hardware = read_hardware(this_machine_file());
  return hardware.ok() ? library_bytes(hardware->device, bench.bf16 ? DType::kBFloat16 : DType::kFloat32) : 0;
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
      "\"idle_rss\": {}, \"peak_rss\": {}, \"predicted\": {}, \"libraries\": {}, \"counted\": {}, \"loss\": {:.4f}}}\n",
      bench->name(), step, tokens / step, cpu, result.step_seconds.size(), idle, peak, predicted_bytes(*bench),
      predicted_library_bytes(*bench), counted_bytes(result), result.loss);
  return 0;
}

}  // namespace
}  // namespace fivefold::bench

int main(int argc, char** argv) { return fivefold::bench::run({argv + 1, argv + argc}); }
