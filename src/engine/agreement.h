// Agreement: texts that ranks exchange outside the training step: checkpoint tickets and receipts, failures.
// Collective: every member of the group calls the same function. Purpose kControl.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fivefold {

// The text of the group's first rank.
std::string broadcast_text(Communicator& communicator, const Group& group, const std::string& text);
// Every rank's text, in group order, on every rank.
std::vector<std::string> gather_texts(Communicator& communicator, const Group& group, const std::string& text);

}  // namespace fivefold
