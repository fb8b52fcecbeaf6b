// The check that the pieces of a state tensor cover it exactly once. Internal to the store.
#pragma once

#include <string>

#include "base/result.h"
#include "store/manifest.h"

namespace fivefold {

// Orders the pieces as StateTensor keeps them. Errors (at `where`, with the block, the range and the file): a block of
// a tensor that is not 2-d or beyond its columns, pieces with a block beside pieces without, blocks that overlap or
// leave columns out, ranges that overlap, leave elements out or reach past the end. REQUIRES: shape was checked.
Status order_and_check_pieces(StateTensor& tensor, const std::string& where);

}  // namespace fivefold
