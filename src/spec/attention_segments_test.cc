#include "spec/attention_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace fivefold {
namespace {

constexpr AttentionMask kCausal = AttentionMask::kCausal, kFull = AttentionMask::kFull;
using Pairs = std::map<std::pair<int64_t, int64_t>, int>;  // (query row, key row): how many segments let it through

// What the masks say, pair by pair.
Pairs pairs_of(const std::vector<AttentionSegment>& segments) {
  Pairs pairs;
  for (const AttentionSegment& s : segments) {
    for (int64_t i = 0; i < s.q_len; ++i) {
      const int64_t keys = s.mask == kFull ? s.kv_len : s.kv_len - s.q_len + i + 1;
      for (int64_t j = 0; j < keys; ++j) ++pairs[{s.q_begin + i, s.kv_begin + j}];
    }
  }
  return pairs;
}

bool ranges_are_disjoint(std::vector<std::pair<int64_t, int64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].second > ranges[i].first) return false;
  }
  return true;
}

struct Token {
  int64_t row, position, document;
  bool operator<(const Token& other) const { return std::tie(row, position) < std::tie(other.row, other.position); }
};

// The tokens of a microbatch and of its ranks, written down from the definition of the zigzag.
struct Case {
  int64_t rows, sequence, degree;
  std::vector<int32_t> offsets;

  ZigzagBatch batch() const { return {.rows = rows, .sequence = sequence, .degree = degree, .cu_seqlens = offsets}; }
  Token token(int64_t row, int64_t position) const {
    const int64_t global = row * sequence + position;
    const auto document = std::upper_bound(offsets.begin(), offsets.end(), global) - offsets.begin();
    return {row, position, document};
  }
  std::vector<Token> tokens_of(int64_t rank) const {
    const int64_t chunk = sequence / (2 * degree);
    std::vector<Token> tokens;
    for (int64_t row = 0; row < rows; ++row) {
      for (const int64_t g : {rank, 2 * degree - 1 - rank}) {
        for (int64_t i = 0; i < chunk; ++i) tokens.push_back(token(row, g * chunk + i));
      }
    }
    return tokens;
  }
  std::vector<Token> all_tokens() const {
    std::vector<Token> tokens;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t x = 0; x < sequence; ++x) tokens.push_back(token(row, x));
    }
    return tokens;
  }
  // Same row, same document, not after the query.
  static Pairs visible(const std::vector<Token>& queries, const std::vector<Token>& keys) {
    Pairs pairs;
    for (size_t q = 0; q < queries.size(); ++q) {
      for (size_t k = 0; k < keys.size(); ++k) {
        if (queries[q].document == keys[k].document && keys[k].position <= queries[q].position) {
          pairs[{static_cast<int64_t>(q), static_cast<int64_t>(k)}] = 1;
        }
      }
    }
    return pairs;
  }
};

std::vector<Case> random_cases() {
  std::mt19937 random(5);
  std::vector<Case> cases;
  for (int64_t degree = 1; degree <= 4; ++degree) {
    for (int i = 0; i < 60; ++i) {
      const int64_t rows = 1 + random() % 3, chunk = 1 + random() % 5, sequence = 2 * degree * chunk;
      std::set<int32_t> borders;
      for (int64_t row = 0; row <= rows; ++row) borders.insert(static_cast<int32_t>(row * sequence));
      for (unsigned n = random() % 7; n > 0; --n) borders.insert(static_cast<int32_t>(random() % (rows * sequence)));
      std::vector<int32_t> offsets(borders.begin(), borders.end());
      if (random() % 2) offsets.insert(offsets.begin() + 1, offsets[1]);  // an empty document
      cases.push_back({rows, sequence, degree, offsets});
    }
  }
  return cases;
}

TEST(AttentionSegments, PackedDocumentsSeeThemselves) {
  const std::vector<int32_t> offsets = {0, 3, 3, 5};
  EXPECT_EQ(packed_segments(offsets), (std::vector<AttentionSegment>{{0, 3, 0, 3, kCausal}, {3, 2, 3, 2, kCausal}}));
}

// By hand: s = 8, c = 2, chunks of 2 tokens. Rank 0 holds positions 0 1 6 7, rank 1 positions 2 3 4 5. One document.
TEST(AttentionSegments, OneDocumentOnTwoRanks) {
  const std::vector<int32_t> offsets = {0, 8};
  const ZigzagBatch batch{.rows = 1, .sequence = 8, .degree = 2, .cu_seqlens = offsets};
  using List = std::vector<AttentionSegment>;
  EXPECT_EQ(ring_segments(batch, 0, 0), (List{{0, 4, 0, 4, kCausal}}));
  EXPECT_EQ(ring_segments(batch, 0, 1), (List{{2, 2, 0, 4, kFull}}));  // 6 7 see 2 3 4 5
  EXPECT_EQ(ring_segments(batch, 1, 0), (List{{0, 4, 0, 2, kFull}}));  // 2 3 4 5 see 0 1
  EXPECT_EQ(ring_segments(batch, 1, 1), (List{{0, 4, 0, 4, kCausal}}));
  EXPECT_EQ(gathered_segments(batch, 0), (List{{0, 2, 0, 2, kCausal}, {2, 2, 0, 8, kCausal}}));
  EXPECT_EQ(gathered_segments(batch, 1), (List{{0, 2, 0, 4, kCausal}, {2, 2, 0, 6, kCausal}}));
  // The gathered buffer holds chunks 0 3 1 2.
  EXPECT_EQ(gathered_chunks(batch), (std::vector<int32_t>{0, 2, 3, 1}));
}

