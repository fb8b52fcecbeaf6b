// RopeTables: cosines and sines of one rotary geometry, fp32 [positions, rotary_dim / 2].
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensors.h"
#include "spec/model.h"

namespace fivefold {

struct RopeTables {
  at::Tensor cos, sin;
};

// Of each layer, for positions 0 .. positions - 1; layers with equal RoPE share tensors, a layer without has none.
std::vector<RopeTables> rope_tables(const ModelSpec& model, int64_t positions);

}  // namespace fivefold
