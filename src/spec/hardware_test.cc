#include "spec/hardware.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace fivefold {
namespace {

HardwareSpec named(const std::string& name) {
  const auto path = find_named_hardware(name);
  EXPECT_TRUE(path.ok()) << (path.ok() ? "" : path.error().message());
  const auto hardware = read_hardware(*path);
  EXPECT_TRUE(hardware.ok()) << (hardware.ok() ? "" : hardware.error().message());
  return *hardware;
}

constexpr const char* kSourced = R"(kind = "measured", source = "here" })";

// A good file with the smallest content; lines may be replaced or added by the error cases.
std::string device_file(const std::string& memory = R"({ value = 1e9, kind = "measured", source = "here" })",
                        const std::string& more = "") {
  return "[device]\nname = \"test\"\nmemory_bytes = " + memory + "\nmemory_bytes_per_s = { value = 2e10, " + kSourced +
         "\n" + more + "\n[device.peak_flops_per_s]\nfp32 = { value = 1e11, " + kSourced + "\n";
}

TEST(Hardware, H100AsItsDataSheetSays) {
  const HardwareSpec h100 = named("h100-sxm-80gb");
  EXPECT_EQ(h100.name, "h100-sxm-80gb");
  EXPECT_EQ(matrix_rate(h100.device.peak_flops_per_s, DType::kBFloat16), 989.4e12);
  EXPECT_EQ(matrix_rate(h100.device.peak_flops_per_s, DType::kFloat8E5M2), 1978.9e12);
  EXPECT_EQ(matrix_rate(h100.device.peak_flops_per_s, DType::kInt64), 0.0);
  EXPECT_EQ(h100.device.memory_bytes_per_s.value, 3.35e12);
  EXPECT_EQ(h100.devices_per_node, 8);
  EXPECT_EQ(h100.node_link.bytes_per_s.value, 450e9);  // of 900 GB/s in both directions
  EXPECT_FALSE(h100.network.bytes_per_s.known());
  EXPECT_EQ(h100.device.memory_bytes.kind, Provenance::kMeasured);
}

TEST(Hardware, ClusterTakesItsDeviceFromTheGpuFile) {
  const HardwareSpec cluster = named("dgx-h100"), gpu = named("h100-sxm-80gb");
  EXPECT_EQ(cluster.gpu, "h100-sxm-80gb");
  EXPECT_EQ(cluster.name, "dgx-h100");
  EXPECT_EQ(cluster.device, gpu.device);
  EXPECT_EQ(cluster.node_link, gpu.node_link);
  EXPECT_EQ(cluster.network.bytes_per_s.value, 50e9);  // 400 Gbit/s
  EXPECT_EQ(named("ethernet-100g-4xl40s").devices_per_node, 4);
}

TEST(Hardware, EveryNamedFileReadsAndIsPlausible) {
  ASSERT_GE(list_named_gpus().size(), 20u);
  ASSERT_GE(list_named_clusters().size(), 8u);
  for (const auto& names : {list_named_gpus(), list_named_clusters()}) {
    for (const std::string& name : names) {
      const HardwareSpec h = named(name);
      EXPECT_EQ(h.name, name);
      EXPECT_GT(h.device.memory_bytes.value, 14 * std::pow(2.0, 30)) << name;
      // Rates grow as precision falls, and what was reached lies below the peak.
      const MatrixRates &peak = h.device.peak_flops_per_s, &reached = h.device.reached_flops_per_s;
      EXPECT_GT(peak.fp16.value, peak.fp32.value) << name;
      EXPECT_TRUE(!peak.fp8.known() || peak.fp8.value > peak.fp16.value) << name;
      EXPECT_LE(reached.bf16.value, peak.bf16.value) << name;
      EXPECT_LE(reached.fp8.value, peak.fp8.value) << name;
      EXPECT_EQ(parse_hardware(write_hardware(h), "x.toml")->device, h.device) << name;
    }
  }
}

// The published table of the 8-GPU all-reduce on H200: 1 GiB at 463.58 GB/s of bus bandwidth, so
// 2 x 7/8 x 2^30 / 463.58e9 = 4.053 ms.
TEST(Hardware, CollectiveCurveHoldsMeasuredTimes) {
  const HardwareSpec h200 = named("h200-sxm-141gb");
  for (const CollectivePoint& point : h200.node_link.collectives.points)
    if (point.bytes == 1 << 30) {
      EXPECT_EQ(point.ranks, 8);
      EXPECT_EQ(point.kind, CollectiveKind::kAllReduce);
      EXPECT_NEAR(point.seconds, 4.053e-3, 1e-6);
      return;
    }
  FAIL() << "no point of 1 GiB";
}

// Rates are written without exponent below 1e16, so that above 2^53 they look like integers.
TEST(Hardware, RateAbove2To53SurvivesWritingAndReading) {
  HardwareSpec fast = named("h200-sxm-141gb");
  fast.device.peak_flops_per_s.fp8.value = 9.894e15;
  const auto again = parse_hardware(write_hardware(fast), "fast.toml");
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->device, fast.device);
}

