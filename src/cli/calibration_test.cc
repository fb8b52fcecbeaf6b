#include "cli/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "spec/hardware_reader.h"

namespace fivefold {
namespace {

TEST(FitWork, FindsFixedAndProportionalParts) {
  // 3 us + bytes / 10 GB/s + flops / 50 GFLOP/s: 1 MB takes 103 us, 1 Mflop 20 us more.
  const WorkRates rates = fit_work({{1e6, 0, 103e-6}, {2e6, 1e6, 223e-6}, {4e6, 1e6, 423e-6}, {1e5, 5e6, 113e-6}});
  EXPECT_NEAR(rates.overhead_s, 3e-6, 1e-10);
  EXPECT_NEAR(rates.per_byte_s, 1e-10, 1e-15);
  EXPECT_NEAR(rates.per_flop_s, 2e-11, 1e-16);
}

TEST(FitWork, LeavesOutAPartThatWouldBeNegative) {
  // Twice the bytes take more than twice as long: a line through both has an overhead of -10 us.
  const WorkRates rates = fit_work({{1e6, 0, 90e-6}, {2e6, 0, 190e-6}});
  EXPECT_EQ(rates.overhead_s, 0);
  // Least squares of r x - 1 with r = bytes / seconds = 1/90 and 2/190 per us: x = (r1 + r2) / (r1^2 + r2^2) = 92.46
  // us.
  EXPECT_NEAR(rates.per_byte_s * 1e6, 92.36e-6, 0.01e-6);
}

TEST(FitWork, TakesOneSampleAsItIs) {
  const WorkRates rates = fit_work({{0, 0, 5e-6}});
  EXPECT_NEAR(rates.overhead_s, 5e-6, 1e-12);
}

TEST(CalibrationRequests, MeasureOneThreadAllCoresAndARankOnEachCore) {
  const std::vector<MeasureRequest> one = calibration_requests(1), four = calibration_requests(4);
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(four.size(), 4u);
  EXPECT_EQ(std::pair(four[0].ranks, four[0].threads), std::pair(1, 1));
  EXPECT_EQ(std::pair(four[1].ranks, four[1].threads), std::pair(1, 4));
  EXPECT_EQ(std::pair(four[2].ranks, four[2].threads), std::pair(4, 1));
  EXPECT_EQ(std::pair(four[3].ranks, four[3].threads), std::pair(2, 1));
  EXPECT_TRUE(one[0].collectives.empty());
  EXPECT_FALSE(four[2].collectives.empty());
  for (const MeasureRequest& request : four)
    for (const StepTask& task : request.steps) EXPECT_EQ(task.config.config.parallel.threads, request.threads);
}

// A fit of a fixed and a proportional part needs two sizes.
TEST(CalibrationRequests, RunEveryOperationOfTheEngineAtTwoSizes) {
  std::map<std::string_view, std::set<int64_t>> sizes;
  const std::vector<MeasureRequest> requests = calibration_requests(1);
  for (const StepTask& task : requests[0].steps) {
    const Inventory inventory = build_inventory(task.model);
    for (int unit = 0; unit < inventory.num_units(); ++unit)
      for (const Operation& op : unit_operations(task.model, inventory, unit).operations)
        sizes[to_string(op.kind)].insert(task.model.hidden * task.config.config.batch.micro);
  }
  for (const auto& [name, kind] : operation_names()) {
    if (kind == OperationKind::kAddNorm || kind == OperationKind::kBlock) continue;  // the planner's only
    EXPECT_GE(sizes[name].size(), 2u) << name;
  }
}

// Measurements of a machine that follows a law exactly.
class LawfulMachine {
 public:
  static constexpr double kLaunch = 2e-6, kGemmRate = 50e9, kCopy = 12e9;

  static Measurements measure(const MeasureRequest& request) {
    Measurements measured;
    measured.copy_bytes_per_s = kCopy;
    measured.overlap_share = 0.5;
    for (const GemmTask& task : request.gemms)
      measured.gemms.push_back(kLaunch + 2.0 * static_cast<double>(task.m * task.n * task.k) / kGemmRate);
    for (const StepTask& task : request.steps) measured.steps.push_back(step(task));
    for (const CollectiveTask& task : request.collectives)
      measured.collectives.push_back(30e-6 + static_cast<double>(task.bytes) / 8e9);
    return measured;
  }

