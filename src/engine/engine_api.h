// EngineApi: what the program asks of the engine's shared library. Torch-free, so that the program and its tests use it
// without Torch; the library is loaded when a command first needs it (loading Torch costs a quarter of a second).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/calibrate_request.h"
#include "engine/generate_request.h"
#include "record/run_record.h"
#include "spec/account_bytes.h"
#include "spec/hardware.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// Rows of tokens, [rows x sequence] row-major.
struct GlobalBatch {
  int64_t rows = 0, sequence = 0;
  std::vector<int32_t> input_ids, targets, positions;  // targets shifted; negative: ignored
  std::vector<std::vector<int32_t>> document_lengths;  // per row, summing to `sequence`
};

// Counted bytes of a rank.
struct RankMemory {
  std::vector<int64_t> peak_by_account;     // by Account, each at its own moment
  std::vector<int64_t> at_peak_by_account;  // by Account, at the moment of the total's peak
  int64_t peak_total = 0;
  std::vector<std::pair<bool, std::pair<Account, int64_t>>>
      log;  // allocations (true) and frees of the last step, when asked
};

struct NamedTensor {
  std::string name;            // Hub name
  std::vector<int64_t> shape;  // as on disk
  std::vector<float> values;
};

// A few steps on one fixed batch, for checks and tests.
struct ProbeRequest {
  ModelSpec model;
  ResolvedConfig config;
  std::filesystem::path weights;  // Hub folder; empty: random from run.seed
  GlobalBatch batch;
  int updates = 0;               // optimizer steps on the batch; the learning rate is optimizer.lr in each
  bool want_gradients = true;    // of the first step, before clipping
  bool want_parameters = false;  // after the updates
  bool want_hashes = true;       // after the updates; holds one unit's weights at a time, uncounted
  bool log_allocations = false;
  bool want_calls = false;
  std::optional<NetworkSpec> simulate;  // links that the ranks imitate
};

struct ProbeResult {
  double loss = 0, grad_norm = 0;  // at the initial weights
  int64_t valid_tokens = 0;
  std::vector<double> losses;      // after 1, 2, ... updates
  std::vector<double> grad_norms;  // before clipping, of each update
  std::vector<NamedTensor> gradients, parameters;
  std::vector<uint64_t> parameter_hashes;             // per rank, of the working weights after the updates
  std::vector<RankMemory> memory;                     // per rank, of the first step
  std::vector<std::vector<RecordedTraffic>> traffic;  // per rank, of one step
  std::vector<double> step_seconds;                   // of every step, the first (without update) included
  // Per rank and step, the first one left out, when asked: the collectives that ended in it.
  std::vector<std::vector<std::vector<RecordedCall>>> calls;
};

// A training run, from its first step or the newest checkpoint to its last step or the request to stop.
struct TrainProgress {
  int64_t step = 0, total_steps = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  double seconds = 0;       // of the step
  double tokens_per_s = 0;  // of the step, all ranks
  bool updated = true;
  double loss_scale = 0;  // fp16: that the step used; 0: none
};

struct TrainRequest {
  ModelSpec model;
  std::string model_config;  // config.json of the model, as text
  ResolvedConfig config;
  std::optional<NetworkSpec> simulate;      // links that the ranks imitate
  std::filesystem::path run_directory;      // exists
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler: save and end after the step
  // Called on the first rank's thread.
  std::function<void(const TrainProgress&)> on_step;
  std::function<void(int64_t step, double loss)> on_evaluation;
  std::function<void(const std::string&)> on_message;
};

// An allocation that went over limits.memory and so ended the run, and what its rank held then.
struct MemoryRefusal {
  int rank = 0;
  Account account = Account::kWorkspace;
  int64_t bytes = 0, limit = 0;
  AccountBytes live;
  int64_t step = 0;                   // that was running, from 1; 0: none had begun
  std::optional<size_t> instruction;  // its place in the rank's Program of a step; nothing: outside of one
};

struct TrainResult {
  int64_t first_step = 0;  // steps done before this session
  int64_t steps = 0;       // steps done in all
  bool finished = true;    // false: stopped on request
  double loss = 0;         // of the last step
  std::vector<double> step_seconds;
  std::filesystem::path checkpoint;  // the last one
  std::optional<MemoryRefusal> refusal;
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;
  // Errors (before any rank starts): data, tokenizer, weights or checkpoint that are missing, damaged or do not fit the
  // model. Throws std::runtime_error for what fails while ranks run, but returns a refusal.
  virtual Result<TrainResult> train(const TrainRequest& request) = 0;
  // Errors: weights that do not fit the model. Throws std::runtime_error for what fails while ranks run.
  virtual Result<ProbeResult> probe(const ProbeRequest& request) = 0;
  // Times this machine. Throws std::runtime_error for what fails while ranks run.
  virtual Measurements measure(const MeasureRequest& request) = 0;
  // Continues a prompt. Errors: weights that are missing, damaged or do not fit the model. Throws std::runtime_error
  // for what fails afterwards. REQUIRES: validate_generation (spec/generation.h) found nothing.
  virtual Result<GenerateResult> generate(const GenerateRequest& request) = 0;
};

// Loads libfivefold_engine.so (where FIVEFOLD_ENGINE of the environment says, else beside the program, in ../lib,
// or of base/installation.h), once.
// Errors: not found, not loadable, of another version.
Result<EngineApi*> load_engine();

}  // namespace fivefold
