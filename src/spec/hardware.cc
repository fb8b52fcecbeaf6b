#include "spec/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/nesting.h"
#include "spec/hardware_reader.h"
#include "spec/model_named.h"

namespace fivefold {
namespace {

// Of a node, and of threads and ranks on it: counted in `int` where they become degrees.
constexpr int64_t kMaxDevices = 1 << 20;

std::vector<std::pair<std::string_view, DType>> dtype_names() {
  std::vector<std::pair<std::string_view, DType>> names;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2})
    names.emplace_back(to_string(dtype), dtype);
  return names;
}

std::vector<std::pair<std::string_view, CollectiveKind>> collective_names() {
  std::vector<std::pair<std::string_view, CollectiveKind>> names;
  for (int i = 0; i < kNumCollectiveKinds; ++i)
    names.emplace_back(to_string(static_cast<CollectiveKind>(i)), static_cast<CollectiveKind>(i));
  return names;
}

MatrixRates read_rates(HardwareReader reader) {
  MatrixRates rates;
  rates.fp32 = reader.figure("fp32");
  rates.tf32 = reader.figure("tf32");
  rates.fp16 = reader.figure("fp16");
  rates.bf16 = reader.figure("bf16");
  rates.fp8 = reader.figure("fp8");
  reader.finish();
  return rates;
}

// [KEY] kind, source and points, each read by `read_point`.
template <typename Point, typename ReadPoint>
Curve<Point> read_curve(HardwareReader& parent, const std::string& key, ReadPoint read_point) {
  Curve<Point> curve;
  if (!parent.has(key)) return curve;
  HardwareReader reader = parent.table(key);
  curve.kind = reader.name("kind", provenance_names());
  curve.source = reader.text("source", "");
  if (curve.source.empty()) reader.fail("source", "missing", "say where the points come from");
  for (HardwareReader& point : reader.tables("points")) {
    curve.points.push_back(read_point(point));
    point.finish();
  }
  if (curve.points.empty()) reader.fail("points", "missing", "a list of points, or no curve at all");
  reader.finish();
  return curve;
}

GemmPoint read_gemm_point(HardwareReader& reader) {
  return {.m = reader.required_count("m"),
          .n = reader.required_count("n"),
          .k = reader.required_count("k"),
          .dtype = reader.name("dtype", dtype_names()),
          .threads = reader.count("threads", 1, kMaxDevices),
          .flops_per_s = reader.required_number("flops_per_s"),
          .ranks = reader.count("ranks", 1, kMaxDevices)};
}

CollectivePoint read_collective_point(HardwareReader& reader) {
  return {.kind = reader.name("kind", collective_names()),
          .ranks = reader.required_count("ranks"),
          .bytes = reader.required_count("bytes"),
          .seconds = reader.required_number("seconds")};
}

OperationPoint read_operation_point(HardwareReader& reader) {
  return {.operation = reader.name("operation", operation_names()),
          .pass = reader.name("pass", pass_names()),
          .dtype = reader.name("dtype", dtype_names()),
          .threads = reader.count("threads", 1, kMaxDevices),
          .overhead_s = reader.number("overhead_s", 0.0),
          .bytes_per_s = reader.required_number("bytes_per_s"),
          .flops_per_s = reader.number("flops_per_s", 0.0),
          .ranks = reader.count("ranks", 1, kMaxDevices)};
}

StreamPoint read_stream_point(HardwareReader& reader) {
  return {.stream = reader.name("stream", stream_names()),
          .dtype = reader.name("dtype", dtype_names()),
          .threads = reader.count("threads", 1, kMaxDevices),
          .bytes_per_s = reader.required_number("bytes_per_s"),
          .ranks = reader.count("ranks", 1, kMaxDevices)};
}

