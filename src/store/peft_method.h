// Between a PEFT folder and the [method] of a run's configuration. Pure functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "spec/inventory.h"
#include "spec/run_config.h"
#include "store/peft_folder.h"

namespace fivefold {

// The settings under which a run has this adapter: "method.rank=4", "method.targets=q_proj,v_proj", ...
std::vector<std::string> method_settings(const PeftFolder& folder);

// Whether a run with this method, on a model with this inventory (adapters included), goes on with the folder's
// adapter: the same rank, scale and kind, and the same modules of the same sides. Dropout may differ: it is no part of
// what was trained. Errors name the folder and have the matching settings as hint.
Status check_peft_method(const PeftFolder& folder, const MethodConfig& method, const Inventory& inventory);

// What a folder says of an adapter that a run with this method trained, over a model with this inventory.
PeftConfig peft_config_of(const MethodConfig& method, const Inventory& inventory, const std::string& base_model);
// Its tensors in the order of the inventory, with the given type.
std::vector<TensorDeclaration> peft_tensors_of(const Inventory& inventory, DType dtype);

}  // namespace fivefold
