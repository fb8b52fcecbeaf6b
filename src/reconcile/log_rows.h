// A foreign log beside what is predicted of its run: rows as of reconcile.h, their bounds the profile's error on
// published runs, and causes where the numbers show one. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reconcile/framework_prediction.h"
#include "reconcile/reconcile.h"
#include "record/log_summary.h"

namespace fivefold {

Reconciliation reconcile_log(const FrameworkPrediction& prediction, const ForeignLog& log);

// Tokens/s of one GPU: as the log says, or from its step time and the configuration's batch.
std::optional<double> measured_tokens_per_s(const FrameworkPrediction& prediction, const LogSummary& summary);

// Another setting of the run under which its memory is as measured.
struct MemoryExplanation {
  std::string what;      // "cross-entropy: native_fused"
  int64_t bytes = 0;     // predicted with it
  bool assumed = false;  // nobody has said how this is set
};
// Nothing: no single setting explains it.
std::optional<MemoryExplanation> explain_memory(const FrameworkPrediction& prediction, LoggedMemoryKind kind,
                                                ReportedRank reported, int64_t measured);

// Settings that nobody has stated and under which the run would not fit, the one that needs least first; `bytes` is
// what it needs then. For a run that fits by its prediction and did not.
std::vector<MemoryExplanation> settings_that_do_not_fit(const FrameworkPrediction& prediction);
// Switches that nobody has set, with their values: "cross_entropy=te, dropout=off".
std::string assumed_switches(const FrameworkRun& run);

// What the links between nodes would have to be for the measured pace, if nothing else is slow.
struct LinkExplanation {
  double bytes_per_s = 0, stated_bytes_per_s = 0;  // per GPU and direction
};
// Nothing: one node only, no time, or not slower than predicted.
std::optional<LinkExplanation> explain_by_network(const FrameworkPrediction& prediction, double tokens_per_s);

// Below this share of its prediction a run has a fault, not a bad setting: of the published runs of more than 10 % MFU
// nearly none is there (docs/accuracy.md).
inline constexpr double kFaultyShare = 0.35;

}  // namespace fivefold