// What calibrate makes of a CPU: no maker's figures, all curves, text that needs escaping.
TEST(Hardware, MeasuredMachineSurvivesWritingAndReading) {
  const auto measured = [](double value) {
    return Figure{value, Provenance::kMeasured, "calibrate, \"quick\" run\n2 cores \\ 1 socket"};
  };
  HardwareSpec h;
  h.name = "this-machine";
  h.device.name = "Xeon é 2 cores\x7f";
  h.device.cores = 2;
  h.device.memory_bytes = measured(24e9);
  h.device.memory_bytes_per_s = measured(2.1987654321e10);
  h.device.peak_flops_per_s.fp32 = measured(1.0 / 3.0 * 1e12);
  h.device.peak_flops_per_s.bf16 = measured(4.3e11);
  h.device.launch_latency_s = measured(1.7e-6);
  h.device.step_overhead_s = measured(2e-4);
  h.device.optimizer_bytes_per_s = measured(1.1e10);
  h.device.library_bytes_fp32 = measured(1.2e7);
  h.device.library_bytes_bf16 = measured(2.4e7);
  h.device.gemm = {Provenance::kMeasured,
                   "calibrate",
                   {{512, 1408, 512, DType::kBFloat16, 2, 3.9e11}, {64, 64, 64, DType::kFloat32, 1, 1e10, 2}}};
  h.device.operations = {Provenance::kMeasured,
                         "calibrate",
                         {{OperationKind::kNorm, Pass::kBackward, DType::kBFloat16, 2, 1e-6, 9e9},
                          {OperationKind::kAttention, Pass::kForward, DType::kFloat32, 1, 2e-6, 8e9, 3e10, 2}}};
  h.device.streams = {Provenance::kMeasured, "calibrate", {{StreamKind::kAccumulate, DType::kBFloat16, 1, 7e9, 2}}};
  h.device.overlap_share = measured(0.8);
  h.device.gemm_share = measured(0.7);
  h.device.gemm_half_depth = measured(300);
  h.device.attention_share = measured(0.2);
  h.device.stream_share = measured(0.9);
  h.device.link_share = measured(0.5);
  h.devices_per_node = 2;
  h.network_ports = 1;
  h.host_memory_bytes = measured(24e9);
  h.node_link = {"shared memory",
                 measured(8e9),
                 measured(3e-6),
                 measured(4e-5),
                 {Provenance::kMeasured, "calibrate", {{CollectiveKind::kReduceScatter, 2, 1 << 20, 1.5e-4}}},
                 {}};
  h.network.name = "switch";
  h.network.bytes_per_s = measured(1e9);
  h.network.latency_s = measured(3e-5);
  h.network.reached_share = measured(0.4);
  const auto again = parse_hardware(write_hardware(h), "this-machine.toml");
  ASSERT_TRUE(again.ok()) << again.error().message() << write_hardware(h);
  EXPECT_EQ(*again, h) << write_hardware(h);
}

struct BadFile {
  std::string text;
  std::string message;
};

// Parts of a dotted key nest tables, which are destroyed by recursion.
std::string dotted_key(int parts) {
  std::string key = "a";
  for (int i = 1; i < parts; ++i) key += ".a";
  return key + " = 1\n";
}

