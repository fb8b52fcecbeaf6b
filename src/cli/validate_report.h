// What `validate` prints: scores by source as tables, or everything as JSON (keys that others rely on).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/published/validation.h"

namespace fivefold {

// `worst`: rows of each source to list, those with the largest errors first.
std::string validation_text(const Validation& validation, size_t worst);
nlohmann::ordered_json validation_json(const Validation& validation);

}  // namespace fivefold
