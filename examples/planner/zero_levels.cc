// zero_levels MODEL HARDWARE RANKS: memory at the peak and bytes sent in a step, of one rank, at each ZeRO level.
// MODEL: a name such as llama-3-8b, or a config.json of the Hub. HARDWARE: a name such as dgx-h100, or a file.
#include <cstdio>
#include <filesystem>

#include "base/text.h"
#include "planner/capacity.h"
#include "planner/traffic.h"
#include "spec/model_named.h"
#include "spec/run_config_io.h"

using namespace fivefold;

Status print_levels(const std::string& model_name, const std::string& hardware_name, const std::string& ranks) {
  const auto file_of = [](const std::string& name, auto find_named) -> Result<std::filesystem::path> {
    return std::filesystem::exists(name) ? std::filesystem::path(name) : find_named(name);
  };
  FIVEFOLD_ASSIGN(const auto model_file, file_of(model_name, find_named_model));
  FIVEFOLD_ASSIGN(const ModelSpec model, read_model_config(model_file));
  FIVEFOLD_ASSIGN(const auto hardware_file, file_of(hardware_name, find_named_hardware));
  FIVEFOLD_ASSIGN(const HardwareSpec hardware, read_hardware(hardware_file));
  const Inventory inventory = build_inventory(model);
  for (int zero = 0; zero <= 3; ++zero) {
    const LoadedConfig loaded =
        load_config({.set = {"parallel.dp=" + ranks, "parallel.zero=" + std::to_string(zero), "batch.sequence=1024"}});
    if (!loaded.errors.empty()) return loaded.errors.front();
    FIVEFOLD_ASSIGN(const ResolvedConfig resolved, resolve(loaded.config, model));
    Ledger ledger = predict_memory(model, inventory, resolved);
    add_outside_tensors(ledger, outside_tensors(model, inventory, resolved, hardware));
    std::printf("zero = %d: peak %s of %s\n", zero, format_bytes(ledger.peak_total).c_str(),
                format_bytes(planned_capacity(resolved, hardware)).c_str());
    for (int i = 0; i < kNumAccounts; ++i)
      if (const auto account = static_cast<Account>(i); ledger.at_peak[account] > 0)
        std::printf("  %-17s %s\n", to_string(account).data(), format_bytes(ledger.at_peak[account]).c_str());
    for (const TrafficLine& line : predict_traffic(model, inventory, resolved))
      std::printf("  sends %s in %lld x %s of %s\n", format_bytes(line.bytes).c_str(),
                  static_cast<long long>(line.calls), to_string(line.kind).data(), to_string(line.purpose).data());
  }
  return Ok{};
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: zero_levels MODEL HARDWARE RANKS\n");
    return 2;
  }
  const Status status = print_levels(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::fprintf(stderr, "zero_levels: %s\n", status.error().message().c_str());
  return status.ok() ? 0 : 2;
}
