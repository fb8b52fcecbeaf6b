// LayoutReplay: whether a layout fits and how long its step takes, by replay: what predict_memory() and predict_cost()
// say, each layout once. Not thread-safe.
#pragma once

#include <map>
#include <optional>

#include "planner/layout_space.h"
#include "planner/peak_bytes.h"

namespace fivefold {

class LayoutReplay {
 public:
  // REQUIRES: all outlive it.
  LayoutReplay(PredictionMemo& memo, PeakBytes& peaks, const LayoutSpace& space)
      : memo_(memo), peaks_(peaks), space_(space) {}

  enum class Memory : uint8_t { kCounts, kIgnored };
  // Nothing: the layout is not legal, or does not fit where memory counts.
  std::optional<double> seconds(const Layout& layout, Memory memory);
  // Of the fullest pipeline rank, with what is outside the tensors; nothing: not legal.
  std::optional<int64_t> peak(const Layout& layout);
  // How many layouts were replayed.
  int64_t count() const { return count_; }

 private:
  struct Outcome {
    bool legal = false;
    std::optional<bool> fits;
    std::optional<double> seconds;
  };
  std::optional<ResolvedConfig> legal(const Layout& layout) const;
  // `programs` gets those of all pipeline ranks if it does.
  bool fits(const ResolvedConfig& config, std::vector<Program>& programs);

  PredictionMemo& memo_;
  PeakBytes& peaks_;
  const LayoutSpace& space_;
  std::map<Layout, Outcome> outcomes_;
  int64_t count_ = 0;
};

}  // namespace fivefold
