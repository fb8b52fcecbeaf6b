// EngineApi: what the program asks of the engine's shared library. Torch-free, so that the program and its tests use it
// without Torch; the library is loaded when a command first needs it (loading Torch costs a quarter of a second).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "comm/comm_counters.h"
#include "spec/enums.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// Rows of tokens, [rows x sequence] row-major.
struct GlobalBatch {
  int64_t rows = 0, sequence = 0;
  std::vector<int32_t> input_ids, targets, positions;    // targets shifted; negative: ignored
  std::vector<std::vector<int32_t>> document_lengths;    // per row, summing to `sequence`
};

// Counted bytes of a rank.
struct RankMemory {
  std::vector<int64_t> peak_by_account;      // by Account, each at its own moment
  std::vector<int64_t> at_peak_by_account;   // by Account, at the moment of the total's peak
  int64_t peak_total = 0;
  std::vector<std::pair<bool, std::pair<Account, int64_t>>> log;  // allocations (true) and frees of the last step, when asked
};

// One row of a rank's traffic counters.
struct TrafficCount {
  CollectiveKind kind;
  GroupKind group;
  Purpose purpose;
  int64_t calls = 0, bytes = 0;
};

struct NamedTensor {
  std::string name;              // Hub name
  std::vector<int64_t> shape;    // as on disk
  std::vector<float> values;
};

// A few steps on one fixed batch, for checks and tests.
struct ProbeRequest {
  ModelSpec model;
  ResolvedConfig config;
  std::filesystem::path weights;   // Hub folder; empty: random from run.seed
  GlobalBatch batch;
  int updates = 0;                 // optimizer steps on the batch; the learning rate is optimizer.lr in each
  bool want_gradients = true;      // of the first step, before clipping
  bool want_parameters = false;    // after the updates
  bool log_allocations = false;
};

struct ProbeResult {
  double loss = 0, grad_norm = 0;            // at the initial weights
  int64_t valid_tokens = 0;
  std::vector<double> losses;                // after 1, 2, ... updates
  std::vector<double> grad_norms;            // before clipping, of each update
  std::vector<NamedTensor> gradients, parameters;
  std::vector<uint64_t> parameter_hashes;    // per rank, of the working weights after the updates, gathered in full
  std::vector<RankMemory> memory;            // per rank, of the first step
  std::vector<std::vector<TrafficCount>> traffic;  // per rank, of one step
  std::vector<double> step_seconds;          // of every step, the first (without update) included
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;
  // Errors: weights that do not fit the model. Throws std::runtime_error for what fails while ranks run.
  virtual Result<ProbeResult> probe(const ProbeRequest& request) = 0;
};

// Loads libfivefold_engine.so (beside the program, in ../lib, or where FIVEFOLD_ENGINE says), once.
// Errors: not found, not loadable, of another version.
Result<EngineApi*> load_engine();

}  // namespace fivefold
