// What `import` prints of a configuration made from another framework's, and of the run that it is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "exporters/imported_run.h"
#include "exporters/neighbours.h"
#include "spec/hardware.h"

namespace fivefold {

// The run as it is planned, when it can be.
struct ImportedPlan {
  HardwareSpec hardware;
  std::optional<FrameworkRun> run;
  ProfileMemory memory;
  JudgedRun judged;
  std::vector<Neighbour> neighbours;
  std::optional<Error> refused;  // why it cannot be
};

ImportedPlan plan_imported(const Imported& imported, const HardwareSpec& hardware);

std::string imported_text(const Imported& imported, const std::string& file);
std::string imported_plan_text(const ImportedPlan& plan);
nlohmann::ordered_json imported_json(const Imported& imported, const std::optional<ImportedPlan>& plan);

}  // namespace fivefold
