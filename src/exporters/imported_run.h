// Imported: a configuration made from what somebody already has for another framework: a launch script or command line
// of Megatron-LM, TRL or transformers' Trainer, a configuration file of torchtitan, DeepSpeed, accelerate or axolotl.
// Nothing that was read is left out in silence: what the configuration does not hold is listed, apart by whether it
// bears on memory and time.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "exporters/export_sheet.h"
#include "exporters/foreign_model.h"
#include "exporters/foreign_settings.h"

namespace fivefold {

// What the text does not say and the caller knows.
struct ImportOptions {
  std::string model;                               // a name of fivefold's, a Hub repository, or a folder
  int64_t gpus = 0, sequence = 0, vocab = 0;       // 0: as the text says
  std::string function;                            // of a Python configuration: which of several
  std::map<std::string, std::string> environment;  // variables of a script
  // Text of a file that the text refers to, by its name there; nothing: it cannot be read.
  std::function<std::optional<std::string>(const std::string&)> read_file;
};

struct ImportNote {
  std::string name;  // a key of the configuration, or a setting of the framework
  std::string value;
  std::string why;
  std::string where;  // "run.sh:12"; empty: not from the text
};

struct Imported {
  ForeignTarget source{};
  RunConfig config;                 // [framework] included
  ModelSpec model;                  // without an adapter
  std::string model_json;           // config.json of a model that fivefold does not know by name
  std::vector<ImportNote> assumed;  // what the text leaves open
  std::vector<ImportNote> ignored;  // bears on neither memory nor time
  std::vector<ImportNote> unknown;  // may bear on them, and is not in the configuration
  std::vector<Error> errors;        // the configuration is not to be used
};

// The format of a text, from its name and content. Nothing: none that is known.
std::optional<ForeignTarget> detect_target(std::string_view text, const std::string& name);

// Errors are in the result; all that can be found are.
Imported import_run(ForeignTarget source, std::string_view text, const std::string& where,
                    const ImportOptions& options);

// What the importers of single frameworks share: where results go, and the questions that every one has to answer.
class ImportSheet {
 public:
  ImportSheet(ForeignTarget source, const ImportOptions& options) : options_(options) { run.source = source; }

  Imported run;

  const ImportOptions& options() const { return options_; }
  RunConfig& config() { return run.config; }
  void assume(std::string key, std::string value, std::string why) {
    run.assumed.push_back({std::move(key), std::move(value), std::move(why), ""});
  }
  void fail(std::string where, std::string problem, std::string hint = "") {
    run.errors.push_back({std::move(where), std::move(problem), std::move(hint)});
  }
  void unknown(const ForeignSetting& setting, std::string why) {
    run.unknown.push_back({setting.name, foreign_value_text(setting.value), std::move(why), setting.where});
  }
  void add_switch(std::string name, std::string_view value) {
    run.config.framework.switches.push_back(std::move(name) + "=" + std::string(value));
  }

  // A model by its repository or name; --model of the caller comes first.
  void find_named_model(const std::string& repository, const std::string& where);
  void take_model(FoundModel found);
  bool has_model() const { return !run.model.layers.empty(); }
  // dp from the ranks and the other axes; an error when they do not divide.
  void set_world(int64_t ranks, const std::string& where);
  // Settings that nobody asked for, apart by kind; the errors of the settings.
  void close(const ForeignSettings& settings);

 private:
  const ImportOptions& options_;
};

void import_megatron(ImportSheet& sheet, std::string_view text, const std::string& where);
void import_torchtitan(ImportSheet& sheet, std::string_view text, const std::string& where);
void import_deepspeed(ImportSheet& sheet, std::string_view text, const std::string& where);
void import_accelerate(ImportSheet& sheet, std::string_view text, const std::string& where);
void import_trl(ImportSheet& sheet, std::string_view text, const std::string& where);
void import_axolotl(ImportSheet& sheet, std::string_view text, const std::string& where);

}  // namespace fivefold
