// Rotary position embedding: the angles by which pairs of a head's dims turn, from a RopeSpec and global positions.
// What is not here: which dims form a pair (RopeSpec::interleaved) and the turning itself (kernels). Pure functions,
// thread-safe. The formulas are those of transformers' rope types; derivations are in docs/engine.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/model.h"

namespace fivefold {

struct RopeFrequencies {
  // Radians per position of each pair, [rotary_dim / 2]. fp32 on purpose: the models were trained with fp32 frequencies
  // and angles, and at position 100,000 the last bit of a frequency turns a pair by up to 0.006 radians.
  std::vector<float> inverse;
  // Both cos and sin carry this factor (kYarn; 1 otherwise).
  double attention_factor = 1.0;
};

// `sequence` is the longest sequence of the run; only kDynamic depends on it, beyond the trained length.
// REQUIRES: rotary_dim even and positive; for a scaled type factor >= 1 and original_max_positions > 0.
RopeFrequencies rope_frequencies(const RopeSpec& rope, int64_t sequence);

// Tables for a list of positions, row-major [positions, half].
struct RopeTable {
  int64_t positions = 0;
  int64_t half = 0;  // rotary_dim / 2
  std::vector<float> cos, sin;
};

// Row i belongs to positions[i], a position in its document: under context parallelism and in packed sequences the list
// is not 0, 1, 2, ... REQUIRES: as rope_frequencies, positions >= 0.
RopeTable rope_table(const RopeSpec& rope, int64_t sequence, std::span<const int64_t> positions);

}  // namespace fivefold
