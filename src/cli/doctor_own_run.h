// The doctor on a run of fivefold's own engine: a folder with its record, or a configuration that has not run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common_options.h"
#include "reconcile/doctor.h"

namespace fivefold {

// `hardware`: instead of the configuration's; empty: that. `symptom`: nothing: out of memory when it does not fit, else
// slow. Nothing: `errors` says why.
std::optional<Diagnosis> diagnose_own_run(const CommonOptions& options, const std::string& hardware,
                                          std::optional<Symptom> symptom, std::vector<Error>& errors);

}  // namespace fivefold
