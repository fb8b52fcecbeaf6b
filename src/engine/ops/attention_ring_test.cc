// Context parallelism by hand, in one process: packed documents split in zigzag chunks over 1 to 4 ranks, whose
// attention, by a ring or over gathered keys, must be that of the whole.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <set>
#include <vector>

#include "engine/ops/attention_testing.h"
#include "kernels/elementwise.h"

namespace fivefold::ops {
namespace {

using kernels::Accumulate;
using kernels::kElementTypeOf;

// A microbatch with documents whose borders cut chunks anywhere.
struct RingCase {
  RingCase(unsigned seed, int64_t degree_in) : degree(degree_in) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    rows = pick(1, 2), sequence = 2 * degree * pick(1, 90);
    heads = {.lengths = {}, .num_heads = 0, .num_kv_heads = pick(1, 2), .head_dim = pick(1, 40)};
    heads.num_heads = heads.num_kv_heads * pick(1, 4);
    std::set<int64_t> borders;
    for (int64_t row = 0; row <= rows; ++row) borders.insert(row * sequence);
    for (int64_t n = pick(0, 3) * rows; n > 0; --n) borders.insert(pick(1, rows * sequence - 1));
    for (auto border = std::next(borders.begin()); border != borders.end(); ++border) {
      heads.lengths.push_back(static_cast<int32_t>(*border - *std::prev(border)));
    }
  }

  int64_t degree, rows, sequence;
  AttentionCase heads;
};

// Attention of the whole, its split over ranks, and the results of the ranks put together again.
template <typename Element>
class SplitCall {
 public:
  explicit SplitCall(const RingCase& c)
      : whole(c.heads),
        batch{.rows = c.rows, .sequence = c.sequence, .degree = c.degree, .cu_seqlens = whole.offsets},
        q_width(c.heads.num_heads * c.heads.head_dim),
        kv_width(c.heads.num_kv_heads * c.heads.head_dim),
        rank_rows(c.rows * c.sequence / c.degree),
        o(whole.o.size(), from_float<Element>(NAN)),
        lse(whole.lse.size(), NAN),
        d_q(static_cast<size_t>(whole.tokens * q_width), NAN),
        d_kv(static_cast<size_t>(whole.tokens * 2 * kv_width), NAN) {}

  // Row of the whole that is row i of a rank.
  int64_t global_row(int64_t rank, int64_t i) const {
    const int64_t part = batch.sequence / batch.degree;
    return i / part * batch.sequence + zigzag_position(batch, rank, i % part);
  }
  // A rank's rows of `from`, from column `first` on, and back.
  template <typename T>
  std::vector<T> take(const std::vector<T>& from, int64_t stride, int64_t first, int64_t width, int64_t rank) const {
    std::vector<T> rows(static_cast<size_t>(rank_rows * width));
    for (int64_t i = 0; i < rank_rows; ++i) {
      std::copy_n(from.begin() + global_row(rank, i) * stride + first, width, rows.begin() + i * width);
    }
    return rows;
  }
  template <typename T>
  void give(const std::vector<T>& rows, int64_t width, int64_t rank, std::vector<T>& to) const {
    for (int64_t i = 0; i < rank_rows; ++i) {
      std::copy_n(rows.begin() + i * width, width, to.begin() + global_row(rank, i) * width);
    }
  }
  void give_lse(const std::vector<float>& rows, int64_t rank) {
    for (int64_t head = 0; head < whole.layout.num_heads; ++head) {
      for (int64_t i = 0; i < rank_rows; ++i) {
        lse[head * whole.tokens + global_row(rank, i)] = rows[head * rank_rows + i];
      }
    }
  }

  AttentionLayout layout(const std::vector<AttentionSegment>& segments, int64_t kv_rows) const {
    AttentionLayout l = whole.layout;
    l.segments = segments, l.q_rows = rank_rows, l.kv_rows = kv_rows, l.q_stride = q_width, l.kv_stride = 2 * kv_width;
    return l;
  }
  AttentionInputs<Element> inputs(const std::vector<Element>& q, const std::vector<Element>& kv) const {
    return {q.data(), kv.data(), kv.data() + kv_width};
  }
  AttentionGradients gradients(std::vector<float>& dq, Accumulate q_mode, std::vector<float>& dkv,
                               Accumulate kv_mode) const {
    const auto keys = [&](int64_t column) {
      return AttentionGradient{.data = dkv.data() + column, .stride = 2 * kv_width, .mode = kv_mode};
    };
    return {{.data = dq.data(), .stride = q_width, .mode = q_mode}, keys(0), keys(kv_width)};
  }

