// fivefold calibrate: measure this machine with the engine's own operations and write its hardware file.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/process_memory.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "engine/engine_api.h"

namespace fivefold {
namespace {

constexpr double kDriftBound = 0.05;    // of the reference product between the start and the end of a round
constexpr double kLeastCpuShare = 0.9;  // of a core that the reference product got
constexpr double kRepeatUntil = 40;     // seconds from the start: disturbed rounds after that stay as they are

struct CalibrateOptions {
  std::string out;
  bool json = false, quiet = false;
};

// Nothing else ran meanwhile, as far as the reference product can tell.
bool is_steady(const Measurements& measured) {
  return std::abs(measured.reference_after_s / measured.reference_before_s - 1) <= kDriftBound &&
         measured.cpu_share >= kLeastCpuShare;
}

size_t num_tasks(const MeasureRequest& request) {
  return request.gemms.size() + request.steps.size() + request.collectives.size();
}

using Clock = std::chrono::steady_clock;

// Repeats a round that other work disturbed, while there is time, and keeps the one with the fastest reference.
Measurements measure_steadily(EngineApi& engine, const MeasureRequest& request, Clock::time_point start, bool& steady) {
  const auto reference = [](const Measurements& m) { return m.reference_before_s + m.reference_after_s; };
  Measurements best = engine.measure(request);
  bool calm = is_steady(best);
  while (!calm && std::chrono::duration<double>(Clock::now() - start).count() < kRepeatUntil) {
    Measurements again = engine.measure(request);
    calm = is_steady(again);
    if (calm || reference(again) < reference(best)) best = std::move(again);
  }
  steady = steady && calm;
  return best;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  return "CPU";
}

MachineFacts machine_facts() {
  return {.processor = processor_name(),
          .cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
          .memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE),
          .when = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))};
}

// REQUIRES: the engine has computed nothing in this process.
void measure_libraries(EngineApi& engine, MachineFacts& machine) {
  const int64_t idle = peak_resident_bytes();
  const auto grown = [&](DType dtype) {
    engine.probe(library_probe(machine.cores, dtype)).value();
    return peak_resident_bytes() - idle;
  };
  machine.library_bytes_fp32 = grown(DType::kFloat32);
  machine.library_bytes_bf16 = grown(DType::kBFloat16);
}

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  // Readers see the old file or the whole new one.
  const std::filesystem::path temporary = path.string() + ".new";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) return Error{path.string(), "cannot be written", "choose another file with --out"};
  return Ok{};
}

void report(const HardwareSpec& hardware, const std::filesystem::path& file, bool steady, bool json) {
  const DeviceSpec& device = hardware.device;
  if (json) {
    print_json({{"file", file.string()},
                {"steady", steady},
                {"cores", device.cores},
                {"fp32_flops_per_s", device.peak_flops_per_s.fp32.value},
                {"bf16_flops_per_s", device.peak_flops_per_s.bf16.value},
                {"memory_bytes_per_s", device.memory_bytes_per_s.value},
                {"library_bytes", library_bytes(device, DType::kBFloat16)},
                {"collective_bytes_per_s", hardware.node_link.bytes_per_s.value}});
    return;
  }
  print(fmt::format("{}, {} cores: {:.0f} GFLOP/s fp32, {:.0f} bf16; memory {:.1f} GB/s", device.name, device.cores,
                    device.peak_flops_per_s.fp32.value / 1e9, device.peak_flops_per_s.bf16.value / 1e9,
                    device.memory_bytes_per_s.value / 1e9));
  if (hardware.node_link.bytes_per_s.known())
    print(fmt::format("; between ranks {:.1f} GB/s, {:.0f} us", hardware.node_link.bytes_per_s.value / 1e9,
                      hardware.node_link.latency_s.value * 1e6));
  print(fmt::format("; libraries {} a process\nwritten to {}\n", format_bytes(library_bytes(device, DType::kBFloat16)),
                    file.string()));
}

ExitCode run_calibrate(const CalibrateOptions& options) {
  if (options.quiet) set_log_level(LogLevel::kWarning);
  Progress::set_quiet(options.quiet);
  const Result<EngineApi*> engine = load_engine();
  if (!engine.ok()) {
    print_errors({engine.error()});
    return ExitCode::kBadInput;
  }
  MachineFacts machine = machine_facts();
  measure_libraries(**engine, machine);
  Calibration calibration{calibration_requests(machine.cores), {}};
  int64_t total = 0, done = 0;
  for (const MeasureRequest& request : calibration.requests) total += static_cast<int64_t>(num_tasks(request));
  bool steady = true;
  const Clock::time_point start = Clock::now();
  {
    Progress progress("calibrate", total);
    for (MeasureRequest& request : calibration.requests) {
      request.on_task = [&] { progress.update(std::min(++done, total)); };
      calibration.measurements.push_back(measure_steadily(**engine, request, start, steady));
    }
  }
  if (!steady)
    log_warning("the machine is busy with other work: rates may be too low. Calibrate again when it is idle.");
  const HardwareSpec hardware = fit_hardware(calibration, machine);
  const std::filesystem::path file = options.out.empty() ? this_machine_file() : std::filesystem::path(options.out);
  const Status written = write_file(file, write_hardware(hardware));
  if (!written.ok()) {
    print_errors({written.error()});
    return ExitCode::kBadInput;
  }
  report(hardware, file, steady, options.json);
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_calibrate_command(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  app.add_option("--out", options->out, "hardware file to write (default: this machine's, which plans then use)")
      ->option_text("FILE");
  app.add_flag("--json", options->json, "print JSON");
  app.add_flag("--quiet", options->quiet, "print results and errors only");
  return [options] { return run_calibrate(*options); };
}

}  // namespace fivefold
