#include "spec/attention_segments.h"

#include <algorithm>

#include "base/check.h"
#include "base/integer.h"

namespace fivefold {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// One row's view: which of its positions a rank holds, and where.
class ZigzagRow {
 public:
  ZigzagRow(const ZigzagBatch& batch, int64_t row)
      : chunk_(batch.chunk_rows()), last_(2 * batch.degree - 1), local_begin_(row * 2 * chunk_) {}

  // The part of the positions [document.begin, document.end) that lies in a chunk of the row.
  Range in_chunk(Range document, int64_t chunk) const {
    return {std::clamp(document.begin, chunk * chunk_, (chunk + 1) * chunk_),
            std::clamp(document.end, chunk * chunk_, (chunk + 1) * chunk_)};
  }
  // The same in rows of the rank that holds the chunk.
  Range local_in_chunk(Range document, int64_t chunk) const {
    const Range part = in_chunk(document, chunk);
    const int64_t shift = local_begin_ + (is_second(chunk) ? chunk_ : 0) - chunk * chunk_;
    return {part.begin + shift, part.end + shift};
  }
  // The rows of a rank that hold a part of the document.
  Range local(Range document, int64_t rank) const {
    const Range first = local_in_chunk(document, rank), second = local_in_chunk(document, last_ - rank);
    if (first.empty()) return second;
    return {first.begin, second.empty() ? first.end : second.end};
  }
  int64_t last() const { return last_; }

 private:
  bool is_second(int64_t chunk) const { return 2 * chunk > last_; }

  int64_t chunk_;
  int64_t last_;         // number of the last chunk, 2c - 1
  int64_t local_begin_;  // first row of a rank's part of this row
};

// Calls f(row of the batch, document in positions of that row).
template <typename F>
void for_each_document(const ZigzagBatch& batch, F&& f) {
  const std::span<const int32_t> offsets = batch.cu_seqlens;
  FIVEFOLD_CHECK(!offsets.empty() && offsets.front() == 0 && offsets.back() == batch.rows * batch.sequence);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t begin = offsets[i], end = offsets[i + 1];
    FIVEFOLD_CHECK(begin <= end);
    if (begin == end) continue;
    const int64_t row = begin / batch.sequence;
    FIVEFOLD_CHECK(end <= (row + 1) * batch.sequence, "a document spans two rows");
    f(row, Range{begin - row * batch.sequence, end - row * batch.sequence});
  }
}

void add_segment(std::vector<AttentionSegment>& segments, Range q, Range kv, AttentionMask mask) {
  if (q.empty() || kv.empty()) return;
  segments.push_back(
      {.q_begin = q.begin, .q_len = q.end - q.begin, .kv_begin = kv.begin, .kv_len = kv.end - kv.begin, .mask = mask});
}

void check_rank(const ZigzagBatch& batch, int64_t rank) { FIVEFOLD_CHECK(rank >= 0 && rank < batch.degree); }

}  // namespace

int64_t ZigzagBatch::chunk_rows() const { return div_exact(sequence, 2 * degree); }

std::vector<AttentionSegment> packed_segments(std::span<const int32_t> cu_seqlens) {
  FIVEFOLD_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0);
  std::vector<AttentionSegment> segments;
  segments.reserve(cu_seqlens.size() - 1);
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    FIVEFOLD_CHECK(cu_seqlens[i] <= cu_seqlens[i + 1]);
    const Range document{cu_seqlens[i], cu_seqlens[i + 1]};
    add_segment(segments, document, document, AttentionMask::kCausal);
  }
  return segments;
}

int64_t zigzag_position(const ZigzagBatch& batch, int64_t rank, int64_t local) {
  check_rank(batch, rank);
  const int64_t chunk = batch.chunk_rows();
  FIVEFOLD_CHECK(local >= 0 && local < 2 * chunk);
  const int64_t second = 2 * batch.degree - 1 - rank;
  return local < chunk ? rank * chunk + local : second * chunk + local - chunk;
}

std::vector<AttentionSegment> ring_segments(const ZigzagBatch& batch, int64_t query_rank, int64_t kv_rank) {
  check_rank(batch, query_rank);
  check_rank(batch, kv_rank);
  std::vector<AttentionSegment> segments;
  for_each_document(batch, [&](int64_t b, Range document) {
    const ZigzagRow row(batch, b);
    if (kv_rank == query_rank) {
      const Range own = row.local(document, query_rank);
      add_segment(segments, own, own, AttentionMask::kCausal);
    } else if (kv_rank < query_rank) {
      // Chunk kv_rank is before both chunks of the query rank, chunk 2c - 1 - kv_rank after them.
      add_segment(segments, row.local(document, query_rank), row.local_in_chunk(document, kv_rank),
                  AttentionMask::kFull);
    } else {
      // Both chunks of the key rank are between the two of the query rank.
      add_segment(segments, row.local_in_chunk(document, row.last() - query_rank), row.local(document, kv_rank),
                  AttentionMask::kFull);
    }
  });
  return segments;
}

std::vector<AttentionSegment> gathered_segments(const ZigzagBatch& batch, int64_t query_rank) {
  check_rank(batch, query_rank);
  std::vector<AttentionSegment> segments;
  for_each_document(batch, [&](int64_t b, Range document) {
    const ZigzagRow row(batch, b);
    for (const int64_t chunk : {query_rank, row.last() - query_rank}) {
      const int64_t end = row.in_chunk(document, chunk).end;
      const int64_t origin = b * batch.sequence;
      add_segment(segments, row.local_in_chunk(document, chunk), {origin + document.begin, origin + end},
                  AttentionMask::kCausal);
    }
  });
  return segments;
}

std::vector<int32_t> gathered_chunks(const ZigzagBatch& batch) {
  const int64_t chunks = 2 * batch.degree;
  std::vector<int32_t> places;
  for (int64_t b = 0; b < batch.rows; ++b) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const bool second = chunk >= batch.degree;
      const int64_t rank = second ? chunks - 1 - chunk : chunk;
      places.push_back(static_cast<int32_t>((rank * batch.rows + b) * 2 + (second ? 1 : 0)));
    }
  }
  return places;
}

}  // namespace fivefold
