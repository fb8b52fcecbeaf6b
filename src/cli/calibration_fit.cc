// From seconds to the hardware file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "cli/calibration.h"

namespace fivefold {
namespace {

// A rate that binds nothing, for a part that the fit found to take no time.
constexpr double kUnboundRate = 1e15;

double rate_of(double seconds_per_unit) { return seconds_per_unit > 0 ? 1 / seconds_per_unit : kUnboundRate; }

// Solves the normal equations of the columns that `used` names; false when they are singular.
bool solve(const std::vector<std::array<double, 3>>& rows, const std::array<bool, 3>& used,
           std::array<double, 3>& solution) {
  double a[3][4] = {};
  for (const auto& row : rows)
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) a[i][j] += row[static_cast<size_t>(i)] * row[static_cast<size_t>(j)];
      a[i][3] += row[static_cast<size_t>(i)];
    }
  for (int i = 0; i < 3; ++i) {
    if (used[static_cast<size_t>(i)]) continue;
    for (int j = 0; j < 4; ++j) a[i][j] = 0;
    for (int j = 0; j < 3; ++j) a[j][i] = 0;
    a[i][i] = 1;
  }
  for (int i = 0; i < 3; ++i) {
    // Columns differ by many orders of magnitude: singular is relative to the column's own size.
    double own = 0;
    for (const auto& row : rows) own += row[static_cast<size_t>(i)] * row[static_cast<size_t>(i)];
    if (used[static_cast<size_t>(i)] && std::abs(a[i][i]) <= 1e-9 * own) return false;
    for (int r = 0; r < 3; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (int c = i; c < 4; ++c) a[r][c] -= factor * a[i][c];
    }
  }
  for (int i = 0; i < 3; ++i) solution[static_cast<size_t>(i)] = a[i][3] / a[i][i];
  return true;
}

using OperationKey = std::pair<OperationKind, Pass>;
using StreamSamples = std::map<StreamKind, std::vector<TimedWork>>;
using OperationSamples = std::map<OperationKey, std::vector<TimedWork>>;

void add_operations(const StepTask& task, const StepSeconds& seconds, OperationSamples& samples) {
  const Inventory inventory = build_inventory(task.model);
  const WorkShape shape{.tokens = task.config.config.batch.micro * task.config.config.batch.sequence,
                        .sequence = task.config.config.batch.sequence,
                        .compute = task.config.compute};
  for (const OperationSeconds& timed : seconds.operations) {
    if (timed.rest <= 0) continue;
    const UnitOperations operations = unit_operations(task.model, inventory, timed.unit);
    const OperationWork work = operation_work(task.model, inventory.units[static_cast<size_t>(timed.unit)], operations,
                                              timed.operation, timed.pass, shape);
    const OperationKind kind = operations.operations[static_cast<size_t>(timed.operation)].kind;
    samples[{kind, timed.pass}].push_back({work.bytes, work.flops, timed.rest});
  }
}

void add_streams(const StepTask& task, const StepSeconds& seconds, StreamSamples& samples) {
  const Inventory inventory = build_inventory(task.model);
  const ShardingPolicy policy = sharding_policy(task.config);
  const OptimizerStates states = optimizer_states(task.config.config.optimizer);
  double all_gradients = 0;
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    const auto numel = static_cast<double>(inventory.units[static_cast<size_t>(unit)].padded_numel(1));
    all_gradients += numel * static_cast<double>(dtype_bytes(policy.grads));
    const auto add = [&](StreamKind stream, double bytes, double measured) {
      if (measured > 0) samples[stream].push_back({bytes, 0, measured});
    };
    add(StreamKind::kOptimizer, numel * optimizer_bytes_per_element(policy, states),
        seconds.optimizer[static_cast<size_t>(unit)]);
    add(StreamKind::kAccumulate, numel * accumulate_bytes_per_element(policy),
        seconds.accumulate[static_cast<size_t>(unit)]);
  }
  samples[StreamKind::kSumOfSquares].push_back({all_gradients, 0, seconds.sum_of_squares});
}

class Fit {
 public:
  explicit Fit(const MachineFacts& machine) : machine_(machine) {
    source_ = fmt::format("fivefold calibrate, {}", machine.when);
    hardware_.name = "this-machine";
    hardware_.device.name = machine.processor;
    hardware_.device.cores = machine.cores;
    hardware_.device.memory_bytes = {static_cast<double>(machine.memory_bytes), Provenance::kMeasured,
                                     "physical memory that the operating system reports"};
    hardware_.device.library_bytes_fp32 = measured(static_cast<double>(machine.library_bytes_fp32));
    hardware_.device.library_bytes_bf16 = measured(static_cast<double>(machine.library_bytes_bf16));
    for (auto* source : {&hardware_.device.gemm.source, &hardware_.device.operations.source,
                         &hardware_.device.streams.source, &hardware_.node_link.collectives.source})
      *source = source_;
    hardware_.node_link.name = "shared memory";
  }

  void add(const MeasureRequest& request, const Measurements& measured) {
    add_gemms(request, measured);
    add_steps(request, measured);
    add_collectives(request, measured);
    raise(hardware_.device.memory_bytes_per_s, measured.copy_bytes_per_s);
    if (request.ranks * request.threads == machine_.cores && measured.overlap_share > 0)
      hardware_.device.overlap_share = this->measured(measured.overlap_share);
  }