DeviceSpec read_device(HardwareReader reader) {
  DeviceSpec device;
  device.name = reader.text("name", "");
  if (device.name.empty()) reader.fail("name", "missing");
  device.cores = reader.count("cores", 0, kMaxDevices);
  device.memory_bytes = reader.required_figure("memory_bytes");
  device.memory_bytes_per_s = reader.required_figure("memory_bytes_per_s");
  device.peak_flops_per_s = read_rates(reader.table("peak_flops_per_s"));
  if (!device.peak_flops_per_s.fp32.known())
    reader.fail("peak_flops_per_s.fp32", "missing", "every device has a rate in fp32");
  device.reached_flops_per_s = read_rates(reader.table("reached_flops_per_s"));
  device.launch_latency_s = reader.figure("launch_latency_s");
  device.step_overhead_s = reader.figure("step_overhead_s");
  device.optimizer_bytes_per_s = reader.figure("optimizer_bytes_per_s");
  device.overlap_share = reader.figure("overlap_share");
  device.gemm_share = reader.figure("gemm_share");
  device.gemm_half_depth = reader.figure("gemm_half_depth");
  device.attention_share = reader.figure("attention_share");
  device.stream_share = reader.figure("stream_share");
  device.link_share = reader.figure("link_share");
  device.library_bytes_fp32 = reader.figure("library_bytes_fp32");
  device.library_bytes_bf16 = reader.figure("library_bytes_bf16");
  device.power_w = reader.figure("power_w");
  device.price_per_hour = reader.figure("price_per_hour");
  device.gemm = read_curve<GemmPoint>(reader, "gemm", read_gemm_point);
  device.operations = read_curve<OperationPoint>(reader, "operations", read_operation_point);
  device.streams = read_curve<StreamPoint>(reader, "streams", read_stream_point);
  reader.finish();
  return device;
}

LinkSpec read_link(HardwareReader& reader) {
  LinkSpec link;
  link.name = reader.text("name", "");
  link.bytes_per_s = reader.required_figure("bytes_per_s");
  link.reached_share = reader.figure("reached_share");
  link.latency_s = reader.required_figure("latency_s");
  link.ring_step_s = reader.figure("ring_step_s");
  link.collectives = read_curve<CollectivePoint>(reader, "collectives", read_collective_point);
  reader.finish();
  return link;
}

// The ports of a node, which its devices share evenly.
void read_ports(HardwareReader& reader, HardwareSpec& hardware) {
  const int64_t devices = hardware.devices_per_node;
  const int64_t ports = reader.count("ports", devices, kMaxDevices);
  if (ports == devices) return;
  if (devices % ports == 0) {
    hardware.network_ports = ports;
    return;
  }
  int64_t below = std::min(ports, devices);
  while (devices % below != 0) --below;
  reader.fail("ports", fmt::format("{} ports cannot be shared evenly by the devices of a node ({})", ports, devices),
              fmt::format("use {}", below));
}

// Whether a file may name a GPU file: those themselves may not, or two could name each other.
enum class GpuKey { kAllowed, kRefused };

Result<HardwareSpec> parse_file(const std::filesystem::path& path, GpuKey gpu_key);

// Takes device, node and link from configs/gpus; what the file states itself comes on top.
void read_base(HardwareReader& reader, GpuKey gpu_key, HardwareSpec& hardware) {
  const std::string gpu = reader.text("gpu", "");
  if (reader.has("device")) {
    if (!gpu.empty()) reader.fail("gpu", "given beside [device]", "keep one of them");
    hardware.device = read_device(reader.table("device"));
    return;
  }
  if (gpu.empty()) return reader.fail("device", "missing", "[device], or gpu = a name in configs/gpus");
  if (gpu_key == GpuKey::kRefused)
    return reader.fail("gpu", "a file of configs/gpus names another", "state its [device]");
  const auto path = find_named_config("gpus", ".toml", gpu);
  if (!path.ok()) return reader.fail("gpu", path.error().problem, path.error().hint);
  const auto base = parse_file(*path, GpuKey::kRefused);
  if (!base.ok()) return reader.fail("gpu", base.error().message());
  hardware = *base;
  hardware.gpu = gpu;
}

Result<HardwareSpec> read_table(const toml::table& table, const std::string& where, GpuKey gpu_key) {
  HardwareReader reader(table, where);
  HardwareSpec hardware;
  read_base(reader, gpu_key, hardware);
  hardware.name = reader.text("name", std::filesystem::path(where).stem().string());
  HardwareReader node = reader.table("node");
  hardware.devices_per_node = node.count("devices", hardware.devices_per_node, kMaxDevices);
  if (node.has("host_memory_bytes")) hardware.host_memory_bytes = node.figure("host_memory_bytes");
  if (node.has("link")) {
    HardwareReader link = node.table("link");
    hardware.node_link = read_link(link);
  }
  node.finish();
  if (reader.ok() && hardware.devices_per_node > 1 && !hardware.node_link.bytes_per_s.known())
    reader.fail("node.link", "missing", "devices of a node are connected by something");
  if (reader.has("network")) {
    HardwareReader network = reader.table("network");
    read_ports(network, hardware);
    hardware.network = read_link(network);
  }
  reader.finish();
  if (!reader.ok()) return reader.error();
  return hardware;
}

