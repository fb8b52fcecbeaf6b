// Exported: a run's configuration as the files of another framework. What the files cannot say is listed with the
// reason and what comes nearest; a key is never left out in silence: ExportSheet knows every key of the configuration,
// and whatever an exporter neither says nor explains is listed as having no counterpart.
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

enum class ForeignTarget : uint8_t { kMegatron, kTorchtitan, kDeepspeed, kAccelerate, kTrl, kAxolotl };
inline constexpr std::string_view kForeignTargetNames[] = {"megatron",   "torchtitan", "deepspeed",
                                                           "accelerate", "trl",        "axolotl"};
inline constexpr int kNumForeignTargets = 6;
constexpr std::string_view to_string(ForeignTarget target) { return kForeignTargetNames[static_cast<size_t>(target)]; }
// The releases whose arguments the files were checked against: "Megatron-LM 0.20".
std::string_view target_release(ForeignTarget target);

struct ExportedFile {
  std::string name;
  std::string text;
};

struct ExportNote {
  std::string key;      // "parallel.zero"
  std::string value;    // as in the configuration
  std::string why;      // what the target does not have
  std::string nearest;  // what the files say instead; empty: nothing
};

struct Exported {
  ForeignTarget target{};
  std::vector<ExportedFile> files;
  std::vector<ExportNote> notes;
};

// What an exporter starts from.
struct ExportedPlan {
  ModelSpec model;
  RunConfig config;                   // batch.global, run.steps and lr.decay_steps filled in
  std::vector<int64_t> chunk_layers;  // of the pp x vpp virtual stages in model order
  std::string repository;             // on the Hub, or a folder: "meta-llama/Llama-3.1-8B"; empty: none
  int64_t ranks_per_machine = 8;      // GPUs of a machine

  int64_t microbatches() const;  // of a replica's step
  int64_t world() const;
  int64_t machines() const;
  int64_t ranks_on_machine() const;  // of a job with fewer ranks than a machine has
};

// Files for `target` that say what `config` says. Errors: the layout is not legal for the model (all problems in one),
// or the target has nothing of the model's kind.
Result<Exported> export_run(ForeignTarget target, const ModelSpec& model, const RunConfig& config,
                            int64_t ranks_per_machine);

class ExportSheet {
 public:
  explicit ExportSheet(const RunConfig& config) : config_(config) {}

  // The files say these keys exactly.
  void says(std::initializer_list<std::string_view> keys);
  // The files do not say `key` as it is. A key that is said and explained is explained.
  void cannot(std::string_view key, std::string why, std::string nearest = "");
  // The notes, those of keys that nobody mentioned and that are not at their default included.
  std::vector<ExportNote> notes() const;

 private:
  const RunConfig& config_;
  std::set<std::string, std::less<>> said_;
  std::vector<ExportNote> notes_;
};

// Switches of [framework], each taken by the exporter that can say it.
class SwitchSheet {
 public:
  explicit SwitchSheet(const RunConfig& config) : left_(config.framework.switches) {}
  // The value of a switch that somebody set, which is then said; empty: not set.
  std::string take(std::string_view name);
  // On the sheet: framework.switches is said, or those that are left are not.
  void close(ExportSheet& sheet) const;

 private:
  std::vector<std::string> left_;
};

// Flags in the order of a command line, written as arrays of a bash script.
class FlagGroup {
 public:
  explicit FlagGroup(std::string name) : name_(std::move(name)) {}
  void flag(std::string_view name) { lines_.push_back("--" + std::string(name)); }
  void add(std::string_view name, std::string_view value);
  void add(std::string_view name, const char* value) { add(name, std::string_view(value)); }
  void add(std::string_view name, const std::string& value) { add(name, std::string_view(value)); }
  void add(std::string_view name, int64_t value) { add(name, std::to_string(value)); }
  void add(std::string_view name, double value);
  // A flag of several values, quoted by the caller.
  void words(std::string_view name, const std::string& values) {
    lines_.push_back("--" + std::string(name) + " " + values);
  }
  const std::string& name() const { return name_; }
  std::string array() const;  // "NAME=(\n    --flag value\n ...)\n"
  bool empty() const { return lines_.empty(); }

 private:
  std::string name_;
  std::vector<std::string> lines_;
};

// A word as bash reads it back.
std::string shell_quoted(std::string_view word);
// To 12 digits, so that a product that was written and a quotient that is read give 0.1 again.
double rounded(double value);
// The shortest text that reads back as the same double: "0.0003".
std::string exact_number(double value);

// One exporter a target: files and notes for a legal, resolved plan.
Result<Exported> export_megatron(const ExportedPlan& plan);
Result<Exported> export_torchtitan(const ExportedPlan& plan);
Result<Exported> export_deepspeed(const ExportedPlan& plan);
Result<Exported> export_accelerate(const ExportedPlan& plan);
Result<Exported> export_trl(const ExportedPlan& plan);
Result<Exported> export_axolotl(const ExportedPlan& plan);

}  // namespace fivefold
