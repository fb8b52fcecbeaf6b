// Internal to the doctor: what its checklists share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reconcile/doctor.h"

namespace fivefold {

Diagnosis diagnose_memory(const DoctorCase& the_case);
Diagnosis diagnose_pace(const DoctorCase& the_case);
Diagnosis diagnose_scaling(const DoctorCase& the_case);

// What a line of a profile is of.
enum class LineKind : uint8_t { kStates, kActivations, kLogits, kOneLayer, kOther };
inline constexpr int kNumLineKinds = 5;
LineKind kind_of_line(std::string_view name);
std::string_view to_string(LineKind kind);
// The kind with the most bytes at the peak, `bytes` by kind.
LineKind largest_kind(const ProfileMemory& memory, std::vector<int64_t>& bytes);

// Settings that need less, in the order in which to try them: first those for what takes most, those that change the
// result later, those that need more GPUs last.
std::vector<FrameworkRemedy> memory_remedies(const FrameworkPrediction& prediction);
// The first of them that are enough together; nothing: not all are.
std::optional<FrameworkRemedy> remedies_together(const FrameworkPrediction& prediction,
                                                 const std::vector<FrameworkRemedy>& remedies);
// Settings that are quicker and fit, most first.
std::vector<FrameworkRemedy> pace_remedies(const FrameworkPrediction& prediction);
// Settings under which more ranks cost less, most first.
std::vector<FrameworkRemedy> scaling_remedies(const FrameworkPrediction& prediction);

// The prediction with other settings. Nothing: the framework does not have them.
std::optional<FrameworkPrediction> changed(const FrameworkPrediction& prediction, const RunConfig& config);
// `config` with a switch set, in place of what it was.
RunConfig with_switch(RunConfig config, const std::string& name, const std::string& value);
// `config` as a remedy of `before`; nothing when the framework does not have it.
std::optional<FrameworkRemedy> remedy_of(const FrameworkPrediction& before, const RunConfig& config,
                                         const std::string& name, const std::string& changes);

std::string signed_percent(double share);  // "+12 %"

}  // namespace fivefold
