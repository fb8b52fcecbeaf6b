// Parts of reading Megatron-LM's arguments: the model and the pipeline's stages.
#pragma once

#include <string>

#include "exporters/imported_run.h"

namespace fivefold {

// The model by its sizes, or the caller's; errors on `sheet`.
void read_megatron_model(ImportSheet& sheet, ForeignSettings& arguments, const std::string& where);
// vpp, the schedule and uneven stages. REQUIRES: parallel.pp is set, the model read.
void read_megatron_stages(ImportSheet& sheet, ForeignSettings& arguments);

}  // namespace fivefold
