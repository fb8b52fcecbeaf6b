// Validation: published runs with what the profiles predict of them, and the scores by source. Which rows count and how
// figures are read: docs/formats/published-runs.md. Pure functions, thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/published/published_run.h"
#include "planner/published/score.h"
#include "spec/hardware.h"

namespace fivefold {

struct ValidatedRow {
  std::string id, source, where;
  std::string skipped;         // why nothing is predicted; empty: something is
  int64_t predicted_peak = 0;  // bytes; 0 when skipped
  int64_t measured_peak = 0;   // bytes; 0 when the row has no figure
  std::string trust;           // in the figure: "A", "B", "C" or nothing
  bool experts = false;
  bool held_out = false;               // of the half of the model and layout classes that constants are not fitted on
  std::optional<bool> ran;             // the outcome, where the row states one
  std::optional<bool> predicted_fits;  // where the GPU's capacity is known
  std::vector<std::string> assumed;    // switches that the row leaves open
  std::string group;                   // runs that compete: source, model and number of GPUs
  bool states_time = false;            // a throughput, the time of a step or an MFU
  std::string time_skipped;            // why no time is predicted; empty: one is
  double predicted_tokens_per_s = 0, measured_tokens_per_s = 0;  // of one GPU; 0: none
  std::string time_trust;
  double mfu = 0;       // as the source counts it; 0: it does not say
  bool anchor = false;  // the run that its like were scaled by; in no score of throughput

  bool excluded() const { return trust == "excluded"; }
  // There is something to hold a prediction against.
  bool can_be_scored() const { return !excluded() && (measured_peak > 0 || ran.has_value()); }
  // Its memory is in the score of its source: trust A or B.
  bool memory_scored() const { return skipped.empty() && measured_peak > 0 && (trust == "A" || trust == "B"); }
  // 100 (predicted / measured - 1). REQUIRES: both.
  double memory_error_pct() const;
  // The same of throughput, for trust A or B.
  bool time_scored() const {
    return !excluded() && !anchor && predicted_tokens_per_s > 0 && measured_tokens_per_s > 0 &&
           (time_trust == "A" || time_trust == "B");
  }
  double time_error_pct() const { return 100 * (predicted_tokens_per_s / measured_tokens_per_s - 1); }
};

// A part of a source whose errors differ in kind.
struct PartScore {
  std::string part;  // "dense, 4 GiB or more"
  ErrorScore memory;
};

// Throughput of the runs whose source says an MFU of this or more.
struct BusyScore {
  double least_mfu = 0;
  ErrorScore throughput;
  OrderScore order;
};

struct SourceScore {
  std::string source;
  int rows = 0, measured = 0, skipped = 0;  // skipped: of those that could be scored (`measured`)
  std::map<std::string, int> reasons;       // of the skipped
  ErrorScore memory;
  std::vector<PartScore> parts;  // empty when all rows are of one
  ErrorScore fitted, held_out;   // the two halves of `memory`
  ErrorScore looked_at;          // rows of trust C, in no other score
  FitScore fit;
  ErrorScore throughput;
  std::vector<BusyScore> busy;  // an MFU of 10 %, of 20 % or more, where that is not all rows
  ErrorScore throughput_fitted, throughput_held_out;
  OrderScore order;
  int time_measured = 0, time_skipped = 0;  // rows with a figure of trust A or B, and those of them left out
  std::map<std::string, int> time_reasons;

  double skipped_share() const { return measured > 0 ? static_cast<double>(skipped) / measured : 0.0; }
};

struct Validation {
  std::vector<SourceScore> sources;  // in the order in which the rows name them
  std::vector<ValidatedRow> rows;
};

// A cluster, or a GPU (name of its file in configs/gpus) in nodes and a network that it usually has; null: not known.
using HardwareOf = std::function<const HardwareSpec*(const std::string& gpu)>;

// Half of the classes (source, model, method, GPUs, layout, recompute, precision) that a row belongs to: constants are
// fitted on the one and looked at on the other. By a hash, so that rows that are added later change nothing.
bool is_held_out(const PublishedRun& run);

// Rows with one id are one run: the first counts, and takes from the others what it leaves open.
std::vector<PublishedRun> merged_runs(std::vector<PublishedRun> runs);
// `anchored`: of each source's runs of one model on one kind of GPU the fastest is taken as known, and the predicted
// throughput of the others scaled by what it is off there.
Validation validate_runs(const std::vector<PublishedRun>& runs, const HardwareOf& hardware_of, bool anchored = false);

}  // namespace fivefold
