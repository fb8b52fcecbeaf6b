// Sampling: which sample stands at which position of the endless training order, and which positions belong to which
// step, microbatch and data-parallel rank. Everything is a pure function of (seed, position): there is no iterator
// state to save, a run that has consumed n samples continues at position n on any number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace fivefold {

// A pseudo-random permutation of [0, size) with O(1) memory and random access: a Feistel network over the next even
// power of two, with Philox as the round function, walked along its cycle until it lands below `size` (expected < 4
// walks).
class Permutation {
 public:
  // REQUIRES: size >= 1. Different (seed, stream) give different permutations.
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  // REQUIRES: 0 <= index < size.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t encrypt(uint64_t x) const;

  uint64_t size_, seed_, stream_;
  int half_bits_;
};

// The endless order: epoch e is the positions [e n, (e + 1) n) and an exact permutation of the n samples, another one
// in each epoch.
class SampleOrder {
 public:
  // REQUIRES: num_samples >= 1.
  SampleOrder(int64_t num_samples, uint64_t seed) : num_samples_(num_samples), seed_(seed) {}
  // REQUIRES: position >= 0.
  int64_t sample_at(int64_t position) const;
  int64_t epoch_of(int64_t position) const { return position / num_samples_; }
  int64_t num_samples() const { return num_samples_; }

 private:
  int64_t num_samples_;
  uint64_t seed_;
};

// How a step's samples fall to ranks. Step k takes the positions [k B, (k + 1) B) (a step may cross epochs). Microbatch
// m of the step is the next b D of them; of these rank r takes b neighbours. So the positions of a step, in order, do
// not depend on D as long as the global batch is the same.
struct BatchLayout {
  int64_t global_batch = 1;  // B, samples per step
  int64_t micro_batch = 1;   // b, samples per microbatch and data-parallel rank
  int64_t dp = 1;            // D
  int64_t dp_rank = 0;       // r

  // Microbatches per step and rank: B / (b D).
  int64_t num_microbatches() const;
  // Position of this rank's first sample of microbatch m, when `consumed` samples were consumed before the step; its b
  // samples follow each other. REQUIRES: 0 <= microbatch < num_microbatches().
  int64_t first_position(int64_t consumed, int64_t microbatch) const;
};

// Errors: a size below 1, micro x dp that does not divide global (hint: the nearest global batch), rank out of range.
Status check_batch_layout(const BatchLayout& layout);

}  // namespace fivefold
