// The hardware that a configuration names: a GPU or cluster of configs/, a file, or this machine: as `calibrate`
// measured it, or, before that, by what the operating system says and stated assumptions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "spec/hardware.h"
#include "spec/run_config.h"

namespace fivefold {

// Where `calibrate` leaves this machine's file and others find it: FIVEFOLD_MACHINE of the environment, else
// fivefold/this-machine.toml under XDG_CACHE_HOME or ~/.cache.
std::filesystem::path this_machine_file();

// Cores and memory of this machine; rates of a usual core, tagged assumed.
HardwareSpec assumed_machine();

// `name`: [hardware] name of a configuration. Errors: unknown name with the nearest, or those of read_hardware.
Result<HardwareSpec> load_hardware(const std::string& name);

// [comm] simulate of a configuration; nothing if it is empty. Errors ("comm.simulate"): those of load_hardware, or more
// ranks than the cluster has room for.
Result<std::optional<NetworkSpec>> load_simulated_network(const RunConfig& config);

// Both: what times of a configuration are predicted with. Errors: those of both.
Result<HardwareSpec> load_run_hardware(const RunConfig& config);

}  // namespace fivefold
