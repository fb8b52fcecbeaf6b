// Dataset: a token file cut into samples of equal length. The documents are laid end to end, each followed by <eos>
// unless it ends with it already; empty documents vanish. Sample i starts at token i S of this stream and holds S + 1
// tokens, S inputs and the S targets one further; the last tokens that fill no sample are left out. Immutable; const
// functions are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sampling.h"
#include "data/text_source.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "spec/run_config.h"

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

class Dataset {
 public:
  // `eos` must be below the file's vocabulary. Errors: a file with fewer than sequence + 1 tokens (with <eos> counted).
  static Result<Dataset> create(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos);

  int64_t num_samples() const { return num_samples_; }
  int64_t sequence() const { return sequence_; }
  int64_t num_tokens() const { return stream_start_.back(); }  // with <eos>

  // The samples at `count` neighbouring positions of the order. Errors: a token id outside the vocabulary.
  Result<TokenBatch> batch(const SampleOrder& order, int64_t first_position, int64_t count) const;

  // Validation: the samples [first_sample, first_sample + rows) in file order, each exactly once over the pass; rows
  // past the end are padding (zeros, every target ignored). Errors: as batch().
  Result<TokenBatch> fixed_batch(int64_t first_sample, int64_t rows) const;

 private:
  Dataset(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos);
  Status append(int64_t sample, TokenBatch& out) const;

  TokenFile tokens_;
  int64_t sequence_;
  Packing packing_;
  int32_t eos_;
  int64_t num_samples_ = 0;
  std::vector<int64_t> stream_start_;  // per document, its first token in the stream; and the stream's length
};

struct DatasetOptions {
  std::filesystem::path source;  // text, JSONL, a folder of them, or a token file (.bin / .idx)
  std::string format = "auto";   // "text", "paragraphs", "jsonl", "tokens"; "auto" goes by the file's extension
  int64_t sequence = 0;          // S
  Packing packing = Packing::kConcatenate;
  std::filesystem::path cache_folder = {};  // where token files of texts are kept
};

// Errors: unknown format (hint: the known ones), a tokenizer without EOS, those of tokenize_to_cache, TokenFile::open
// and Dataset::create.
Result<Dataset> open_dataset(const DatasetOptions& options, const Tokenizer& tokenizer);

}  // namespace fivefold