TEST(Hardware, EveryBadFileNamesItsKeyAndCause) {
  const std::string good = R"({ value = 1e9, kind = "measured", source = "here" })";
  const BadFile bad[] = {
      {"", "h.toml: device: missing ([device], or gpu = a name in configs/gpus)"},
      {"gpu = \"h100-sxm-80g\"", "h.toml: gpu: unknown name \"h100-sxm-80g\" (did you mean h100-sxm-80gb?)"},
      {"gpu = 7", "h.toml: gpu: expected a string"},
      {"gpu = \"l4\"\n" + device_file(), "h.toml: gpu: given beside [device] (keep one of them)"},
      {"device = 3", "h.toml: device: expected a table"},
      {"[device]\n", "h.toml: device.name: missing"},
      {"[device]\nname = \"x\"\n", "h.toml: device.memory_bytes: missing"},
      {device_file("-1"), "h.toml: device.memory_bytes: expected { value = ..., kind = \"...\", source = \"...\" }"},
      {device_file(R"({ value = -1e9, kind = "measured", source = "here" })"),
       "h.toml: device.memory_bytes.value: -1000000000 is not a positive number"},
      {device_file(R"({ value = 1.1e18, kind = "measured", source = "here" })"),
       "h.toml: device.memory_bytes.value: 1.1e+18 is out of range (at most 1e+18)"},
      {device_file(R"({ value = inf, kind = "measured", source = "here" })"),
       "h.toml: device.memory_bytes.value: inf is out of range (at most 1e+18)"},
      {device_file(R"({ value = nan, kind = "measured", source = "here" })"),
       "h.toml: device.memory_bytes.value: nan is not a positive number"},
      {device_file(R"({ value = "80GB", kind = "measured", source = "here" })"),
       "h.toml: device.memory_bytes.value: expected a number"},
      {device_file(R"({ value = 1e9, kind = "measured" })"),
       "h.toml: device.memory_bytes.source: missing (say where the number comes from)"},
      {device_file(R"({ value = 1e9, source = "here" })"),
       "h.toml: device.memory_bytes.kind: missing (known: derived, measured, published, assumed)"},
      {device_file(R"({ value = 1e9, kind = "mesured", source = "here" })"),
       "h.toml: device.memory_bytes.kind: unknown value \"mesured\" (did you mean measured?)"},
      {device_file(R"({ value = 1e9, kind = "measured", sourse = "x", source = "here" })"),
       "h.toml: device.memory_bytes.sourse: unknown key (did you mean source?)"},
      {device_file(good, "powr_w = " + good), "h.toml: device.powr_w: unknown key (did you mean power_w?)"},
      {device_file(good, "cores = -2"), "h.toml: device.cores: -2 is not positive"},
      {device_file(good, "cores = 1048577"), "h.toml: device.cores: 1048577 is out of range (at most 1048576)"},
      {device_file(good, "cores = 2.5"), "h.toml: device.cores: expected a whole number"},
      {device_file() + "bf1 = " + good, "h.toml: device.peak_flops_per_s.bf1: unknown key (did you mean bf16?)"},
      {device_file() + "[nodes]\ndevices = 8\n", "h.toml: nodes: unknown key (did you mean node?)"},
      {device_file() + "[node]\ndevices = 8\n",
       "h.toml: node.link: missing (devices of a node are connected by something)"},
      {device_file() + "[node]\ndevices = 4294967296\n",
       "h.toml: node.devices: 4294967296 is out of range (at most 1048576)"},
      {dotted_key(200000), "h.toml:1: is nested deeper than 32 levels"},
      {device_file() + "[node]\ndevices = 0\n", "h.toml: node.devices: 0 is not positive"},
      {device_file() + "[network]\nlatency_s = " + good + "\n", "h.toml: network.bytes_per_s: missing"},
      {device_file() + "[node]\ndevices = 8\nlink = { bytes_per_s = " + good + ", latency_s = " + good +
           " }\n[network]\nports = 3\n",
       "h.toml: network.ports: 3 ports cannot be shared evenly by the devices of a node (8) (use 2)"},
      {device_file() + "[network]\nports = 2\n",
       "h.toml: network.ports: 2 ports cannot be shared evenly by the devices of a node (1) (use 1)"},
      {device_file() + "[device.gemm]\nkind = \"measured\"\nsource = \"x\"\n",
       "h.toml: device.gemm.points: missing (a list of points, or no curve at all)"},
      {device_file() + "[device.gemm]\nkind = \"measured\"\nsource = \"x\"\npoints = [{ m = 1, n = 2, dtype = "
                       "\"bf16\", flops_per_s = 1 }]",
       "h.toml: device.gemm.points[0].k: missing"},
      {device_file() + "[device.gemm]\nkind = \"measured\"\nsource = \"x\"\npoints = [{ m = 1, n = 2, k = 3, dtype = "
                       "\"b16\", flops_per_s = 1 }]",
       "h.toml: device.gemm.points[0].dtype: unknown value \"b16\" (did you mean bf16?)"},
      {device_file() + "[device.gemm]\nkind = \"measured\"\nsource = \"x\"\npoints = [1]",
       "h.toml: device.gemm.points: expected a list of tables"},
      {device_file() + "[device.operations]\nkind = \"measured\"\nsource = \"x\"\npoints = [{ operation = \"norms\" }]",
       "h.toml: device.operations.points[0].operation: unknown value \"norms\" (did you mean norm?)"},
  };
  for (const BadFile& file : bad) {
    const auto hardware = parse_hardware(file.text, "h.toml");
    ASSERT_FALSE(hardware.ok()) << file.text;
    EXPECT_EQ(hardware.error().message(), file.message) << file.text;
  }
  EXPECT_TRUE(parse_hardware(device_file(), "h.toml").ok());
}

TEST(Hardware, BrokenTomlNamesLineAndColumn) {
  const auto hardware = parse_hardware("[device]\nname = \"x", "h.toml");
  ASSERT_FALSE(hardware.ok());
  EXPECT_EQ(hardware.error().where.substr(0, 9), "h.toml:2:");
  EXPECT_EQ(read_hardware("/nowhere/h.toml").error().message(), "/nowhere/h.toml: no such file");
  EXPECT_EQ(find_named_hardware("h100-sxm").error().hint, "did you mean h100-sxm-80gb?");
}

TEST(Hardware, GpuFilesMayNotNameEachOther) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "circular";
  std::filesystem::create_directories(folder / "gpus");
  std::ofstream(folder / "gpus" / "a.toml") << "gpu = \"a\"\n";
  setenv("FIVEFOLD_CONFIGS", folder.c_str(), 1);
  const auto hardware = parse_hardware("gpu = \"a\"", "h.toml");
  unsetenv("FIVEFOLD_CONFIGS");
  ASSERT_FALSE(hardware.ok());
  EXPECT_NE(hardware.error().problem.find("names another"), std::string::npos) << hardware.error().message();
}

}  // namespace
}  // namespace fivefold
