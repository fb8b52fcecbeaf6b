// One generation in this process: loads the weights, reads the prompt, makes token after token.
#pragma once

#include "base/result.h"
#include "engine/generate_request.h"

namespace fivefold {

// See EngineApi::generate.
Result<GenerateResult> run_generation(const GenerateRequest& request);

}  // namespace fivefold
