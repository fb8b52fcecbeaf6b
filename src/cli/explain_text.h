// Explanations for the terminal. Pure functions but for colours (output.h).
#pragma once

#include <string>
#include <vector>

#include "planner/explanation.h"

namespace fivefold {

// ", links of dgx-h100" where a cluster's links are imitated, else nothing.
std::string simulated_text(const HardwareSpec& hardware);
std::string explanation_text(const ModelSpec& model, const Inventory& inventory, const Explanation& explanation,
                             const HardwareSpec& hardware);
// Every line of memory and traffic with its formula.
std::string formulas_text(const ModelSpec& model, const Inventory& inventory, const Explanation& explanation);
std::string ranks_text(const Explanation& explanation);
// A picture of the planned step (report/timeline_picture.h).
std::string timeline_text(const ModelSpec& model, const Explanation& explanation, const StepReplay& replay, int width);
// Begin and end of every instruction, of every pipeline rank.
std::string instructions_text(const Inventory& inventory, const StepReplay& replay);

// Accounts of a ledger: between steps, at the peak, own peak.
std::string memory_table(const Ledger& ledger);
// Seconds and share of each part of a step.
std::string time_table(const StepCost& cost);

}  // namespace fivefold
