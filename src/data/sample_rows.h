// SampleRows: what a dataset is cut into. A sample is a row of `sequence` inputs with their targets. Two kinds: windows
// of a stream of tokens (data/token_stream.h), and rows that whole conversations fill (data/conversation_rows.h).
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace fivefold {

// Target of a token whose loss does not count.
inline constexpr int32_t kIgnoredTarget = -100;

// Rows of samples, row-major [rows x sequence].
struct TokenBatch {
  int64_t rows = 0, sequence = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> targets;    // already shifted; kIgnoredTarget where the loss does not count
  std::vector<int32_t> positions;  // for position embeddings
  // Per row, the lengths of the blocks that attention stays within; each row sums to `sequence`. One block per row
  // under kConcatenate.
  std::vector<std::vector<int32_t>> document_lengths;
  int64_t valid_tokens = 0;  // targets that count
};

class SampleRows {
 public:
  virtual ~SampleRows() = default;
  virtual int64_t num_samples() const = 0;
  virtual int64_t num_tokens() const = 0;
  // Appends the row of one sample. REQUIRES: 0 <= sample < num_samples(). Errors: a token id outside the vocabulary.
  virtual Status append(int64_t sample, TokenBatch& out) const = 0;
  // What a user should know of how the samples were made; empty as a rule.
  virtual std::vector<std::string> remarks() const { return {}; }
};

}  // namespace fivefold
