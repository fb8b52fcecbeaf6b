#include "cli/random_batch.h"

#include <algorithm>

#include "base/philox.h"

namespace fivefold {
namespace {

// Cuts a row into documents of 1 to a third of its tokens, or leaves it whole.
std::vector<int32_t> document_lengths(const ResolvedConfig& config, uint64_t row) {
  const auto sequence = static_cast<int32_t>(config.config.batch.sequence);
  if (config.config.batch.packing == Packing::kConcatenate) return {sequence};
  const uint64_t stream = random_stream("random batch documents") + row;
  std::vector<int32_t> lengths;
  int32_t left = sequence;
  for (uint64_t i = 0; left > 0; ++i) {
    const auto longest = static_cast<uint32_t>(std::max(1, sequence / 3));
    lengths.push_back(std::min(left, static_cast<int32_t>(1 + random_word(0, stream, i) % longest)));
    left -= lengths.back();
  }
  return lengths;
}

}  // namespace

GlobalBatch random_batch(const ResolvedConfig& config, int64_t vocabulary, RandomTargets targets) {
  GlobalBatch batch;
  batch.rows = config.config.batch.global;
  batch.sequence = config.config.batch.sequence;
  const uint64_t stream = random_stream("random batch tokens");
  uint64_t index = 0;
  const auto token = [&] {
    return static_cast<int32_t>(random_word(0, stream, index++) % static_cast<uint32_t>(vocabulary));
  };
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t counted = targets == RandomTargets::kAll ? batch.sequence : batch.sequence * (4 - row % 4) / 4;
    batch.document_lengths.push_back(document_lengths(config, static_cast<uint64_t>(row)));
    for (const int32_t length : batch.document_lengths.back())
      for (int32_t i = 0; i < length; ++i) batch.positions.push_back(i);
    for (int64_t i = 0; i < batch.sequence; ++i) {
      batch.input_ids.push_back(token());
      const int32_t target = token();
      batch.targets.push_back(i < counted ? target : -100);
    }
  }
  return batch;
}

}  // namespace fivefold
