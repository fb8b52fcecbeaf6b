#include <fmt/format.h>
#include <toml++/toml.h>

#include <sstream>

#include "base/text.h"
#include "spec/run_config_io.h"
#include "spec/run_config_keys.h"

namespace fivefold {
namespace {

template <typename Value>
std::string toml_text(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// A setting as TOML.
struct Write {
  std::string operator()(const bool* x) const { return *x ? "true" : "false"; }
  std::string operator()(const int* x) const { return std::to_string(*x); }
  std::string operator()(const int64_t* x) const { return std::to_string(*x); }
  std::string operator()(const double* x) const { return toml_text(toml::value<double>(*x)); }
  std::string operator()(const std::string* x) const { return toml_text(toml::value<std::string>(*x)); }
  std::string operator()(const StringList* list) const {
    std::vector<std::string> elements;
    for (const std::string& element : *list) elements.push_back((*this)(&element));
    return fmt::format("[{}]", join(elements, ", "));
  }
  std::string operator()(const NumberPair* x) const {
    return fmt::format("[{}, {}]", (*this)(&(*x)[0]), (*this)(&(*x)[1]));
  }
  std::string operator()(const OptionalDType* x) const {
    return fmt::format("\"{}\"", *x ? to_string(**x) : std::string_view("auto"));
  }
  std::string operator()(const EnumRef& x) const { return fmt::format("\"{}\"", x.names[*x.index]); }
  std::string operator()(const SizeRef& x) const { return std::to_string(*x.bytes); }
  std::string operator()(const CountRef& x) const { return std::to_string(*x.count); }
};

constexpr std::string_view kReferenceHead =
    "# The configuration file\n"
    "\n"
    "One TOML file serves `fivefold plan`, `train` and `export`. A key that the file leaves out has its default. "
    "`--set SECTION.KEY=VALUE` overrides the file, and the other flags of a command override `--set`; text needs no "
    "quotes "
    "there and lists no brackets (`--set optimizer.betas=0.9,0.99`). Unknown keys are errors. `run.steps` and "
    "`run.tokens`, "
    "and `model.name` and `model.config`, answer the same question: the stronger source's counts. Paths are relative "
    "to the "
    "current folder.\n";

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;  // the table of keys hands out mutable fields
  std::string text;
  for (const ConfigSection& section : config_sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const ConfigKey& key : config_keys())
      if (key.section == section.name) text += fmt::format("{} = {}\n", key.name, std::visit(Write{}, key.field(copy)));
  }
  return text;
}

std::string config_reference() {
  RunConfig defaults;
  std::string text(kReferenceHead);
  for (const ConfigSection& section : config_sections()) {
    text += fmt::format("\n## [{}]\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section.name,
                        section.doc);
    for (const ConfigKey& key : config_keys()) {
      if (key.section != section.name) continue;
      text += fmt::format("| `{}` | {} | `{}` | {} |\n", key.name, expected_value(key),
                          std::visit(Write{}, key.field(defaults)), key.doc);
    }
  }
  return text;
}

}  // namespace fivefold
