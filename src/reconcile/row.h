// ReconcileRow: one quantity of a run beside its prediction. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fivefold {

enum class RowSection : uint8_t { kProgram, kMemory, kTraffic, kTime, kPipeline, kAcceptance };
inline constexpr int kNumRowSections = 6;

// Of predicted, measured and bound. A share is 0-1.
enum class RowUnit : uint8_t { kBytes, kCount, kSeconds, kShare, kPerSecond, kNumber };

// Which differences a bound limits.
enum class BoundSide : uint8_t {
  kBoth,
  kAbove,  // measured may be less than predicted: a prediction that is a bound itself
};

inline constexpr int kAllRanks = -1;

struct ReconcileRow {
  RowSection section = RowSection::kMemory;
  std::string quantity;  // "memory.peak.params"
  int rank = kAllRanks;
  RowUnit unit = RowUnit::kBytes;
  std::optional<double> predicted;  // nothing: the plan says nothing about it
  double measured = 0;
  std::optional<double> bound;  // of the difference, same unit; nothing: for information
  BoundSide side = BoundSide::kBoth;
  std::string cause;  // what the difference is, with its numbers; empty: none or unknown

  // Measured minus predicted.
  std::optional<double> difference() const { return predicted ? std::optional(measured - *predicted) : std::nullopt; }
  bool pass() const {
    if (!bound || !predicted) return true;
    const double d = *difference();
    return d <= *bound && (side == BoundSide::kAbove || -d <= *bound);
  }
};

}  // namespace fivefold
