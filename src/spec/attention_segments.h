// Which query rows see which key rows, as a list of segments: the input of the attention kernels
// (engine/ops/attention.h). A segment is a range of query rows against a range of key rows with one of two masks; that
// is enough for packed documents, for the blocks of ring attention and for gathered keys. Pure functions, thread-safe.
//
// Zigzag. Under context parallelism of degree c a row of s tokens is cut into 2c chunks of s / (2c) tokens, and rank r
// holds chunks r and 2c - 1 - r, in this order, so that every rank has the same causal work: chunk g sees g + 1/2
// chunks, and r + (2c - 1 - r) does not depend on r. Of a microbatch of B rows a rank holds its s / c tokens of row 0,
// then those of row 1, and so on. The order of a rank's rows is that of their positions, so that the part of a document
// that a rank holds is one range of its rows, even where the document spans both chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fivefold {

enum class AttentionMask : uint8_t {
  kCausal,  // query i of the segment sees keys 0 .. kv_len - q_len + i of it; kv_len >= q_len
  kFull,    // every query sees every key of the segment
};

struct AttentionSegment {
  int64_t q_begin = 0, q_len = 0;
  int64_t kv_begin = 0, kv_len = 0;
  AttentionMask mask = AttentionMask::kCausal;

  bool operator==(const AttentionSegment&) const = default;
};

// Documents end to end, of which each sees itself: document i is rows [cu_seqlens[i], cu_seqlens[i + 1]) of queries and
// of keys. Empty documents give no segment. REQUIRES: the offsets start at 0 and do not decrease.
std::vector<AttentionSegment> packed_segments(std::span<const int32_t> cu_seqlens);

// A microbatch whose rows are split in zigzag chunks. REQUIRES: 2 degree divides `sequence`; `cu_seqlens` starts at 0,
// does not decrease, ends at rows * sequence and holds every multiple of `sequence`: no document spans two rows.
struct ZigzagBatch {
  int64_t rows = 1;
  int64_t sequence = 0;
  int64_t degree = 1;
  std::span<const int32_t> cu_seqlens;

  int64_t chunk_rows() const;  // s / (2c)
};

// Position in its row of the token at `local` in [0, s / c) of rank `rank`'s part of that row.
int64_t zigzag_position(const ZigzagBatch& batch, int64_t rank, int64_t local);

// The queries of `query_rank` against the keys that `kv_rank` holds, both in rows of their rank: one step of the ring.
// No query row and no key row is in two segments. For kv_rank == query_rank these are the rank's parts of documents,
// causal. Otherwise at most one segment a row of the batch, without a mask: only one document reaches from one chunk
// into another; an earlier rank's first chunk is seen by all queries of the rank, a later rank's chunks both by those
// of the second chunk.
std::vector<AttentionSegment> ring_segments(const ZigzagBatch& batch, int64_t query_rank, int64_t kv_rank);

// The queries of `query_rank`, in its rows, against all keys of the microbatch, numbered row by row by position (row b,
// position x: b s + x). One segment for each document and chunk that meet, causal; both segments of a document start at
// its first key. An all-gather leaves the keys in rank order, in which a document is up to c ranges; gathered_chunks()
// says where each chunk lies. The kernels read keys through that table while they copy them into tiles, which costs
// nothing. The other two ways cost: copying the keys into the order of positions moves 2 x 2kd s b bytes and holds them
// twice; c calls over the ring's segments move 4 fp32 a d s a rank to merge partial outputs (for a = 4 k and bf16 eight
// times as many bytes), and start c times.
std::vector<AttentionSegment> gathered_segments(const ZigzagBatch& batch, int64_t query_rank);

// For an all-gather of every rank's rows in rank order: chunk g of row b, which is chunk 2c b + g of the numbering of
// gathered_segments(), is chunk number result[2c b + g] of the gathered buffer.
std::vector<int32_t> gathered_chunks(const ZigzagBatch& batch);

}  // namespace fivefold
