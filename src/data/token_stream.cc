#include "data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fivefold {

TokenStream::TokenStream(TokenFile tokens, int64_t sequence, Packing packing, int32_t eos)
    : tokens_(std::move(tokens)), sequence_(sequence), packing_(packing), eos_(eos) {}

Result<std::shared_ptr<const TokenStream>> TokenStream::create(TokenFile tokens, int64_t sequence, Packing packing,
                                                               int32_t eos) {
  if (sequence < 1 || sequence > int64_t{1} << 30) {
    return Error{"batch.sequence", fmt::format("{} is not between 1 and 2^30", sequence), ""};
  }
  FIVEFOLD_CHECK(eos >= 0 && eos < tokens.vocab_size());
  std::shared_ptr<TokenStream> stream(new TokenStream(std::move(tokens), sequence, packing, eos));
  const int64_t documents = stream->tokens_.num_documents();
  stream->stream_start_.reserve(static_cast<size_t>(documents) + 1);
  stream->stream_start_.push_back(0);
  for (int64_t d = 0; d < documents; ++d) {
    int64_t length = stream->tokens_.document_length(d);
    if (length > 0) {
      int32_t last = 0;
      FIVEFOLD_TRY(stream->tokens_.read(d, length - 1, {&last, 1}));
      if (last != eos) ++length;
    }
    stream->stream_start_.push_back(stream->stream_start_.back() + length);
  }
  stream->num_samples_ = (stream->num_tokens() - 1) / sequence;
  if (stream->num_samples_ < 1) {
    return Error{stream->tokens_.path().string(),
                 fmt::format("{} tokens do not fill one sample of {} + 1", stream->num_tokens(), sequence),
                 stream->num_tokens() > 1 ? fmt::format("batch.sequence of at most {}", stream->num_tokens() - 1) : ""};
  }
  return std::shared_ptr<const TokenStream>(std::move(stream));
}

Status TokenStream::append(int64_t sample, TokenBatch& out) const {
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

}  // namespace fivefold
