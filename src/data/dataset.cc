#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "data/chat_template.h"
#include "data/conversation_rows.h"
#include "data/conversations.h"
#include "data/token_stream.h"

namespace fivefold {

Result<Dataset> Dataset::create(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos) {
  FIVEFOLD_ASSIGN(auto stream, TokenStream::create(std::move(tokens), sequence, packing, eos));
  return Dataset(std::move(stream), sequence);
}

Result<TokenBatch> Dataset::batch(const SampleOrder& order, int64_t first_position, int64_t count) const {
  FIVEFOLD_CHECK(order.num_samples() == num_samples());
  TokenBatch out;
  out.sequence = sequence_;
  for (int64_t i = 0; i < count; ++i) FIVEFOLD_TRY(rows_->append(order.sample_at(first_position + i), out));
  return out;
}

Result<TokenBatch> Dataset::fixed_batch(int64_t first_sample, int64_t rows) const {
  TokenBatch out;
  out.sequence = sequence_;
  const int64_t stop = std::min(num_samples(), first_sample + rows);
  for (int64_t sample = first_sample; sample < stop; ++sample) FIVEFOLD_TRY(rows_->append(sample, out));
  while (out.rows < rows) {
    out.input_ids.resize(out.input_ids.size() + static_cast<size_t>(sequence_), 0);
    out.targets.resize(out.targets.size() + static_cast<size_t>(sequence_), kIgnoredTarget);
    out.positions.resize(out.positions.size() + static_cast<size_t>(sequence_));
    std::iota(out.positions.end() - sequence_, out.positions.end(), 0);
    out.document_lengths.push_back({static_cast<int32_t>(sequence_)});
    ++out.rows;
  }
  return out;
}

namespace {

// "auto" resolved by what lies at the path.
Result<std::string> resolve_format(const DatasetOptions& options) {
  const std::vector<std::string> known = {"auto", "text", "paragraphs", "jsonl", "tokens", "chat"};
  if (std::find(known.begin(), known.end(), options.format) == known.end()) {
    return Error{"data.format", fmt::format("unknown format \"{}\"", options.format), name_hint(options.format, known)};
  }
  if (options.format != "auto") return options.format;
  const std::string extension = options.source.extension().string();
  std::filesystem::path index = options.source;
  index += ".idx";
  std::error_code ignored;
  if (extension == ".bin" || extension == ".idx" || std::filesystem::exists(index, ignored))
    return std::string("tokens");
  return std::string(extension == ".jsonl" ? "jsonl" : "text");
}

Result<std::shared_ptr<const ConversationRows>> open_conversations(const DatasetOptions& options,
                                                                   const Tokenizer& tokenizer) {
  FIVEFOLD_ASSIGN(const ChatTemplate chat, load_chat_template(options.chat_template, options.tokenizer));
  FIVEFOLD_ASSIGN(const ConversationFiles files,
                  tokenize_conversations_to_cache(options.source, chat, options.loss, tokenizer, options.cache_folder));
  FIVEFOLD_ASSIGN(TokenFile tokens, TokenFile::open(files.tokens, tokenizer.vocab_size()));
  FIVEFOLD_ASSIGN(TokenFile counted, TokenFile::open(files.counted, 2));
  return ConversationRows::create(std::move(tokens), std::move(counted), options.sequence, options.packing,
                                  options.shuffle_seed);
}

}  // namespace

Result<Dataset> open_dataset(const DatasetOptions& options, const Tokenizer& tokenizer) {
  FIVEFOLD_ASSIGN(const std::string format, resolve_format(options));
  if (format == "chat") {
    FIVEFOLD_ASSIGN(auto rows, open_conversations(options, tokenizer));
    return Dataset(std::move(rows), options.sequence);
  }
  const std::optional<int32_t> eos = tokenizer.eos_id();
  if (!eos) {
    return Error{"data.tokenizer", "has no end-of-text token", "name one as eos_token in its tokenizer_config.json"};
  }
  std::filesystem::path pair = options.source;
  if (format != "tokens") {
    const TextFormat text_format = format == "jsonl"        ? TextFormat::kJsonl
                                   : format == "paragraphs" ? TextFormat::kParagraphs
                                                            : TextFormat::kText;
    FIVEFOLD_ASSIGN(pair, tokenize_to_cache(options.source, text_format, tokenizer, options.cache_folder));
  }
  FIVEFOLD_ASSIGN(TokenFile tokens, TokenFile::open(pair, tokenizer.vocab_size()));
  return Dataset::create(std::move(tokens), options.sequence, options.packing, *eos);
}

}  // namespace fivefold