Result<HardwareSpec> parse_text(const std::string& toml_text, const std::string& where, GpuKey gpu_key) {
  FIVEFOLD_TRY(check_toml_nesting(toml_text, where));
  try {
    return read_table(toml::parse(toml_text, where), where, gpu_key);
  } catch (const toml::parse_error& error) {
    return Error{fmt::format("{}:{}:{}", where, error.source().begin.line, error.source().begin.column),
                 std::string(error.description()), "expected a TOML file"};
  }
}

Result<HardwareSpec> parse_file(const std::filesystem::path& path, GpuKey gpu_key) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) return Error{path.string(), "no such file", ""};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error{path.string(), "cannot be read", ""};
  return parse_text(text.str(), path.string(), gpu_key);
}

}  // namespace

std::string_view to_string(Provenance kind) {
  for (const auto& [name, value] : provenance_names())
    if (value == kind) return name;
  FIVEFOLD_CHECK(false);
}

// A switch, so that the compiler tells of a kind that is missing here.
std::string_view to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::kEmbedding:
      return "embedding";
    case OperationKind::kNorm:
      return "norm";
    case OperationKind::kLinear:
      return "linear";
    case OperationKind::kQkNorm:
      return "qk_norm";
    case OperationKind::kRope:
      return "rope";
    case OperationKind::kAttention:
      return "attention";
    case OperationKind::kGatedActivation:
      return "gated_activation";
    case OperationKind::kActivation:
      return "activation";
    case OperationKind::kAddNorm:
      return "add_norm";
    case OperationKind::kBlock:
      return "block";
    case OperationKind::kLoss:
      return "loss";
  }
  FIVEFOLD_CHECK(false);
}

const std::vector<std::pair<std::string_view, OperationKind>>& operation_names() {
  static const auto names = [] {
    std::vector<std::pair<std::string_view, OperationKind>> list;
    for (int i = 0; i < kNumOperationKinds; ++i) {
      const auto kind = static_cast<OperationKind>(i);
      list.emplace_back(to_string(kind), kind);
    }
    return list;
  }();
  return names;
}

const std::vector<std::pair<std::string_view, Pass>>& pass_names() {
  static const std::vector<std::pair<std::string_view, Pass>> names = {{"forward", Pass::kForward},
                                                                       {"backward", Pass::kBackward}};
  return names;
}

const std::vector<std::pair<std::string_view, StreamKind>>& stream_names() {
  static const std::vector<std::pair<std::string_view, StreamKind>> names = {
      {"optimizer", StreamKind::kOptimizer},
      {"accumulate", StreamKind::kAccumulate},
      {"sum_of_squares", StreamKind::kSumOfSquares}};
  return names;
}

int64_t library_bytes(const DeviceSpec& device, DType compute) {
  const Figure& figure = compute == DType::kFloat32 ? device.library_bytes_fp32 : device.library_bytes_bf16;
  return static_cast<int64_t>(figure.value);
}

double matrix_rate(const MatrixRates& rates, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return rates.fp32.value;
    case DType::kBFloat16:
      return rates.bf16.value;
    case DType::kFloat16:
      return rates.fp16.value;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return rates.fp8.value;
    default:
      return 0.0;
  }
}

Result<HardwareSpec> parse_hardware(const std::string& toml_text, const std::string& where) {
  return parse_text(toml_text, where, GpuKey::kAllowed);
}

Result<HardwareSpec> read_hardware(const std::filesystem::path& toml_file) {
  return parse_file(toml_file, GpuKey::kAllowed);
}

Result<std::filesystem::path> find_named_hardware(const std::string& name) {
  const auto cluster = find_named_config("clusters", ".toml", name);
  if (cluster.ok()) return cluster;
  const auto gpu = find_named_config("gpus", ".toml", name);
  if (gpu.ok()) return gpu;
  std::vector<std::string> known = list_named_gpus();
  for (const std::string& other : list_named_clusters()) known.push_back(other);
  if (known.empty()) return gpu.error();
  return Error{"hardware", "unknown name \"" + name + "\"", name_hint(name, known)};
}

std::vector<std::string> list_named_gpus() { return list_named_configs("gpus", ".toml"); }
std::vector<std::string> list_named_clusters() { return list_named_configs("clusters", ".toml"); }

}  // namespace fivefold
