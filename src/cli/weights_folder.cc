#include "cli/weights_folder.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/nesting.h"
#include "cli/common_options.h"
#include "spec/run_config_io.h"
#include "store/hub_folder.h"

namespace fivefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHint =
    "give a folder with config.json and model.safetensors, a checkpoint, or a run (runs/NAME)";

// "eos_token_id" of a JSON file, which may be a number, a list or not there; so may the file.
Status add_stop_ids(const fs::path& path, std::vector<int32_t>& ids) {
  if (!fs::exists(path)) return Ok{};
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Error{path.string(), "cannot be read", ""};
  FIVEFOLD_TRY(check_json_nesting(text.str(), path.string()));
  const nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error{path.string(), "is not a JSON object", ""};
  const nlohmann::json given = json.value("eos_token_id", nlohmann::json());
  if (given.is_null()) return Ok{};
  for (const nlohmann::json& id : given.is_array() ? given : nlohmann::json::array({given})) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    if (!fits) return Error{path.string() + ": eos_token_id", "is " + given.dump(), "use a token id or a list of them"};
    ids.push_back(id.get<int32_t>());
  }
  return Ok{};
}

Result<ModelSpec> named_model(const std::string& name) {
  ModelConfig config;
  (fs::exists(name) ? config.config : config.name) = name;
  return load_model(config);
}

Result<WeightsFolder> hub_folder(const fs::path& path, const std::string& model) {
  WeightsFolder found;
  found.weights = path;
  if (model.empty() && !fs::exists(path / "config.json"))
    return Error{path.string(), "has no config.json", "name the model with --model"};
  FIVEFOLD_ASSIGN(found.model, model.empty() ? read_model_config(path / "config.json") : named_model(model));
  if (fs::exists(path / "tokenizer.json")) found.tokenizer = path.string();
  FIVEFOLD_TRY(add_stop_ids(path / "config.json", found.stop_ids));
  FIVEFOLD_TRY(add_stop_ids(path / "generation_config.json", found.stop_ids));
  return found;
}

Result<WeightsFolder> checkpoint_folder(const fs::path& path, const std::string& model) {
  // A run's directory stands for its checkpoints.
  const fs::path root = fs::is_directory(path / "checkpoints") ? path / "checkpoints" : path;
  FIVEFOLD_ASSIGN(const CheckpointReader reader, CheckpointReader::open(root));
  WeightsFolder found;
  found.weights = reader.folder();
  found.note = reader.fallback_reason();
  FIVEFOLD_ASSIGN(found.model, model.empty() ? model_of(reader) : named_model(model));
  const LoadedConfig run = parse_config(reader.run().configuration, reader.folder().string() + " (configuration)");
  if (!run.errors.empty()) return run.errors.front();
  if (run.config.method.kind != MethodKind::kFull)
    return Error{path.string(), "holds an adapter, not the weights that it adapts",
                 "merge it first: `fivefold convert RUN FOLDER --merge --base BASE`"};
  found.tokenizer = run.config.data.tokenizer;
  return found;
}

}  // namespace

Result<WeightsFolder> find_weights(const fs::path& path, const std::string& model) {
  if (!fs::is_directory(path)) return Error{path.string(), "is not a folder", kHint};
  if (fs::exists(path / kHubModelFile) || fs::exists(path / kHubIndexFile)) return hub_folder(path, model);
  if (!fs::is_directory(path / "checkpoints") && !fs::exists(path / "manifest.json") && list_checkpoints(path).empty())
    return Error{path.string(), "holds no weights", kHint};
  return checkpoint_folder(path, model);
}

Result<ModelSpec> model_of(const CheckpointReader& checkpoint) {
  const LoadedConfig loaded =
      parse_config(checkpoint.run().configuration, checkpoint.folder().string() + " (configuration)");
  if (!loaded.errors.empty()) return loaded.errors.front();
  // A run keeps its model's config.json beside its checkpoints.
  const fs::path beside = checkpoint.folder().parent_path().parent_path() / "config.json";
  if (fs::exists(beside)) return read_model_config(beside);
  return load_model(loaded.config.model);
}

}  // namespace fivefold