  // Every rank against every block of keys, in rank order, as a ring brings them (in another order).
  void run_ring() {
    const int64_t c = batch.degree;
    std::vector<std::vector<Element>> q, kv, d_out;
    for (int64_t r = 0; r < c; ++r) {
      q.push_back(take(whole.qkv, whole.row, 0, q_width, r));
      kv.push_back(take(whole.qkv, whole.row, q_width, 2 * kv_width, r));
      d_out.push_back(take(whole.d_o, q_width, 0, q_width, r));
    }
    std::vector<std::vector<float>> dkv(c, std::vector<float>(static_cast<size_t>(rank_rows * 2 * kv_width), NAN));
    for (int64_t r = 0; r < c; ++r) {
      std::vector<float> sum(q[r].size(), NAN), log_sum(static_cast<size_t>(rank_rows * whole.layout.num_heads), NAN);
      for (int64_t j = 0; j < c; ++j) {
        const std::vector<AttentionSegment> segments = ring_segments(batch, r, j);
        using Mode = AttentionOutput::Mode;
        run_forward(layout(segments, rank_rows), inputs(q[r], kv[j]),
                    {.data = sum.data(), .mode = j == 0 ? Mode::kOverwrite : Mode::kMerge}, log_sum.data());
      }
      std::vector<Element> out(sum.size());
      std::transform(sum.begin(), sum.end(), out.begin(), from_float<Element>);
      std::vector<float> dq(sum.size(), NAN);
      for (int64_t j = 0; j < c; ++j) {
        const std::vector<AttentionSegment> segments = ring_segments(batch, r, j);
        const auto mode = [](int64_t visit) { return visit == 0 ? Accumulate::kOverwrite : Accumulate::kAdd; };
        run_backward(layout(segments, rank_rows), inputs(q[r], kv[j]), out.data(), log_sum.data(), d_out[r].data(),
                     gradients(dq, mode(j), dkv[j], mode(r)));
      }
      give(out, q_width, r, o);
      give_lse(log_sum, r);
      give(dq, q_width, r, d_q);
    }
    for (int64_t r = 0; r < c; ++r) give(dkv[r], 2 * kv_width, r, d_kv);
  }

  // Every rank against all keys as an all-gather leaves them, in one call; key gradients added up over ranks.
  void run_gathered() {
    const int64_t c = batch.degree;
    std::vector<Element> kv;
    for (int64_t r = 0; r < c; ++r) {
      const std::vector<Element> own = take(whole.qkv, whole.row, q_width, 2 * kv_width, r);
      kv.insert(kv.end(), own.begin(), own.end());
    }
    const std::vector<int32_t> chunks = gathered_chunks(batch);
    std::vector<float> sum(kv.size(), 0.0f);
    for (int64_t r = 0; r < c; ++r) {
      const std::vector<AttentionSegment> segments = gathered_segments(batch, r);
      AttentionLayout l = layout(segments, whole.tokens);
      l.kv_chunks = chunks, l.kv_chunk_rows = batch.chunk_rows();
      const std::vector<Element> q = take(whole.qkv, whole.row, 0, q_width, r);
      const std::vector<Element> d_out = take(whole.d_o, q_width, 0, q_width, r);
      std::vector<Element> out(q.size(), from_float<Element>(NAN));
      std::vector<float> log_sum(static_cast<size_t>(rank_rows * l.num_heads), NAN), dq(q.size(), NAN);
      std::vector<float> dkv(kv.size(), NAN);
      run_forward(l, inputs(q, kv), {.data = out.data(), .type = kElementTypeOf<Element>}, log_sum.data());
      run_backward(l, inputs(q, kv), out.data(), log_sum.data(), d_out.data(),
                   gradients(dq, Accumulate::kOverwrite, dkv, Accumulate::kOverwrite));
      kernels::add_into(dkv.data(), sum.data(), static_cast<int64_t>(sum.size()), 1);
      give(out, q_width, r, o);
      give_lse(log_sum, r);
      give(dq, q_width, r, d_q);
    }
    const int64_t block = rank_rows * 2 * kv_width;
    for (int64_t r = 0; r < c; ++r) {
      give(std::vector<float>(sum.begin() + r * block, sum.begin() + (r + 1) * block), 2 * kv_width, r, d_kv);
    }
  }

  // Largest share of a bound that any result takes.
  double share() const {
    const AttentionReference reference(whole.layout, whole.values(), kRounding<Element>, batch.degree);
    return std::max({share_of_bound(o, reference.o), share_of_bound(lse, reference.lse),
                     share_of_bound(d_q, reference.d_q),
                     share_of_bound(columns(d_kv, 2 * kv_width, 0, kv_width), reference.d_k),
                     share_of_bound(columns(d_kv, 2 * kv_width, kv_width, kv_width), reference.d_v)});
  }

  AttentionCall<Element> whole;
  ZigzagBatch batch;
  int64_t q_width, kv_width, rank_rows;
  std::vector<Element> o;
  std::vector<float> lse, d_q, d_kv;
};

template <typename Element>
void expect_ranks_give_the_whole(void (SplitCall<Element>::*run)()) {
  at::set_num_threads(2);
  for (int64_t degree = 1; degree <= 4; ++degree) {
    double share = 0.0;
    for (unsigned seed = 0; seed < 12; ++seed) {
      const RingCase c(seed, degree);
      SCOPED_TRACE(testing::Message() << "degree " << degree << ", rows " << c.rows << " of " << c.sequence << ", "
                                      << c.heads);
      SplitCall<Element> split(c);
      (split.*run)();
      share = std::max(share, split.share());
      ASSERT_LE(share, 1.0);
    }
    std::cout << "degree " << degree << ": share of bound " << share << "\n";
  }
}

TEST(AttentionRing, RingGivesTheWholeInFp32) { expect_ranks_give_the_whole(&SplitCall<float>::run_ring); }
TEST(AttentionRing, RingGivesTheWholeInBf16) { expect_ranks_give_the_whole(&SplitCall<BFloat16>::run_ring); }
TEST(AttentionRing, GatheredKeysGiveTheWholeInFp32) { expect_ranks_give_the_whole(&SplitCall<float>::run_gathered); }
TEST(AttentionRing, RingGivesTheWholeInFp16) { expect_ranks_give_the_whole(&SplitCall<Float16>::run_ring); }
TEST(AttentionRing, GatheredKeysGiveTheWholeInBf16) { expect_ranks_give_the_whole(&SplitCall<BFloat16>::run_gathered); }

}  // namespace
}  // namespace fivefold::ops
