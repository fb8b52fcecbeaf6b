// The models that fivefold knows by name: config.json files in configs/models, each with its `_source`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace fivefold {

// The folder that holds models/, gpus/ and clusters/: FIVEFOLD_CONFIGS of the environment, ../share/fivefold/configs
// next to the program, or that of base/installation.h, whichever exists first. Errors: FIVEFOLD_CONFIGS is set and is
// no folder; none exists.
Result<std::filesystem::path> configs_folder();

// The file of a name in a sub-folder of the configs folder. Errors: unknown name, with the nearest known one.
Result<std::filesystem::path> find_named_config(const std::string& subfolder, const std::string& extension,
                                                const std::string& name);
// Every name there, sorted. Empty without a configs folder.
std::vector<std::string> list_named_configs(const std::string& subfolder, const std::string& extension);

// "llama-3.1-8b" -> .../configs/models/llama-3.1-8b.json, to be read by read_model_config.
Result<std::filesystem::path> find_named_model(const std::string& name);
std::vector<std::string> list_named_models();

}  // namespace fivefold
