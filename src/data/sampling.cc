#include "data/sampling.h"

#include <fmt/format.h>

#include <bit>

#include "base/integer.h"
#include "base/philox.h"

namespace fivefold {
namespace {

constexpr uint32_t kFeistelRounds = 8;

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream)
    : size_(static_cast<uint64_t>(size)), seed_(seed), stream_(stream) {
  FIVEFOLD_CHECK(size >= 1 && size <= int64_t{1} << 62);
  const int bits = std::bit_width(size_ - 1);
  half_bits_ = bits <= 2 ? 1 : (bits + 1) / 2;
}

// The network over 2 * half_bits_ bits: invertible whatever the round function is, since each round changes one half by
// xor with a function of the other.
uint64_t Permutation::encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (uint32_t round = 0; round < kFeistelRounds; ++round) {
    const uint32_t word = philox4x32(
        {static_cast<uint32_t>(right), round, static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)})[0];
    const uint64_t mixed = (left ^ word) & mask;
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  FIVEFOLD_CHECK(index >= 0 && static_cast<uint64_t>(index) < size_);
  // The cycle through `index` returns to it, which is below size_, so the walk ends.
  uint64_t x = encrypt(static_cast<uint64_t>(index));
  while (x >= size_) x = encrypt(x);
  return static_cast<int64_t>(x);
}

int64_t SampleOrder::sample_at(int64_t position) const {
  FIVEFOLD_CHECK(position >= 0);
  const int64_t epoch = position / num_samples_;
  const Permutation permutation(num_samples_, seed_, random_stream("data order") + static_cast<uint64_t>(epoch));
  return permutation(position % num_samples_);
}

int64_t BatchLayout::num_microbatches() const { return div_exact(global_batch, micro_batch * dp); }

int64_t BatchLayout::first_position(int64_t consumed, int64_t microbatch) const {
  FIVEFOLD_CHECK(microbatch >= 0 && microbatch < num_microbatches());
  return consumed + (microbatch * dp + dp_rank) * micro_batch;
}

Status check_batch_layout(const BatchLayout& layout) {
  for (const auto& [name, value] : {std::pair{"batch.global", layout.global_batch},
                                    {"batch.micro", layout.micro_batch},
                                    {"parallel.dp", layout.dp}}) {
    if (value < 1 || value > int64_t{1} << 30)
      return Error{name, fmt::format("{} is not between 1 and 2^30", value), ""};
  }
  if (layout.dp_rank < 0 || layout.dp_rank >= layout.dp) {
    return Error{"parallel.dp", fmt::format("there is no rank {} of {}", layout.dp_rank, layout.dp), ""};
  }
  const int64_t round = layout.micro_batch * layout.dp;
  if (layout.global_batch % round != 0) {
    const int64_t below = layout.global_batch / round * round;
    return Error{
        "batch.global",
        fmt::format("{} is not a multiple of micro x dp = {} x {}", layout.global_batch, layout.micro_batch, layout.dp),
        below > 0 ? fmt::format("use {} or {}", below, below + round) : fmt::format("use {}", round)};
  }
  return Ok{};
}

}  // namespace fivefold
