#include "cli/machine.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "spec/network.h"

namespace fivefold {
namespace {

Figure assumed(double value, const char* source) { return {value, Provenance::kAssumed, source}; }

}  // namespace

std::filesystem::path this_machine_file() {
  if (const char* chosen = std::getenv("FIVEFOLD_MACHINE")) return chosen;
  std::filesystem::path cache;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"))
    cache = xdg;
  else if (const char* home = std::getenv("HOME"))
    cache = std::filesystem::path(home) / ".cache";
  return cache / "fivefold" / "this-machine.toml";
}

HardwareSpec assumed_machine() {
  constexpr const char* kUsual = "order of magnitude of a server core; `fivefold calibrate` measures it";
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  HardwareSpec machine;
  machine.name = "this-machine";
  machine.device.name = "this machine, not measured";
  machine.device.cores = static_cast<int64_t>(cores);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  machine.device.memory_bytes = {memory, Provenance::kDerived, "physical memory that the operating system reports"};
  machine.device.memory_bytes_per_s = assumed(10e9, kUsual);
  machine.device.peak_flops_per_s.fp32 = assumed(60e9 * cores, kUsual);
  machine.device.peak_flops_per_s.bf16 = assumed(60e9 * cores, kUsual);
  machine.device.launch_latency_s = assumed(5e-6, kUsual);
  machine.node_link.name = "shared memory";
  machine.node_link.bytes_per_s = assumed(4e9, kUsual);
  machine.node_link.latency_s = assumed(20e-6, kUsual);
  return machine;
}

Result<HardwareSpec> load_hardware(const std::string& name) {
  if (name == "this-machine") {
    const std::filesystem::path file = this_machine_file();
    if (!std::filesystem::exists(file)) return assumed_machine();
    return read_hardware(file);
  }
  if (name.ends_with(".toml") || name.find('/') != std::string::npos) return read_hardware(name);
  FIVEFOLD_ASSIGN(const std::filesystem::path file, find_named_hardware(name));
  return read_hardware(file);
}

Result<std::optional<NetworkSpec>> load_simulated_network(const RunConfig& config) {
  const std::string& name = config.comm.simulate;
  if (name.empty()) return std::optional<NetworkSpec>();
  const Result<HardwareSpec> cluster = load_hardware(name);
  if (!cluster.ok()) {
    const Error& error = cluster.error();
    const bool by_name = error.where == "hardware";
    return Error{by_name ? "comm.simulate" : "comm.simulate: " + error.where, error.problem, error.hint};
  }
  NetworkSpec network = network_of(*cluster);
  const ParallelConfig& parallel = config.parallel;
  FIVEFOLD_TRY(check_num_ranks(network, parallel.dp * parallel.tp * parallel.cp * parallel.pp));
  return std::optional(std::move(network));
}

Result<HardwareSpec> load_run_hardware(const RunConfig& config) {
  FIVEFOLD_ASSIGN(HardwareSpec hardware, load_hardware(config.hardware.name));
  FIVEFOLD_ASSIGN(hardware.simulated, load_simulated_network(config));
  return hardware;
}

}  // namespace fivefold
