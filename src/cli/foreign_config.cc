#include "cli/foreign_config.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/mapped_file.h"
#include "base/text.h"
#include "exporters/imported_run.h"

namespace fivefold {
namespace {

// Arguments whose names in the log are not those of the command line: set when they are false, or called otherwise.
constexpr std::pair<std::string_view, std::string_view> kNegated[] = {
    {"add_bias_linear", "disable-bias-linear"}, {"gradient_accumulation_fusion", "no-gradient-accumulation-fusion"}};
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {{"fp8", "fp8-format"}};

// "['p2p', 1]" as words; one word of anything else. An enumerator, "AttnBackend.auto", as its name.
std::vector<std::string> words_of(const std::string& value) {
  if (!value.starts_with("[")) {
    const size_t point = value.find('.');
    const bool enumerator = point != std::string::npos && point + 1 < value.size() &&
                            std::isupper(static_cast<unsigned char>(value[0])) != 0 &&
                            std::isalpha(static_cast<unsigned char>(value[point + 1])) != 0;
    return {enumerator ? value.substr(point + 1) : value};
  }
  std::vector<std::string> words;
  for (std::string word : split(value, ',')) {
    std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '\'' || c == '"' || c == ' '; });
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

template <size_t n>
std::optional<std::string> named(const std::pair<std::string_view, std::string_view> (&names)[n],
                                 const std::string& name) {
  for (const auto& [from, to] : names)
    if (name == from) return std::string(to);
  return std::nullopt;
}

std::string command_of(const std::map<std::string, std::string>& arguments) {
  std::string command = "python pretrain_gpt.py";
  for (const auto& [name, value] : arguments) {
    if (const auto flag = named(kNegated, name)) {
      if (value == "False") command += " --" + *flag;
    } else if (value == "True") {
      command += " --" + name;
    } else if (!value.empty() && value != "None" && value != "False") {
      const std::vector<std::string> words = words_of(value);
      if (words.empty()) continue;
      command += " --" + named(kRenamed, name).value_or(name);
      for (const std::string& word : words) command += " " + shell_quoted(word);
    }
  }
  return command + "\n";
}

std::optional<ForeignConfig> taken(Imported imported, const std::string& from, std::vector<Error>& errors) {
  if (!imported.errors.empty()) {
    errors.insert(errors.end(), imported.errors.begin(), imported.errors.end());
    return std::nullopt;
  }
  ForeignConfig found{.config = std::move(imported.config), .model = std::move(imported.model), .notes = {}};
  for (const ImportNote& note : imported.assumed)
    found.notes.push_back(from + " leaves open " + note.name + ": " + note.value +
                          (note.why.empty() ? "" : " (" + note.why + ")"));
  return found;
}

}  // namespace

bool is_foreign_config(const std::filesystem::path& file) {
  return file.extension() != ".toml" && std::filesystem::is_regular_file(file);
}

std::optional<ForeignConfig> config_of_file(const std::filesystem::path& file, int64_t gpus,
                                            std::vector<Error>& errors) {
  const Result<MappedFile> mapped = MappedFile::open(file);
  if (!mapped.ok()) {
    errors.push_back(mapped.error());
    return std::nullopt;
  }
  const auto source = detect_target(mapped->text(), file.string());
  if (!source) {
    errors.push_back({file.string(), "is neither a configuration (TOML) nor a launch script that is known",
                      "fivefold import FILE --out run.toml says what is missing"});
    return std::nullopt;
  }
  ImportOptions options{.gpus = gpus};
  options.read_file = [folder = file.parent_path()](const std::string& name) -> std::optional<std::string> {
    const Result<MappedFile> other = MappedFile::open(folder / name);
    return other.ok() ? std::optional(std::string(other->text())) : std::nullopt;
  };
  return taken(import_run(*source, mapped->text(), file.string(), options), file.string(), errors);
}

bool has_arguments(const ForeignLog& log) {
  return std::ranges::all_of(std::initializer_list<const char*>{"num_layers", "hidden_size", "micro_batch_size",
                                                                "tensor_model_parallel_size", "world_size"},
                             [&](const char* name) { return log.arguments.contains(name); });
}

std::optional<ForeignConfig> config_of_arguments(const ForeignLog& log, std::vector<Error>& errors) {
  ImportOptions options;
  options.gpus = std::strtoll(log.arguments.at("world_size").c_str(), nullptr, 10);
  return taken(import_run(ForeignTarget::kMegatron, command_of(log.arguments), "the log's arguments", options),
               "the log", errors);
}

}  // namespace fivefold
