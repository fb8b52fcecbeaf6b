// doctor: from a symptom to an ordered checklist. Each step says what the numbers are and what follows; remedies are
// the run with one setting changed, predicted again. What it looks at and in which order: docs/doctor.md. Pure
// functions, thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/remedies.h"
#include "reconcile/framework_prediction.h"
#include "reconcile/reconcile.h"
#include "record/log_summary.h"

namespace fivefold {

enum class Symptom : uint8_t {
  kOutOfMemory,
  kSlow,     // low utilisation
  kScaling,  // less of each GPU the more there are
};
inline constexpr std::string_view kSymptomNames[] = {"oom", "slow", "scaling"};
constexpr std::string_view to_string(Symptom symptom) { return kSymptomNames[static_cast<size_t>(symptom)]; }

// What is known; any part may be missing.
struct DoctorCase {
  std::optional<FrameworkPrediction> prediction;
  std::optional<ForeignLog> log;
  int64_t request = 0, request_precision = 0;  // an allocation that failed
  int64_t unallocated = 0;                     // reserved by PyTorch and in no tensor
  int64_t vocabulary = 0;                      // where there is no configuration
  std::optional<double> tokens_per_s;          // measured, of one GPU
};

struct DoctorStep {
  std::string title, finding;
  std::string advice;  // may be empty
  bool cause = false;  // the numbers say that it is this
};

// The run with a setting changed.
struct FrameworkRemedy {
  std::string name;  // "cross-entropy in chunks"
  RunConfig config;
  std::vector<std::string> settings;  // KEY=VALUE for --set: in what `config` differs; empty: another framework has it
  std::string changes;                // of the result: "nothing", "rounding", "what is trained", "batch", "ranks"
  int64_t need = 0;
  bool fits = false;
  std::optional<double> speed;  // tokens/s of a GPU over those before, less 1
};

struct Diagnosis {
  Symptom symptom = Symptom::kOutOfMemory;
  std::string summary;
  std::vector<DoctorStep> steps;
  std::vector<FrameworkRemedy> remedies;    // in the order to try them
  std::optional<FrameworkRemedy> together;  // when none is enough alone: the first of them that are
  int64_t need = 0, capacity = 0;           // before; 0: no prediction
  std::vector<std::string> notes;
};

// What the case looks like when nobody says: a failed allocation, or slow.
Symptom likely_symptom(const DoctorCase& the_case);
// REQUIRES: a prediction, for kSlow and kScaling.
Diagnosis diagnose(const DoctorCase& the_case, Symptom symptom);

// Of a run of fivefold's own engine: its plan, the plan beside its record (nullptr: it has not run), and what would
// need less.
Diagnosis diagnose_own(const RunPlan& plan, const Reconciliation* record, const RemedyList& remedies, Symptom symptom);

std::string to_text(const Diagnosis& diagnosis);
// {"symptom", "summary", "steps": [{"title", "finding", "advice", "cause"}], "remedies": [{"remedy", "set", "changes",
// "need", "fits", "speed"}], "together", "need", "capacity", "notes"}
nlohmann::ordered_json to_json(const Diagnosis& diagnosis);

}  // namespace fivefold
