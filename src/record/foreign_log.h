// ForeignLog: what the log of a run in another framework says: how long its steps took, what memory its ranks had,
// where it ran out, and how it was started. One struct for all formats; what a format does not say is empty. Formats,
// and where each was seen: docs/formats/foreign-logs.md. Plain data; the readers have no state: thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

enum class LogKind : uint8_t {
  kMegatron,    // Megatron-LM and its forks: "iteration 100/ 1000 | ..."
  kTorchtitan,  // "step: 10  loss: ..."
  kTrainer,     // transformers' Trainer: trainer_state.json, or the dictionaries that it prints
  kNvidiaSmi,   // CSV of --query-gpu, or the plain table
  kSnapshot,    // torch.cuda.memory._dump_snapshot, as a pickle or as JSON
  kMessages,    // nothing but the allocator's messages and summaries
};
inline constexpr int kNumLogKinds = 6;
// "megatron", "torchtitan", "hf", "nvidia-smi", "snapshot", "messages".
std::string_view to_string(LogKind kind);
std::optional<LogKind> log_kind_of(std::string_view name);

inline constexpr int kUnknownRank = -1;

// A line about a step. With a logging interval it stands for the steps since the last line.
struct LoggedStep {
  int64_t step = 0;
  int session = 0;  // 0-based; a restart begins another
  int rank = kUnknownRank;
  std::optional<double> seconds;          // of one step
  std::optional<double> tokens_per_s;     // of one GPU
  std::optional<double> flops_per_s;      // of one GPU, model FLOPs by the framework's own count
  std::optional<double> samples;          // of the step, over all ranks
  std::optional<double> tokens_of_world;  // seen since the start, over all ranks
  std::optional<double> loss, grad_norm;
};

enum class LoggedMemoryKind : uint8_t {
  kBetweenSteps,  // allocated while no step runs: weights, gradients' buffers, optimizer states
  kAllocated,     // peak of torch.cuda.max_memory_allocated, or of blocks in use
  kReserved,      // peak of max_memory_reserved
  kProcess,       // what nvidia-smi shows for the card
};
std::string_view to_string(LoggedMemoryKind kind);

// The largest figure of a rank. In nvidia-smi's output a rank is the card's index.
struct LoggedMemory {
  int rank = 0;
  LoggedMemoryKind kind = LoggedMemoryKind::kAllocated;
  int64_t bytes = 0;
};

// An allocation that failed. Zero: not stated.
struct OutOfMemory {
  int rank = kUnknownRank, device = kUnknownRank;
  int64_t requested = 0;    // rounded up by the allocator: to 2 MiB from 10 MiB on
  int64_t capacity = 0;     // of the card
  int64_t free = 0;         // on the card, by the driver
  int64_t process = 0;      // what this process has of the card
  int64_t allocated = 0;    // tensors
  int64_t unallocated = 0;  // reserved by PyTorch and in no tensor
  int64_t precision = 0;    // half a unit of the last digit of `requested`
  std::string where;        // last frame of the traceback before it: "functional.py:3059 cross_entropy"
};

// Blocks of one size and place that are alive in a snapshot.
struct LiveAllocation {
  int64_t bytes = 0;  // of one
  int64_t count = 0;
  std::string where;
};

// A progress bar: so many steps after so many seconds of its clock.
struct ProgressPoint {
  int64_t done = 0, total = 0;
  double elapsed_s = 0;
};

// Averages over the whole training, warm-up, evaluation and checkpoints included.
struct WholeRun {
  std::optional<double> seconds, steps_per_s, samples_per_s;
  std::optional<double> tokens_per_s;  // of one device, as the Trainer counts it
};

struct CardUse {
  int rank = 0;
  int64_t samples = 0;
  double mean_utilization = 0;  // share of time in which a kernel ran, 0-1; of the samples above 0
  int64_t capacity = 0;
  std::string name;
};

struct ForeignLog {
  std::vector<LogKind> kinds;  // of the files
  std::vector<LoggedStep> steps;
  std::vector<LoggedMemory> memory;  // one of each rank and kind
  std::vector<OutOfMemory> out_of_memory;
  std::vector<LiveAllocation> live;     // largest first
  std::vector<ProgressPoint> progress;  // of the longest bar
  std::vector<CardUse> cards;
  WholeRun whole;
  std::map<std::string, std::string> arguments;  // as the framework names them
  std::map<std::string, double> timers_ms;       // slowest rank, of one step; Megatron's timers
  int64_t allocator_retries = 0;                 // cached blocks were given back because nothing else was left
  int64_t inactive_bytes = 0;                    // of a snapshot: reserved, in no tensor
  int64_t inactive_blocks = 0;
  int64_t theoretical_states = 0;  // Megatron's own estimates; 0: not printed
  int64_t theoretical_activations = 0;
  int64_t capacity = 0;            // of a card, where the log says it
  int64_t cut_lines = 0;           // lines about a step that were no use
  std::vector<std::string> notes;  // what was found and not used

  // The largest figure of `kind`; 0: none.
  int64_t peak(LoggedMemoryKind kind) const;
  bool empty() const;
};

// Of a file's content; nothing when no reader knows it.
std::optional<LogKind> detect_log(std::string_view content);

// `name` stands for the file in errors. Without a kind it is detected. What is cut off or garbled is left out and
// counted, never an error by itself.
// Errors: a kind that is not known; content with nothing of that kind in it; a snapshot that is no plain data.
Result<ForeignLog> parse_foreign_log(std::string_view content, const std::string& name,
                                     std::optional<LogKind> kind = std::nullopt);
// The same, of a file. Errors: those, and of a file that cannot be read.
Result<ForeignLog> read_foreign_log(const std::filesystem::path& path, std::optional<LogKind> kind = std::nullopt);

// Adds what another file says of the same run.
void add_log(ForeignLog& log, ForeignLog other);

}  // namespace fivefold
