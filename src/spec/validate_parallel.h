// The part of validate_layout() about the splits of the model: which heads, widths, layers and experts the degrees
// divide.
#pragma once

#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

void check_tensor_parallel(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors);
void check_context_parallel(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors);
void check_pipeline(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors);
void check_experts(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors);

}  // namespace fivefold
