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

  bool excluded() const { return trust == "excluded"; }
  // There is something to hold a prediction against.
  bool can_be_scored() const { return !excluded() && (measured_peak > 0 || ran.has_value()); }
  // Its memory is in the score of its source: trust A or B.
  bool memory_scored() const { return skipped.empty() && measured_peak > 0 && (trust == "A" || trust == "B"); }
  // 100 (predicted / measured - 1). REQUIRES: both.
  double memory_error_pct() const;
};

// A part of a source whose errors differ in kind.
struct PartScore {
  std::string part;  // "dense, 4 GiB or more"
  ErrorScore memory;
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

  double skipped_share() const { return measured > 0 ? static_cast<double>(skipped) / measured : 0.0; }
};

struct Validation {
  std::vector<SourceScore> sources;  // in the order in which the rows name them
  std::vector<ValidatedRow> rows;
};

// What a GPU (name of its file in configs/gpus) can allocate at most; 0: not known.
using CapacityOf = std::function<int64_t(const std::string& gpu)>;

// Half of the classes (source, model, method, GPUs, layout, recompute, precision) that a row belongs to: constants are
// fitted on the one and looked at on the other. By a hash, so that rows that are added later change nothing.
bool is_held_out(const PublishedRun& run);

// Rows with one id are one run: the first counts, and takes from the others what it leaves open.
std::vector<PublishedRun> merged_runs(std::vector<PublishedRun> runs);
Validation validate_runs(const std::vector<PublishedRun>& runs, const CapacityOf& capacity_of);

}  // namespace fivefold
