// Compares what ranks hold as copies of each other: weights, and where they are replicated master weights and moments.
// A copy that differs is a bit that memory, a link or a processor flipped: training would go on and never agree again.
#pragma once

#include <optional>
#include <string>

#include "engine/session.h"

namespace fivefold {

// Nothing, or what differs and on which rank: "weights of layers.2 on rank 1 differ from those of rank 0, 2, 3". The
// copy that fewer ranks hold is the odd one; of two, that of the rank whose working weights are not those of the master
// weights that their owner holds, or both are named when there is no master copy. Equal on all ranks.
// Collective: every rank calls it between two steps. Reads all weights and optimizer states once.
std::optional<std::string> find_replica_difference(RankSession& session);

}  // namespace fivefold
