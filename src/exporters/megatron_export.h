// What export to Megatron-LM is made of: the architecture's arguments apart from the run's.
#pragma once

#include "exporters/export_sheet.h"
#include "exporters/foreign_model.h"

namespace fivefold {

// --num-layers ... of a model; notes on `sheet` for what Megatron-LM does otherwise.
FlagGroup megatron_model_flags(const ModelShape& shape, const ExportedPlan& plan, ExportSheet& sheet);

}  // namespace fivefold