// By hand: two rows of 4 on two ranks, a token a chunk. Row 1 holds documents of 1 and 3 tokens (positions 0 and 1 2
// 3). Rank 0 holds positions 0 3 of each row, rank 1 positions 1 2.
TEST(AttentionSegments, TwoRowsWithABorder) {
  const std::vector<int32_t> offsets = {0, 4, 5, 8};
  const ZigzagBatch batch{.rows = 2, .sequence = 4, .degree = 2, .cu_seqlens = offsets};
  using List = std::vector<AttentionSegment>;
  EXPECT_EQ(ring_segments(batch, 0, 0), (List{{0, 2, 0, 2, kCausal}, {2, 1, 2, 1, kCausal}, {3, 1, 3, 1, kCausal}}));
  EXPECT_EQ(ring_segments(batch, 0, 1), (List{{1, 1, 0, 2, kFull}, {3, 1, 2, 2, kFull}}));
  EXPECT_EQ(ring_segments(batch, 1, 0), (List{{0, 2, 0, 1, kFull}}));
  EXPECT_EQ(gathered_segments(batch, 1),
            (List{{0, 1, 0, 2, kCausal}, {1, 1, 0, 3, kCausal}, {2, 1, 5, 1, kCausal}, {3, 1, 5, 2, kCausal}}));
  // Gathered: rank 0 has row 0 chunks 0 3, row 1 chunks 0 3; rank 1 the same of chunks 1 2.
  EXPECT_EQ(gathered_chunks(batch), (std::vector<int32_t>{0, 4, 5, 1, 2, 6, 7, 3}));
}

TEST(AttentionSegments, PositionsAreThoseOfTheZigzag) {
  for (const Case& c : random_cases()) {
    for (int64_t rank = 0; rank < c.degree; ++rank) {
      const std::vector<Token> tokens = c.tokens_of(rank);
      const int64_t part = c.sequence / c.degree;
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(zigzag_position(c.batch(), rank, static_cast<int64_t>(i) % part), tokens[i].position);
      }
    }
  }
}

TEST(AttentionSegments, RingLetsThroughWhatIsVisibleOnce) {
  for (const Case& c : random_cases()) {
    for (int64_t r = 0; r < c.degree; ++r) {
      for (int64_t j = 0; j < c.degree; ++j) {
        const std::vector<AttentionSegment> segments = ring_segments(c.batch(), r, j);
        EXPECT_EQ(pairs_of(segments), Case::visible(c.tokens_of(r), c.tokens_of(j)));
        std::vector<std::pair<int64_t, int64_t>> queries, keys;
        for (const AttentionSegment& s : segments) {
          EXPECT_GT(s.q_len, 0);
          EXPECT_GT(s.kv_len, 0);
          queries.emplace_back(s.q_begin, s.q_begin + s.q_len);
          keys.emplace_back(s.kv_begin, s.kv_begin + s.kv_len);
        }
        EXPECT_TRUE(ranges_are_disjoint(queries));
        EXPECT_TRUE(ranges_are_disjoint(keys));
        if (r != j) {
          EXPECT_LE(segments.size(), static_cast<size_t>(c.rows));
        }
      }
    }
  }
}

TEST(AttentionSegments, GatheredLetsThroughWhatIsVisibleOnce) {
  for (const Case& c : random_cases()) {
    for (int64_t r = 0; r < c.degree; ++r) {
      const std::vector<AttentionSegment> segments = gathered_segments(c.batch(), r);
      EXPECT_EQ(pairs_of(segments), Case::visible(c.tokens_of(r), c.all_tokens()));
      std::vector<std::pair<int64_t, int64_t>> queries;
      std::map<int64_t, int64_t> key_end;  // of the segments that start at a key
      for (const AttentionSegment& s : segments) {
        queries.emplace_back(s.q_begin, s.q_begin + s.q_len);
        key_end[s.kv_begin] = std::max(key_end[s.kv_begin], s.kv_begin + s.kv_len);
      }
      EXPECT_TRUE(ranges_are_disjoint(queries));
      EXPECT_TRUE(ranges_are_disjoint({key_end.begin(), key_end.end()}));
    }
  }
}

TEST(AttentionSegments, ChunksAreWhereTheAllGatherLeavesThem) {
  for (const Case& c : random_cases()) {
    std::vector<Token> gathered;
    for (int64_t rank = 0; rank < c.degree; ++rank) {
      const std::vector<Token> tokens = c.tokens_of(rank);
      gathered.insert(gathered.end(), tokens.begin(), tokens.end());
    }
    const std::vector<int32_t> chunks = gathered_chunks(c.batch());
    const int64_t chunk = c.batch().chunk_rows();
    const std::vector<Token> all = c.all_tokens();
    ASSERT_EQ(static_cast<int64_t>(chunks.size()) * chunk, static_cast<int64_t>(all.size()));
    for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
      const Token& there = gathered[static_cast<size_t>(chunks[static_cast<size_t>(i / chunk)] * chunk + i % chunk)];
      EXPECT_EQ(std::pair(there.row, there.position), std::pair(all[i].row, all[i].position));
    }
  }
}

TEST(AttentionSegmentsDeathTest, RefusesChunksThatDoNotDivide) {
  const std::vector<int32_t> offsets = {0, 6}, spanning = {0, 12};
  EXPECT_DEATH(ring_segments({.rows = 1, .sequence = 6, .degree = 2, .cu_seqlens = offsets}, 0, 0), "a % b == 0");
  EXPECT_DEATH(ring_segments({.rows = 2, .sequence = 6, .degree = 1, .cu_seqlens = spanning}, 0, 0), "spans two rows");
}

}  // namespace
}  // namespace fivefold
