// Calibration: what `calibrate` asks the engine to time on this machine, and the hardware file that follows from the
// answers. The planner's own count of an operation's work (planner/work.h) turns seconds into rates, so both mean the
// same. Pure functions: the engine measures. Derivation: docs/communication.md#time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/calibrate_request.h"
#include "engine/engine_api.h"
#include "planner/rates.h"

namespace fivefold {

// One round of measurements: `ranks` ranks of `threads` threads at once. On c cores: one thread, one rank on all
// cores, a rank on each core; and collectives of 2, 4, ... ranks.
std::vector<MeasureRequest> calibration_requests(int cores);

// One step of a model so small that what the process grows by is its libraries, on a rank for each core.
ProbeRequest library_probe(int cores, DType dtype);

struct Calibration {
  std::vector<MeasureRequest> requests;
  std::vector<Measurements> measurements;  // one for each request
};

struct MachineFacts {
  std::string processor;  // what the operating system calls it
  int cores = 1;
  int64_t memory_bytes = 0;
  std::string when;                                        // date, for the file
  int64_t library_bytes_fp32 = 0, library_bytes_bf16 = 0;  // see DeviceSpec
};

// REQUIRES: requests of calibration_requests(machine.cores) and their measurements.
HardwareSpec fit_hardware(const Calibration& calibration, const MachineFacts& machine);

// seconds = overhead + bytes x per_byte + flops x per_flop, no coefficient negative, least squares of the relative
// error.
struct TimedWork {
  double bytes = 0, flops = 0, seconds = 0;
};
struct WorkRates {
  double overhead_s = 0, per_byte_s = 0, per_flop_s = 0;
};
WorkRates fit_work(const std::vector<TimedWork>& samples);

}  // namespace fivefold
