// The settings of a torchtitan run, from its Python or TOML file or from the script that names one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "exporters/foreign_settings.h"
#include "exporters/imported_run.h"

namespace fivefold {

struct TitanFiles {
  ForeignSettings settings;
  std::string where, module;  // torchtitan.models.MODULE
  bool python = false;
  std::optional<int64_t> ranks;
};

// Errors are on `sheet`.
TitanFiles read_titan_files(ImportSheet& sheet, std::string_view text, const std::string& where);
// Optimizer, learning rate and length of the run.
void read_titan_training(ImportSheet& sheet, ForeignSettings& settings);

}  // namespace fivefold
