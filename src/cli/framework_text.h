// Plans and explanations of runs in other frameworks, for the terminal and as JSON. Pure functions but for colours.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/profiles/framework_search.h"
#include "spec/run_config.h"

namespace fivefold {

// What was searched, and for whom: `base` is what of the configuration the plan keeps.
struct FrameworkAnswer {
  FrameworkRequest request;
  FrameworkResult result;
  RunConfig base;
  double tokens = 0;                       // that are to be trained on; 0: not said
  std::optional<FrameworkPlan> with_more;  // when nothing fits: on the fewest GPUs of twice, four times, ... as many
  std::vector<std::string> assumed;        // what the answer took for granted beside switches
};

std::string framework_plan_text(const FrameworkAnswer& answer);
nlohmann::ordered_json framework_plan_json(const FrameworkAnswer& answer, double wall_seconds);

// One number of GPUs and one method of `plan --cards`; the rows of a number are neighbours, in order of the methods.
struct FrameworkCardsRow {
  int cards = 0;
  MethodKind method = MethodKind::kFull;
  Result<FrameworkAnswer> answer;
};
std::string framework_cards_text(const std::string& model, const std::string& device, int64_t sequence,
                                 const std::vector<FrameworkCardsRow>& rows);
nlohmann::ordered_json framework_cards_json(const std::vector<FrameworkCardsRow>& rows);

// One run in full; `formulas`: with those of its memory.
std::string framework_explanation_text(const FrameworkPlan& plan, const HardwareSpec& hardware, bool formulas);
nlohmann::ordered_json framework_explanation_json(const FrameworkPlan& plan, const HardwareSpec& hardware);

}  // namespace fivefold