 private:
  static StepSeconds step(const StepTask& task) {
    const Inventory inventory = build_inventory(task.model);
    StepSeconds seconds;
    for (const Unit& unit : inventory.units) {
      // AdamW in fp32 reads and writes weights and both moments and reads the gradient: 28 bytes an element; with bf16
      // gradients, a master copy and bf16 weights: 28 as well.
      const auto numel = static_cast<double>(unit.padded_numel(1));
      const bool summed = task.config.num_microbatches > 1 && task.config.compute == DType::kBFloat16;
      seconds.optimizer.push_back(numel * (summed ? 30 : 28) / 10e9);
      seconds.accumulate.push_back(summed ? numel * 10 / 5e9 : 0.0);  // bf16 read, fp32 read and written
      const bool bf16_gradients = task.config.compute == DType::kBFloat16 && !summed;
      seconds.sum_of_squares += numel * (bf16_gradients ? 2 : 4) / 6e9;
    }
    // The embedding's forward, unit 0, reads and writes a row for each token: 1 us + bytes / 4 GB/s.
    const double element = task.config.compute == DType::kFloat32 ? 4 : 2;
    const auto tokens = static_cast<double>(task.config.config.batch.micro * task.config.config.batch.sequence);
    const double bytes = 2 * tokens * static_cast<double>(task.model.hidden) * element;
    seconds.operations.push_back({0, 0, Pass::kForward, 0, 1e-6 + bytes / 4e9});
    seconds.between_instructions = 7e-6;
    return seconds;
  }
};

TEST(FitHardware, FindsTheLawOfAMachine) {
  Calibration calibration{calibration_requests(2), {}};
  for (const MeasureRequest& request : calibration.requests)
    calibration.measurements.push_back(LawfulMachine::measure(request));
  const HardwareSpec hardware = fit_hardware(calibration, {.processor = "abacus",
                                                           .cores = 2,
                                                           .memory_bytes = 1 << 30,
                                                           .when = "2024-02-29",
                                                           .library_bytes_fp32 = 12,
                                                           .library_bytes_bf16 = 20});
  const DeviceSpec& device = hardware.device;
  EXPECT_EQ(device.name, "abacus");
  EXPECT_EQ(device.cores, 2);
  EXPECT_EQ(device.memory_bytes_per_s.value, LawfulMachine::kCopy);
  EXPECT_EQ(device.overlap_share.value, 0.5);
  EXPECT_EQ(device.step_overhead_s.value, 7e-6);
  EXPECT_EQ(library_bytes(device, DType::kFloat32), 12);
  EXPECT_EQ(library_bytes(device, DType::kBFloat16), 20);
  // The smallest product, 16^3, takes 0.16 us of its own beside the launch.
  EXPECT_NEAR(device.launch_latency_s.value, LawfulMachine::kLaunch, 0.2e-6);
  for (const GemmPoint& point : device.gemm.points) EXPECT_NEAR(point.flops_per_s / LawfulMachine::kGemmRate, 1, 0.01);
  // A rank on each of two cores.
  EXPECT_NEAR(device.peak_flops_per_s.fp32.value / LawfulMachine::kGemmRate, 2, 0.02);
  int embeddings = 0;
  for (const OperationPoint& point : device.operations.points) {
    if (point.operation != OperationKind::kEmbedding) continue;
    ++embeddings;
    EXPECT_NEAR(point.overhead_s, 1e-6, 1e-9);
    EXPECT_NEAR(point.bytes_per_s / 4e9, 1, 1e-6);
  }
  EXPECT_EQ(embeddings, 2 * 3);  // types x placements
  for (const StreamPoint& point : device.streams.points) {
    const double rate = point.stream == StreamKind::kOptimizer    ? 10e9
                        : point.stream == StreamKind::kAccumulate ? 5e9
                                                                  : 6e9;
    EXPECT_NEAR(point.bytes_per_s / rate, 1, 1e-6);
  }
  EXPECT_TRUE(std::any_of(device.streams.points.begin(), device.streams.points.end(),
                          [](const StreamPoint& p) { return p.stream == StreamKind::kAccumulate; }));
  const Result<HardwareSpec> again = parse_hardware(write_hardware(hardware), "calibrated");
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(*again, hardware);
}

}  // namespace
}  // namespace fivefold
