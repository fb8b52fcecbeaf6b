#include "spec/model_named.h"

#include <algorithm>
#include <cstdlib>

#include "base/installation.h"
#include "base/text.h"

namespace fivefold {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code code;
  return fs::is_directory(path, code);
}

}  // namespace

Result<fs::path> configs_folder() {
  if (const char* chosen = std::getenv("FIVEFOLD_CONFIGS"); chosen && *chosen) {
    if (is_folder(chosen)) return fs::path(chosen);
    return Error{"FIVEFOLD_CONFIGS", std::string(chosen) + " is no folder",
                 "the folder that holds models/, gpus/ and clusters/"};
  }
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (const fs::path installed = program.parent_path().parent_path() / "share" / "fivefold" / "configs";
      !code && is_folder(installed))
    return installed;
  if (const fs::path known = installation().configs; is_folder(known)) return known;
  return Error{"configs", "no folder of named models and hardware found", "set FIVEFOLD_CONFIGS to one"};
}

std::vector<std::string> list_named_configs(const std::string& subfolder, const std::string& extension) {
  std::vector<std::string> names;
  const Result<fs::path> folder = configs_folder();
  if (!folder.ok()) return names;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(*folder / subfolder, code))
    if (entry.path().extension() == extension) names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

Result<fs::path> find_named_config(const std::string& subfolder, const std::string& extension,
                                   const std::string& name) {
  FIVEFOLD_ASSIGN(const fs::path folder, configs_folder());
  const std::vector<std::string> known = list_named_configs(subfolder, extension);
  if (std::binary_search(known.begin(), known.end(), name)) return folder / subfolder / (name + extension);
  return Error{subfolder, "unknown name \"" + name + "\"", name_hint(name, known)};
}

Result<fs::path> find_named_model(const std::string& name) { return find_named_config("models", ".json", name); }

std::vector<std::string> list_named_models() { return list_named_configs("models", ".json"); }

}  // namespace fivefold
