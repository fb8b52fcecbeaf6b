// Where a loss or gradient that is not finite comes from. The step is repeated without an update and every tensor that
// a unit hands on is looked at: the step itself pays nothing for it.
#pragma once

#include <string>
#include <vector>

#include "engine/session.h"

namespace fivefold {

// The first instruction, over all ranks, that produced a value that is not finite, for people: "first in the forward of
// layers.3, microbatch 0, on rank 1: its weight layers.3.down.weight is not finite". Equal on all ranks.
// Collective: every rank calls it after a step that no rank updated, with the microbatches of that step.
std::string explain_non_finite(RankSession& session, const std::vector<MicrobatchTokens>& microbatches);

}  // namespace fivefold