  HardwareSpec finish() { return std::move(hardware_); }

 private:
  Figure measured(double value) const { return {value, Provenance::kMeasured, source_}; }
  void raise(Figure& figure, double value) const {
    if (value > figure.value) figure = measured(value);
  }

  // The first product of a type is so small that its time is the fixed part of any. Products that fill all cores give
  // the machine's peak.
  void add_gemms(const MeasureRequest& request, const Measurements& measured) {
    std::map<DType, double> fixed;
    for (size_t i = 0; i < request.gemms.size(); ++i) {
      const GemmTask& task = request.gemms[i];
      const auto [entry, first] = fixed.try_emplace(task.dtype, measured.gemms[i]);
      if (first) {
        if (request.ranks * request.threads == 1) raise(hardware_.device.launch_latency_s, measured.gemms[i]);
        continue;
      }
      const Gemm gemm{.m = task.m, .n = task.n, .k = task.k};
      const double launch = std::min(hardware_.device.launch_latency_s.value, measured.gemms[i] / 2);
      const double rate = gemm.flops() / (measured.gemms[i] - launch);
      hardware_.device.gemm.points.push_back(
          {task.m, task.n, task.k, task.dtype, request.threads, rate, request.ranks});
      MatrixRates& peak = hardware_.device.peak_flops_per_s;
      raise(task.dtype == DType::kFloat32 ? peak.fp32 : peak.bf16, rate * request.ranks);
      hardware_.device.reached_flops_per_s = peak;
    }
  }

  void add_steps(const MeasureRequest& request, const Measurements& measured) {
    std::map<DType, OperationSamples> operations;
    std::map<DType, StreamSamples> streams;
    for (size_t i = 0; i < request.steps.size(); ++i) {
      const DType dtype = request.steps[i].config.compute;
      add_operations(request.steps[i], measured.steps[i], operations[dtype]);
      add_streams(request.steps[i], measured.steps[i], streams[dtype]);
      const Figure between = this->measured(measured.steps[i].between_instructions);
      if (request.ranks * request.threads == 1 && between.known()) hardware_.device.step_overhead_s = between;
    }
    for (const auto& [dtype, samples] : operations)
      for (const auto& [key, timed] : samples) {
        const WorkRates rates = fit_work(timed);
        hardware_.device.operations.points.push_back(
            {key.first, key.second, dtype, request.threads, rates.overhead_s, rate_of(rates.per_byte_s),
             rates.per_flop_s > 0 ? 1 / rates.per_flop_s : 0.0, request.ranks});
      }
    for (const auto& [dtype, samples] : streams)
      for (const auto& [stream, timed] : samples) {
        // Units are large: what is fixed does not count.
        std::vector<double> rates;
        for (const TimedWork& work : timed) rates.push_back(work.bytes / work.seconds);
        const auto median = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
        std::nth_element(rates.begin(), median, rates.end());
        hardware_.device.streams.points.push_back({stream, dtype, request.threads, *median, request.ranks});
      }
  }

  void add_collectives(const MeasureRequest& request, const Measurements& measured) {
    LinkSpec& link = hardware_.node_link;
    for (size_t i = 0; i < request.collectives.size(); ++i) {
      const CollectiveTask& task = request.collectives[i];
      link.collectives.points.push_back({task.kind, request.ranks, task.bytes, measured.collectives[i]});
      // A gather sends (n - 1) / n of the tensor.
      if (task.kind != CollectiveKind::kAllGather) continue;
      const double sent = static_cast<double>(task.bytes) * (request.ranks - 1) / request.ranks;
      raise(link.bytes_per_s, sent / measured.collectives[i]);
      if (!link.latency_s.known()) link.latency_s = this->measured(measured.collectives[i]);
    }
  }

  const MachineFacts& machine_;
  std::string source_;
  HardwareSpec hardware_;
};

}  // namespace

WorkRates fit_work(const std::vector<TimedWork>& samples) {
  std::vector<std::array<double, 3>> rows;  // relative to the measured seconds: every sample weighs the same
  for (const TimedWork& sample : samples)
    rows.push_back({1 / sample.seconds, sample.bytes / sample.seconds, sample.flops / sample.seconds});
  // Few unknowns: every choice of those that are not zero.
  std::array<double, 3> best{};
  double least = std::numeric_limits<double>::infinity();
  for (int choice = 1; choice < 8; ++choice) {
    const std::array<bool, 3> used{(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0};
    std::array<double, 3> solution{};
    if (!solve(rows, used, solution)) continue;
    if (std::any_of(solution.begin(), solution.end(), [](double value) { return value < 0; })) continue;
    double squares = 0;
    for (const auto& row : rows) {
      const double error = row[0] * solution[0] + row[1] * solution[1] + row[2] * solution[2] - 1;
      squares += error * error;
    }
    if (squares < least) least = squares, best = solution;
  }
  return {best[0], best[1], best[2]};
}

HardwareSpec fit_hardware(const Calibration& calibration, const MachineFacts& machine) {
  Fit fit(machine);
  for (size_t i = 0; i < calibration.requests.size(); ++i)
    fit.add(calibration.requests[i], calibration.measurements[i]);
  return fit.finish();
}

}  // namespace fivefold
