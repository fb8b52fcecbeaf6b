#include <fmt/format.h>

#include "base/text.h"
#include "spec/run_config_io.h"
#include "spec/run_config_keys.h"

namespace fivefold {
namespace {

// The shortest text that reads back to the same number, and as a float.
std::string toml_float(double x) {
  const std::string text = fmt::format("{}", x);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// A setting as TOML.
struct Write {
  std::string operator()(const bool* x) const { return *x ? "true" : "false"; }
  std::string operator()(const int* x) const { return std::to_string(*x); }
  std::string operator()(const int64_t* x) const { return std::to_string(*x); }
  std::string operator()(const double* x) const { return toml_float(*x); }
  std::string operator()(const std::string* x) const { return toml_string(*x); }
  std::string operator()(const StringList* list) const {
    std::vector<std::string> elements;
    for (const std::string& element : *list) elements.push_back(toml_string(element));
    return fmt::format("[{}]", join(elements, ", "));
  }
  std::string operator()(const NumberPair* x) const {
    return fmt::format("[{}, {}]", toml_float((*x)[0]), toml_float((*x)[1]));
  }
  std::string operator()(const OptionalDType* x) const {
    return fmt::format("\"{}\"", *x ? to_string(**x) : std::string_view("auto"));
  }
  std::string operator()(const EnumRef& x) const { return fmt::format("\"{}\"", x.names[*x.index]); }
  std::string operator()(const SizeRef& x) const { return std::to_string(*x.bytes); }
  std::string operator()(const CountRef& x) const { return std::to_string(*x.count); }
  std::string operator()(const StagesRef& x) const {
    if (x.stages->cut != StageCut::kListed) return toml_string(kStageCutNames[static_cast<size_t>(x.stages->cut)]);
    std::vector<std::string> elements;
    for (const int64_t layers : x.stages->layers) elements.push_back(std::to_string(layers));
    return fmt::format("[{}]", join(elements, ", "));
  }
};

constexpr std::string_view kReferenceHead =
    R"(# The configuration file

One TOML file serves `fivefold plan`, `train` and `export`. A key that the file leaves out has its default.
`--set SECTION.KEY=VALUE` overrides the file, and the other flags of a command override `--set`; there, text needs no
quotes and a list no brackets: `--set optimizer.betas=0.9,0.99`. Unknown keys are errors. `run.steps` and `run.tokens`
answer one question in two ways, and so do `model.name` and `model.config`: the stronger source's key counts. Paths are
relative to the current folder. This page is made from the table of keys that the reader uses.

`plan` searches `tp`, `sp`, `cp`, `cp_kind`, `pp`, `vpp`, `schedule`, `zero` and `shard_size` of `[parallel]`, `micro` of
`[batch]`, `kind` and `every` of `[recompute]` and, on CPUs, `compute` of `[precision]`. Those that are set, to whatever
value, stay as they are. `parallel.dp` of a file only says how many ranks there are where `--gpus` does not; given by `--set`
it stays too.
)";

// As --set takes it.
std::string unquoted(const FieldRef& field) {
  if (const auto* text = std::get_if<std::string*>(&field)) return **text;
  if (const auto* list = std::get_if<StringList*>(&field)) return join(**list, ",");
  std::string text = setting_text(field);
  std::erase_if(text, [](char c) { return c == '"' || c == '[' || c == ']' || c == ' '; });
  return text;
}

}  // namespace

std::string toml_string(std::string_view text) {
  std::string toml = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') toml += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      toml += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    else
      toml += c;
  }
  return toml + "\"";
}

std::string setting_text(const FieldRef& field) { return std::visit(Write{}, field); }

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;  // the table of keys hands out mutable fields
  std::string text;
  for (const ConfigSection& section : config_sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const ConfigKey& key : config_keys())
      if (key.section == section.name) text += fmt::format("{} = {}\n", key.name, setting_text(key.field(copy)));
  }
  return text;
}

std::vector<std::string> config_changes(const RunConfig& from, const RunConfig& to) {
  RunConfig before = from, after = to;  // the table of keys hands out mutable fields
  std::vector<std::string> changes;
  for (const ConfigKey& key : config_keys()) {
    const FieldRef field = key.field(after);
    if (setting_text(field) != setting_text(key.field(before))) changes.push_back(key.path() + "=" + unquoted(field));
  }
  return changes;
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
                          setting_text(key.field(defaults)), key.doc);
    }
  }
  return text;
}

}  // namespace fivefold
