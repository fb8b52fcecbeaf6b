// Plans for the terminal and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/method_search.h"

namespace fivefold {

// Of the method that was asked for, or of the one that the search went on to, with why.
std::string plan_text(const MethodSearch& search);
nlohmann::ordered_json plan_json(const MethodSearch& search, double wall_seconds);

// One number of devices and one method of `plan --cards`; the rows of a number are neighbours, in order of the methods.
struct CardsRow {
  int cards = 0;
  MethodKind method = MethodKind::kFull;
  Result<SearchResult> result;
};
std::string cards_text(const SearchRequest& request, const std::vector<CardsRow>& rows);
nlohmann::ordered_json cards_json(const std::vector<CardsRow>& rows, const HardwareSpec& hardware);

}  // namespace fivefold
