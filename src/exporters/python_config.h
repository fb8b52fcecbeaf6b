// Reads a configuration written in Python, as far as it is calls with literal arguments: what torchtitan's
// configuration functions are. Nothing is run. Understood: `name = value`, `config.part.field = value`, `return value`
// at the top of a function or of the file; values that are literals, lists, tuples, dicts, names, products and sums of
// numbers, and calls, of which the arguments are kept. What is not understood becomes its own text. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "exporters/foreign_settings.h"

namespace fivefold {

struct PythonConfig {
  // What each function without arguments that nobody calls in the file returns: nested calls have dotted names
  // ("training.steps"), the call itself is the value of its own name ("activation_checkpoint" is "FullAC.Config"),
  // arguments without a name are numbered ("model_spec.0").
  std::map<std::string, ForeignSettings> functions;
  std::map<std::string, std::string> imports;  // name: module that it comes from
  ForeignSettings values;                      // of names assigned outside functions
};

// Errors ("FILE:LINE"): brackets or a text that do not end, nested too deeply.
Result<PythonConfig> read_python_config(std::string_view text, const std::string& where);

}  // namespace fivefold
