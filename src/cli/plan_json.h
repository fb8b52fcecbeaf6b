// JSON of plans and explanations, as other programs rely on it: sizes in bytes, times in seconds, shares from 0 to 1.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "planner/explanation.h"
#include "planner/search.h"

namespace fivefold {

enum class RankListing : uint8_t { kGrouped, kEach };  // ranks that are alike as one entry, or every rank

nlohmann::ordered_json accounts_json(const AccountBytes& bytes);
nlohmann::ordered_json parallel_json(const ParallelConfig& parallel);
nlohmann::ordered_json explanation_json(const ModelSpec& model, const Inventory& inventory,
                                        const Explanation& explanation, RankListing listing);
// One entry of "plans".
nlohmann::ordered_json candidate_json(const Candidate& plan, const HardwareSpec& hardware);

}  // namespace fivefold
