// HardwareSpec -> TOML.
#include <fmt/format.h>

#include "spec/hardware_reader.h"
#include "spec/run_config_keys.h"

namespace fivefold {
namespace {

template <typename Enum>
std::string word(const std::vector<std::pair<std::string_view, Enum>>& names, Enum value) {
  for (const auto& [name, candidate] : names)
    if (candidate == value) return toml_string(name);
  FIVEFOLD_CHECK(false);
}

void write_figure(std::string& out, std::string_view key, const Figure& figure) {
  if (!figure.known()) return;
  // Shortest digits that read back to the same double.
  out += fmt::format("{} = {{ value = {}, kind = {}, source = {} }}\n", key, figure.value,
                     word(provenance_names(), figure.kind), toml_string(figure.source));
}

void write_rates(std::string& out, std::string_view table, const MatrixRates& rates) {
  std::string lines;
  write_figure(lines, "fp32", rates.fp32);
  write_figure(lines, "tf32", rates.tf32);
  write_figure(lines, "fp16", rates.fp16);
  write_figure(lines, "bf16", rates.bf16);
  write_figure(lines, "fp8", rates.fp8);
  if (!lines.empty()) out += fmt::format("\n[{}]\n{}", table, lines);
}

std::string point_fields(const GemmPoint& p) {
  return fmt::format("m = {}, n = {}, k = {}, dtype = {}, threads = {}, ranks = {}, flops_per_s = {}", p.m, p.n, p.k,
                     toml_string(to_string(p.dtype)), p.threads, p.ranks, p.flops_per_s);
}

std::string point_fields(const CollectivePoint& p) {
  return fmt::format("kind = {}, ranks = {}, bytes = {}, seconds = {}", toml_string(to_string(p.kind)), p.ranks,
                     p.bytes, p.seconds);
}

std::string point_fields(const OperationPoint& p) {
  const std::string overhead = p.overhead_s > 0 ? fmt::format("overhead_s = {}, ", p.overhead_s) : "";
  const std::string flops = p.flops_per_s > 0 ? fmt::format(", flops_per_s = {}", p.flops_per_s) : "";
  return fmt::format("operation = {}, pass = {}, dtype = {}, threads = {}, ranks = {}, {}bytes_per_s = {}{}",
                     word(operation_names(), p.operation), word(pass_names(), p.pass), toml_string(to_string(p.dtype)),
                     p.threads, p.ranks, overhead, p.bytes_per_s, flops);
}

std::string point_fields(const StreamPoint& p) {
  return fmt::format("stream = {}, dtype = {}, threads = {}, ranks = {}, bytes_per_s = {}",
                     word(stream_names(), p.stream), toml_string(to_string(p.dtype)), p.threads, p.ranks,
                     p.bytes_per_s);
}

template <typename Point>
void write_curve(std::string& out, const std::string& table, const Curve<Point>& curve) {
  if (curve.points.empty()) return;
  out += fmt::format("\n[{}]\nkind = {}\nsource = {}\npoints = [\n", table, word(provenance_names(), curve.kind),
                     toml_string(curve.source));
  for (const Point& point : curve.points) out += "  { " + point_fields(point) + " },\n";
  out += "]\n";
}

void write_device(std::string& out, const DeviceSpec& device) {
  out += fmt::format("\n[device]\nname = {}\n", toml_string(device.name));
  if (device.cores > 0) out += fmt::format("cores = {}\n", device.cores);
  write_figure(out, "memory_bytes", device.memory_bytes);
  write_figure(out, "memory_bytes_per_s", device.memory_bytes_per_s);
  write_figure(out, "launch_latency_s", device.launch_latency_s);
  write_figure(out, "step_overhead_s", device.step_overhead_s);
  write_figure(out, "optimizer_bytes_per_s", device.optimizer_bytes_per_s);
  write_figure(out, "overlap_share", device.overlap_share);
  write_figure(out, "gemm_share", device.gemm_share);
  write_figure(out, "gemm_half_depth", device.gemm_half_depth);
  write_figure(out, "attention_share", device.attention_share);
  write_figure(out, "stream_share", device.stream_share);
  write_figure(out, "link_share", device.link_share);
  write_figure(out, "library_bytes_fp32", device.library_bytes_fp32);
  write_figure(out, "library_bytes_bf16", device.library_bytes_bf16);
  write_figure(out, "power_w", device.power_w);
  write_figure(out, "price_per_hour", device.price_per_hour);
  write_rates(out, "device.peak_flops_per_s", device.peak_flops_per_s);
  write_rates(out, "device.reached_flops_per_s", device.reached_flops_per_s);
  write_curve(out, "device.gemm", device.gemm);
  write_curve(out, "device.operations", device.operations);
  write_curve(out, "device.streams", device.streams);
}

// `ports` of a node on the link; 0: not written.
void write_link(std::string& out, const std::string& table, const LinkSpec& link, int64_t ports) {
  if (!link.bytes_per_s.known()) return;
  out += fmt::format("\n[{}]\nname = {}\n", table, toml_string(link.name));
  if (ports > 0) out += fmt::format("ports = {}\n", ports);
  write_figure(out, "bytes_per_s", link.bytes_per_s);
  write_figure(out, "reached_share", link.reached_share);
  write_figure(out, "latency_s", link.latency_s);
  write_figure(out, "ring_step_s", link.ring_step_s);
  write_curve(out, table + ".collectives", link.collectives);
}

}  // namespace

std::string write_hardware(const HardwareSpec& hardware) {
  std::string out = fmt::format("name = {}\n", toml_string(hardware.name));
  write_device(out, hardware.device);
  out += fmt::format("\n[node]\ndevices = {}\n", hardware.devices_per_node);
  write_figure(out, "host_memory_bytes", hardware.host_memory_bytes);
  write_link(out, "node.link", hardware.node_link, 0);
  write_link(out, "network", hardware.network, hardware.network_ports);
  return out;
}

}  // namespace fivefold
