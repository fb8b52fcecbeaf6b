// Where a training step of one configuration goes: step_profile [steps=N] [KEY=VALUE]... (fields of BenchCase).
//
// Each operation's matrix products and what else it does, forward and backward, summed over the units and microbatches,
// beside the share of the machine's peak that each reaches and the share of the step in which only matrix products run.
// The peak is that of large products for what multiplies, attention included (counted without what the mask hides), and
// that of copying memory out of cache for the rest; what finds its operands in a cache goes beyond it. Ranks train each
// for itself at the same time: collectives are not part of it. Fastest tenth of the steps.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "planner/work.h"
#include "prediction/bench_case.h"

namespace fivefold::bench {
namespace {

struct Share {
  double matrix_s = 0, rest_s = 0, matrix_flops = 0, rest_flops = 0, rest_bytes = 0;
};

// Products as large as those of the model: what the machine gives at best.
constexpr int64_t kLargeExtent = 2048;

void print_rate(double rate, double peak, const char* unit) {
  fmt::print("  {:5.1f} G{} {:3.0f}%", rate / 1e9, unit, 100 * rate / peak);
}

int run(std::vector<std::string> settings) {
  int steps = 8;
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
  BenchCase alone = *bench;
  alone.dp = 1;
  const ProbeRequest probe = probe_request(alone, 0);
  const DType dtype = bench->bf16 ? DType::kBFloat16 : DType::kFloat32;
  MeasureRequest request{.ranks = bench->dp, .threads = bench->threads};
  request.gemms.push_back({GemmUse::kForward, kLargeExtent, kLargeExtent, kLargeExtent, dtype});
  request.steps.push_back({probe.model, probe.config, steps});
  const Measurements measured = load_engine().value()->measure(request);
  const StepSeconds& seconds = measured.steps[0];

  const Inventory inventory = build_inventory(probe.model);
  const WorkShape shape{.tokens = bench->micro * bench->sequence, .sequence = bench->sequence, .compute = dtype};
  const auto microbatches = static_cast<double>(bench->accumulation);
  std::map<std::pair<OperationKind, Pass>, Share> shares;
  double total = 0, matrix = 0;
  for (const OperationSeconds& timed : seconds.operations) {
    const UnitOperations operations = unit_operations(probe.model, inventory, timed.unit);
    const OperationWork work = operation_work(probe.model, inventory.units[static_cast<size_t>(timed.unit)], operations,
                                              timed.operation, timed.pass, shape);
    Share& share = shares[{operations.operations[static_cast<size_t>(timed.operation)].kind, timed.pass}];
    share.matrix_s += timed.matrix * microbatches;
    share.rest_s += timed.rest * microbatches;
    for (const Gemm& gemm : work.gemms) share.matrix_flops += gemm.flops() * microbatches;
    share.rest_flops += work.flops * microbatches;
    share.rest_bytes += work.bytes * microbatches;
    matrix += timed.matrix * microbatches;
    total += (timed.matrix + timed.rest) * microbatches;
  }
  double optimizer = seconds.sum_of_squares;
  for (const double unit : seconds.optimizer) optimizer += unit;
  for (const double unit : seconds.accumulate) optimizer += unit * (microbatches - 1);
  total += optimizer + seconds.between_instructions;

  const double peak = 2.0 * kLargeExtent * kLargeExtent * kLargeExtent / measured.gemms[0];
  const double copy = measured.copy_bytes_per_s / bench->dp;
  fmt::print("{}: {:.1f} ms, large products {:.0f} GFLOP/s and copies {:.1f} GB/s a rank\n", bench->name(), total * 1e3,
             peak / 1e9, copy / 1e9);
  fmt::print("{:18} {:9} {:>9} {:>9} {:>7}  {}\n", "operation", "pass", "products", "rest", "share",
             "rate of the products; of the rest");
  for (const auto& [key, share] : shares) {
    fmt::print("{:18} {:9} {:9.2f} {:9.2f} {:6.1f}%", to_string(key.first),
               key.second == Pass::kForward ? "forward" : "backward", share.matrix_s * 1e3, share.rest_s * 1e3,
               100 * (share.matrix_s + share.rest_s) / total);
    if (share.matrix_s > 0) print_rate(share.matrix_flops / share.matrix_s, peak, "FLOP/s");
    if (share.rest_s > 0 && share.rest_flops > 0) {
      print_rate(share.rest_flops / share.rest_s, peak, "FLOP/s");
    } else if (share.rest_s > 0 && share.rest_bytes > 0) {
      print_rate(share.rest_bytes / share.rest_s, copy, "B/s");
    }
    fmt::print("\n");
  }
  fmt::print("{:28} {:9} {:9.2f} {:6.1f}%\n", "optimizer, norm, sums", "", optimizer * 1e3, 100 * optimizer / total);
  fmt::print("{:28} {:9} {:9.2f} {:6.1f}%\n", "between instructions", "", seconds.between_instructions * 1e3,
             100 * seconds.between_instructions / total);
  fmt::print("GEMM-bound share of the step: {:.1f} %\n", 100 * matrix / total);
  return 0;
}

}  // namespace
}  // namespace fivefold::bench

int main(int argc, char** argv) { return fivefold::bench::run({argv + 1, argv + argc}); }
