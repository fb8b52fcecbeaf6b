// Dataset: the samples of a source, which all have the same length, in the batches that training and validation ask
// for. How they are cut: data/token_stream.h, and data/conversation_rows.h for conversations. Immutable; const
// functions are thread-safe. Copies share the samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "data/sample_rows.h"
#include "data/sampling.h"
#include "data/text_source.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "spec/run_config.h"

namespace fivefold {

class Dataset {
 public:
  // Of a token file. Errors: those of TokenStream::create.
  static Result<Dataset> create(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos);
  Dataset(std::shared_ptr<const SampleRows> rows, int64_t sequence) : rows_(std::move(rows)), sequence_(sequence) {}

  int64_t num_samples() const { return rows_->num_samples(); }
  int64_t sequence() const { return sequence_; }
  int64_t num_tokens() const { return rows_->num_tokens(); }
  // What a user should know of how the samples were made.
  std::vector<std::string> remarks() const { return rows_->remarks(); }

  // The samples at `count` neighbouring positions of the order. Errors: a token id outside the vocabulary.
  Result<TokenBatch> batch(const SampleOrder& order, int64_t first_position, int64_t count) const;

  // Validation: the samples [first_sample, first_sample + rows) in file order, each exactly once over the pass; rows
  // past the end are padding (zeros, every target ignored). Errors: as batch().
  Result<TokenBatch> fixed_batch(int64_t first_sample, int64_t rows) const;

 private:
  std::shared_ptr<const SampleRows> rows_;
  int64_t sequence_;
};

struct DatasetOptions {
  std::filesystem::path source;  // text, JSONL, a folder of them, or a token file (.bin / .idx)
  std::string format = "auto";   // "text", "paragraphs", "jsonl", "tokens", "chat"; "auto" goes by the extension
  int64_t sequence = 0;          // S
  Packing packing = Packing::kConcatenate;
  std::filesystem::path cache_folder = {};  // where token files of texts are kept
  // Of "chat": load_chat_template's name and tokenizer, which tokens count, and whether conversations are laid into
  // rows in an order drawn from a seed or in that of the file.
  std::string chat_template = "auto", tokenizer = {};
  LossOn loss = LossOn::kCompletion;
  std::optional<uint64_t> shuffle_seed = {};
};

// Errors: unknown format (hint: the known ones), a tokenizer without EOS (not under "chat"), those of tokenize_to_cache
// or tokenize_conversations_to_cache, load_chat_template, TokenFile::open, TokenStream::create and
// ConversationRows::create.
Result<Dataset> open_dataset(const DatasetOptions& options, const Tokenizer& tokenizer);

}  // namespace fivefold
