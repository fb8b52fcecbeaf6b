// Weights between Hub tensors and packed parameters. Pure functions, thread-safe.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "engine/engine_api.h"
#include "engine/executor.h"
#include "store/hub_folder.h"
#include "store/peft_folder.h"

namespace fivefold {

// The adapter that a run starts from. Errors: those of PeftFolder::open and check_peft_method.
Result<PeftFolder> open_adapter(const MethodConfig& method, const Inventory& inventory);
Status load_adapter_weights(const PeftFolder& folder, const Inventory& inventory, TrainingExecutor& executor);

// Fills the executor's parameters from a Hub folder, adapters left out; every rank calls it and keeps its part.
// Errors name the file and tensor: missing, other shape, a dtype that is not a floating point one.
Status load_hub_weights(const HubFolder& folder, const Inventory& inventory, TrainingExecutor& executor);

// One parameter in full, as fp32. REQUIRES: packed.size() is the entry's whole_numel(). Errors: as above.
Status read_hub_parameter(const HubFolder& folder, const ParameterEntry& entry, std::span<float> packed);

// Whether the folder holds every tensor of the inventory in the right shape: what load_hub_weights would say, before
// any rank starts.
Status check_hub_weights(const HubFolder& folder, const Inventory& inventory);

// Cuts a packed parameter's values [rows, cols] into its Hub tensors, transposed where the disk has them so.
std::vector<NamedTensor> to_hub_tensors(const ParameterEntry& entry, std::span<const float> values);

}  // namespace fivefold
