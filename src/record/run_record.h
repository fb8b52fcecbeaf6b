// The run record: what each rank of a training run writes down, one JSON object a line, in
// runs/NAME/record/rank-N.jsonl. Here: the lines as plain data, and the record as it is read back. Writing:
// record_writer.h, reading: record_reader.h. Keys and units on disk: docs/formats/run-record.md.
// Sizes are bytes, times seconds; times named `_s` without "seconds" count from the session's start (RunStart).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/account_bytes.h"
#include "spec/rank_grid.h"

namespace fivefold {

inline constexpr int kRunRecordVersion = 1;

// ---- Lines ----

// First line of a session: a run that is resumed has one each time it starts.
struct RunStart {
  std::string fivefold_version;
  int rank = 0, world = 1;
  Coordinates coordinates;
  std::string configuration;            // TOML, defaults filled in
  std::string model_config;             // config.json of the model, as text
  std::string schedule;                 // text of the pipeline's schedule when it came from a file; else empty
  int64_t parameters = 0;               // of the whole model
  int64_t embedding_parameters = 0;     // of them looked up only: the tables of tokens and positions
  int threads = 1;                      // of the rank
  std::string instruction_set;          // that the kernels chose
  double started_at = 0;                // Unix time at which this rank's session started
  std::optional<int64_t> resumed_from;  // steps done before
};

// An instruction of the step's Program, by name.
struct RecordedInstruction {
  std::string op;       // to_string(Opcode)
  std::string unit;     // "layers.3"; empty: none
  int microbatch = -1;  // -1: none
  bool operator==(const RecordedInstruction&) const = default;
};

struct ProgramRecord {
  std::vector<RecordedInstruction> instructions;
};

// When an instruction of the program ran, from the begin of its step.
struct RecordedTime {
  double begin_s = 0, end_s = 0;
  double cpu_s = 0;  // of the calling thread
  bool operator==(const RecordedTime&) const = default;
};

struct RecordedTraffic {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  GroupKind group = GroupKind::kWorld;
  Purpose purpose = Purpose::kControl;
  int64_t calls = 0;
  int64_t bytes = 0;  // sent by this rank
  bool operator==(const RecordedTraffic&) const = default;
};

// One collective that ended within a step, from the begin of the step: before it, so negative, where the step before
// left it under way. A batch of sends and receives is one call.
struct RecordedCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  GroupKind group = GroupKind::kWorld;
  Purpose purpose = Purpose::kControl;
  int64_t bytes = 0;              // of the buffer handed over
  double begin_s = 0, end_s = 0;  // of its execution, waiting for peers included
  double exposed_s = 0;           // of it: the rank's thread waited in the communicator, for whatever call
  bool operator==(const RecordedCall&) const = default;
};

struct StepRecord {
  int64_t step = 0;      // from 1
  double loss = 0;       // may be NaN or infinite, as the gradient norm
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double loss_scale = 0;                 // fp16: that the step used; 0: none
  int64_t tokens = 0, valid_tokens = 0;  // of the global batch; valid: not ignored by the loss
  int64_t samples_consumed = 0;          // of the run, this step included
  bool updated = true;                   // false: the weights stayed as they were
  double begin_s = 0;
  double seconds = 0;  // wall time of the program on this rank
  // Memory since the line before: live at the end, peaks (per account, each at its own moment), their largest sum and
  // the accounts at that moment.
  AccountBytes live, peak, at_peak;
  int64_t peak_total = 0;
  std::vector<RecordedTraffic> traffic;                          // of this step; no rows without calls
  std::array<double, kNumCollectiveKinds> collective_seconds{};  // waiting for peers included
  std::vector<RecordedTime> times;                               // one per instruction, or empty
  std::vector<RecordedCall> calls;                               // in order of execution, or empty
  bool operator==(const StepRecord&) const = default;
};

struct EvaluationRecord {
  int64_t step = 0;  // steps done before
  double loss = 0;
  int64_t tokens = 0;
  double begin_s = 0, seconds = 0;
  bool operator==(const EvaluationRecord&) const = default;
};

struct CheckpointRecord {
  int64_t step = 0;
  double begin_s = 0;
  double seconds = 0;  // for which training stood still
  int64_t bytes = 0;   // written by this rank
  std::string path;
  bool operator==(const CheckpointRecord&) const = default;
};

// Resident memory of the process, written by its first rank.
struct ProcessRecord {
  int64_t rss_idle = 0;          // libraries loaded, nothing allocated yet
  int64_t rss_before_model = 0;  // data open, ranks started
  int64_t rss_peak = 0;
  int ranks = 1;  // in the process
  bool operator==(const ProcessRecord&) const = default;
};

enum class EventKind : uint8_t {
  kSkippedStep,  // no valid tokens, or in fp16 a gradient that overflowed
  kNonFinite,    // loss or gradient norm NaN or infinite
  kLossSpike,
  kStopRequested,      // signal
  kFailed,             // an exception ended the rank
  kReplicaDifference,  // copies that ranks hold of weights or states are not equal
  kLossScaleLow,       // fp16: gradients overflow without any scale
};
inline constexpr int kNumEventKinds = 7;
std::string_view to_string(EventKind);
std::optional<EventKind> parse_event_kind(std::string_view);

struct EventRecord {
  EventKind kind = EventKind::kSkippedStep;
  int64_t step = 0;
  double begin_s = 0;
  std::string text;  // for people
  bool operator==(const EventRecord&) const = default;
};

// Last line of a session that ended by itself; a killed one has none.
struct SummaryRecord {
  int64_t steps = 0;     // done in all
  int64_t tokens = 0;    // of this session
  double seconds = 0;    // of this session, start to end
  bool finished = true;  // false: stopped before the configured number of steps
  bool operator==(const SummaryRecord&) const = default;
};

// ---- The record as read ----

struct RecordedSession {
  RunStart start;
  std::vector<RecordedInstruction> program;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<CheckpointRecord> checkpoints;
  std::vector<ProcessRecord> processes;
  std::vector<EventRecord> events;
  std::optional<SummaryRecord> summary;
};

// The last moment that a session's lines tell of, in seconds from its start.
double last_moment_s(const RecordedSession& session);

struct RankRecord {
  int rank = 0;
  std::vector<RecordedSession> sessions;  // in order, at least one
  bool cut = false;                       // its last line is incomplete: the rank was killed while it wrote
};

struct RunRecord {
  std::vector<RankRecord> ranks;  // of the last session: by rank, from 0, all there
};

}  // namespace fivefold
