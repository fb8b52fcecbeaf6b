// Weights with a low-rank adapter in them: of each matrix that an update names W + scale B A, with DoRA its rows scaled
// to the magnitudes, made in fp32 while the weights are read, so that generation runs the model without the adapter's
// operations. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/generate/parameter_source.h"
#include "engine/generate_request.h"

namespace fivefold {

// `inventory` is that of the model without adapters. Errors: an update of a tensor that the model does not have, or of
// other sides than it has. REQUIRES: magnitudes are as many as B has rows, or none.
Result<std::unique_ptr<ParameterSource>> add_updates(std::unique_ptr<ParameterSource> base,
                                                     const std::vector<LowRankUpdate>& updates,
                                                     const Inventory& inventory);

}  // namespace fivefold
