#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace fivefold {

Dataset::Dataset(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos)
    : tokens_(std::move(tokens)), sequence_(sequence), packing_(packing), eos_(eos) {}

Result<Dataset> Dataset::create(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos) {
  if (sequence < 1 || sequence > int64_t{1} << 30) {
    return Error{"batch.sequence", fmt::format("{} is not between 1 and 2^30", sequence), ""};
  }
  FIVEFOLD_CHECK(eos >= 0 && eos < tokens.vocab_size());
  Dataset dataset(std::move(tokens), sequence, packing, eos);
  const int64_t documents = dataset.tokens_.num_documents();
  dataset.stream_start_.reserve(static_cast<size_t>(documents) + 1);
  dataset.stream_start_.push_back(0);
  for (int64_t d = 0; d < documents; ++d) {
    int64_t length = dataset.tokens_.document_length(d);
    if (length > 0) {
      int32_t last = 0;
      FIVEFOLD_TRY(dataset.tokens_.read(d, length - 1, {&last, 1}));
      if (last != eos) ++length;
    }
    dataset.stream_start_.push_back(dataset.stream_start_.back() + length);
  }
  dataset.num_samples_ = (dataset.num_tokens() - 1) / sequence;
  if (dataset.num_samples_ < 1) {
    return Error{dataset.tokens_.path().string(),
                 fmt::format("{} tokens do not fill one sample of {} + 1", dataset.num_tokens(), sequence),
                 dataset.num_tokens() > 1 ? fmt::format("batch.sequence of at most {}", dataset.num_tokens() - 1) : ""};
  }
  return dataset;
}

// Appends the row of one sample.
Status Dataset::append(int64_t sample, TokenBatch& out) const {
  FIVEFOLD_CHECK(sample >= 0 && sample < num_samples_);
  const int64_t begin = sample * sequence_, end = begin + sequence_ + 1;
  std::vector<int32_t> ids(static_cast<size_t>(sequence_) + 1);
  std::vector<int32_t> starts = {0};  // of documents within the row
  // The last document that starts at or before `begin`: empty ones share the start of the one that follows them.
  auto entry = std::upper_bound(stream_start_.begin(), stream_start_.end(), begin) - 1;
  for (int64_t at = begin; at < end; at = std::min(end, *++entry)) {
    const int64_t document = entry - stream_start_.begin();
    const int64_t stop = std::min(end, entry[1]);
    if (stop == at) continue;
    if (at > begin) starts.push_back(static_cast<int32_t>(at - begin));
    const int64_t offset = at - *entry;
    const int64_t count = std::min(stop - at, tokens_.document_length(document) - offset);
    const std::span<int32_t> part =
        std::span(ids).subspan(static_cast<size_t>(at - begin), static_cast<size_t>(stop - at));
    part.back() = eos_;  // overwritten when the document's own tokens reach that far
    FIVEFOLD_TRY(tokens_.read(document, offset, part.first(static_cast<size_t>(count))));
  }

  const size_t row = out.targets.size();
  out.input_ids.insert(out.input_ids.end(), ids.begin(), ids.end() - 1);
  out.targets.insert(out.targets.end(), ids.begin() + 1, ids.end());
  out.valid_tokens += sequence_;
  if (packing_ == Packing::kConcatenate) starts = {0};
  std::vector<int32_t> lengths;
  for (size_t i = 0; i < starts.size(); ++i) {
    // The target across the boundary is the next document's first token: ignored, also when that is token S.
    if (i > 0) {
      out.targets[row + static_cast<size_t>(starts[i]) - 1] = kIgnoredTarget;
      --out.valid_tokens;
    }
    const auto next = static_cast<int32_t>(i + 1 < starts.size() ? starts[i + 1] : sequence_);
    if (starts[i] == sequence_) break;
    lengths.push_back(next - starts[i]);
    for (int32_t position = 0; position < lengths.back(); ++position) out.positions.push_back(position);
  }
  out.document_lengths.push_back(std::move(lengths));
  ++out.rows;
  return Ok{};
}

Result<TokenBatch> Dataset::batch(const SampleOrder& order, int64_t first_position, int64_t count) const {
  FIVEFOLD_CHECK(order.num_samples() == num_samples_);
  TokenBatch out;
  out.sequence = sequence_;
  for (int64_t i = 0; i < count; ++i) FIVEFOLD_TRY(append(order.sample_at(first_position + i), out));
  return out;
}

Result<TokenBatch> Dataset::fixed_batch(int64_t first_sample, int64_t rows) const {
  TokenBatch out;
  out.sequence = sequence_;
  const int64_t stop = std::min(num_samples_, first_sample + rows);
  for (int64_t sample = first_sample; sample < stop; ++sample) FIVEFOLD_TRY(append(sample, out));
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
  const std::vector<std::string> known = {"auto", "text", "paragraphs", "jsonl", "tokens"};
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

}  // namespace

Result<Dataset> open_dataset(const DatasetOptions& options, const Tokenizer& tokenizer) {
  FIVEFOLD_ASSIGN(const std::string format, resolve_format(options));
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
