// Attention over lists of segments: queries and keys in different buffers, any mix of masks, keys in chunks, gradients
// that are overwritten or added to.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>

#include "engine/ops/attention_testing.h"

namespace fivefold::ops {
namespace {

using kernels::Accumulate;
using kernels::kElementTypeOf;

// A random list of segments: query ranges that do not meet, with gaps; groups of segments with gaps between the keys
// of groups; both masks; segments without rows; the keys of some cases in shuffled chunks.
struct SegmentCase {
  explicit SegmentCase(unsigned seed) : random(seed) {
    num_kv_heads = pick(1, 3), num_heads = num_kv_heads * pick(1, 5), head_dim = pick(1, 70);
    const int64_t longest = pick(0, 7) == 0 ? 600 : 150;
    for (int64_t groups = pick(1, 3); groups > 0; --groups) {
      kv_rows += pick(0, 20);
      int64_t keys = 0;
      for (int64_t members = pick(1, 3); members > 0; --members) {
        q_rows += pick(0, 20);
        AttentionSegment s{
            .q_begin = q_rows, .q_len = pick(0, longest), .kv_begin = kv_rows, .kv_len = pick(0, longest)};
        if (pick(0, 9) == 0) s.kv_len = 0;
        s.mask = s.q_len > s.kv_len || pick(0, 1) ? AttentionMask::kFull : AttentionMask::kCausal;
        segments.push_back(s);
        q_rows += s.q_len;
        keys = std::max(keys, s.kv_len);
      }
      kv_rows += keys;
    }
    q_rows += pick(1, 20), kv_rows += pick(1, 20);
    std::shuffle(segments.begin(), segments.end(), random);
    if (pick(0, 1)) {
      chunk_rows = pick(1, 90);
      kv_rows = round_up(kv_rows, chunk_rows);
      chunks.resize(static_cast<size_t>(kv_rows / chunk_rows));
      std::iota(chunks.begin(), chunks.end(), 0);
      std::shuffle(chunks.begin(), chunks.end(), random);
    }
  }
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); }

  // Where row i of the segments' keys lies.
  int64_t place(int64_t i) const { return chunks.empty() ? i : chunks[i / chunk_rows] * chunk_rows + i % chunk_rows; }
  // Rows of a buffer, in the order of the segments.
  template <typename T>
  std::vector<T> in_order(const std::vector<T>& rows, int64_t width) const {
    std::vector<T> ordered(rows.size());
    for (int64_t i = 0; i < kv_rows; ++i) {
      std::copy_n(rows.begin() + place(i) * width, width, ordered.begin() + i * width);
    }
    return ordered;
  }

  std::mt19937 random;
  std::vector<AttentionSegment> segments;
  int64_t q_rows = 0, kv_rows = 0, num_heads, num_kv_heads, head_dim, chunk_rows = 0;
  std::vector<int32_t> chunks;
};

// A call on a case: queries in one buffer, keys and values side by side in another, each with a gap between rows.
// Gradients of queries and of keys and values in buffers of type Q and KV.
template <typename Element, typename Q = Element, typename KV = Element>
struct SegmentCall {
  explicit SegmentCall(const SegmentCase& c_in)
      : c(c_in),
        q_width(c.num_heads * c.head_dim),
        kv_width(c.num_kv_heads * c.head_dim),
        layout{.segments = c.segments,
               .q_rows = c.q_rows,
               .kv_rows = c.kv_rows,
               .num_heads = c.num_heads,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim,
               .q_stride = q_width + 3,
               .kv_stride = 2 * kv_width + 5,
               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
               .kv_chunks = c.chunks,
               .kv_chunk_rows = c.chunk_rows},
        q(random_elements<Element>(c.q_rows * layout.q_stride, 1)),
        kv(random_elements<Element>(c.kv_rows * layout.kv_stride, 2)),
        d_o(random_elements<Element>(c.q_rows * q_width, 3)),
        o(d_o.size(), from_float<Element>(NAN)),
        lse(static_cast<size_t>(c.num_heads * c.q_rows), NAN),
        d_q(d_o.size(), from_float<Q>(NAN)),
        d_kv(static_cast<size_t>(2 * c.kv_rows * kv_width), from_float<KV>(NAN)) {}
  SegmentCall(const SegmentCall&) = delete;
  SegmentCall& operator=(const SegmentCall&) = delete;

  AttentionInputs<Element> inputs() const { return {q.data(), kv.data(), kv.data() + kv_width}; }
  void forward() { run_forward(layout, inputs(), {.data = o.data(), .type = kElementTypeOf<Element>}, lse.data()); }
  void backward(Accumulate mode = Accumulate::kOverwrite) {
    const auto keys = [&](int64_t column) {
      return AttentionGradient{
          .data = d_kv.data() + column, .type = kElementTypeOf<KV>, .stride = 2 * kv_width, .mode = mode};
    };
    run_backward(
        layout, inputs(), o.data(), lse.data(), d_o.data(),
        {{.data = d_q.data(), .type = kElementTypeOf<Q>, .stride = q_width, .mode = mode}, keys(0), keys(kv_width)});
  }
  AttentionValues values() const {
    return {widen(columns(q, layout.q_stride, 0, q_width)),
            widen(c.in_order(columns(kv, layout.kv_stride, 0, kv_width), kv_width)),
            widen(c.in_order(columns(kv, layout.kv_stride, kv_width, kv_width), kv_width)), widen(d_o)};
  }
  AttentionReference reference() const { return AttentionReference(layout, values(), kRounding<Element>); }
  double share_of_gradients(const AttentionReference& expected) const {
    return std::max(
        {share_of_bound(d_q, expected.d_q),
         share_of_bound(c.in_order(columns(d_kv, 2 * kv_width, 0, kv_width), kv_width), expected.d_k),
         share_of_bound(c.in_order(columns(d_kv, 2 * kv_width, kv_width, kv_width), kv_width), expected.d_v)});
  }

  const SegmentCase& c;
  int64_t q_width, kv_width;
  AttentionLayout layout;
  std::vector<Element> q, kv, d_o, o;
  std::vector<float> lse;
  std::vector<Q> d_q;
  std::vector<KV> d_kv;
};

constexpr unsigned kCases = 40;

template <typename Element, typename Gradient>
void expect_matches_definition() {
  const int threads_before = at::get_num_threads();
  double o = 0.0, lse = 0.0, gradients = 0.0;
  for (unsigned seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    const SegmentCase c(seed);
    SegmentCall<Element, Gradient, Gradient> call(c);
    at::set_num_threads(1 + static_cast<int>(seed % 3));
    call.forward();
    call.backward();
    const AttentionReference reference = call.reference();
    o = std::max(o, share_of_bound(call.o, reference.o));
    lse = std::max(lse, share_of_bound(call.lse, reference.lse));
    gradients = std::max(gradients, call.share_of_gradients(reference));
    ASSERT_LE(std::max({o, lse, gradients}), 1.0);
  }
  std::cout << "share of bound: o " << o << ", lse " << lse << ", gradients " << gradients << "\n";
  at::set_num_threads(threads_before);
}

TEST(AttentionSegments, MatchDefinitionInFp32) { expect_matches_definition<float, float>(); }
TEST(AttentionSegments, MatchDefinitionInBf16) { expect_matches_definition<BFloat16, BFloat16>(); }
TEST(AttentionSegments, MatchDefinitionInFp16) { expect_matches_definition<Float16, Float16>(); }
TEST(AttentionSegments, MatchDefinitionInFp16WithFp32Gradients) { expect_matches_definition<Float16, float>(); }
TEST(AttentionSegments, MatchDefinitionInBf16WithFp32Gradients) { expect_matches_definition<BFloat16, float>(); }

// The definition that the kernels are held against, against libtorch's autograd through a dense mask, in fp64.
TEST(AttentionSegments, DefinitionAgreesWithAutograd) {
  const auto largest_difference = [](const at::Tensor& right, const std::vector<double>& found) {
    const at::Tensor other = at::from_blob(const_cast<double*>(found.data()), right.sizes(), at::kDouble);
    return right.numel() == 0 ? 0.0 : (right - other).abs().max().item<double>();
  };
  for (unsigned seed = 0; seed < kCases; seed += 2) {
    SCOPED_TRACE(seed);
    const SegmentCase c(seed);
    const SegmentCall<float> call(c);
    const AttentionReference reference = call.reference();
    const AttentionValues values = call.values();
    const int64_t a = c.num_heads, k = c.num_kv_heads, d = c.head_dim;
    const auto leaf = [&](const std::vector<double>& from, int64_t heads) {
      const at::Tensor rows = at::from_blob(const_cast<double*>(from.data()),
                                            {static_cast<int64_t>(from.size()) / (heads * d), heads, d}, at::kDouble);
      return rows.clone().requires_grad_(true);
    };
    const at::Tensor q = leaf(values.q, a), key = leaf(values.k, k), value = leaf(values.v, k);
    at::Tensor hidden = at::ones({c.q_rows, c.kv_rows}, at::kBool);
    for (const AttentionSegment& s : c.segments) {
      at::Tensor block = hidden.narrow(0, s.q_begin, s.q_len).narrow(1, s.kv_begin, s.kv_len);
      const at::Tensor all = at::ones({s.q_len, s.kv_len}, at::kBool);
      block.copy_(s.mask == AttentionMask::kFull ? all.logical_not() : all.triu(1 + s.kv_len - s.q_len));
    }
    const auto grouped = [&](const at::Tensor& rows) { return rows.repeat_interleave(a / k, 1).permute({1, 2, 0}); };
    const at::Tensor scores =
        (at::matmul(q.transpose(0, 1), grouped(key)) * double{call.layout.scale}).masked_fill(hidden, -INFINITY);
    const at::Tensor sees = hidden.logical_not().any(1).view({1, -1, 1});
    const at::Tensor p = at::where(sees, scores, at::zeros_like(scores)).softmax(-1) * sees;
    const at::Tensor o = at::matmul(p, grouped(value).transpose(1, 2)).transpose(0, 1);
    const at::Tensor d_o = at::from_blob(const_cast<double*>(values.d_o.data()), {c.q_rows, a, d}, at::kDouble);
    o.backward(d_o);
    EXPECT_LE(largest_difference(o, reference.o.value), 1e-12);
    EXPECT_LE(largest_difference(q.grad(), reference.d_q.value), 1e-11);
    EXPECT_LE(largest_difference(key.grad(), reference.d_k.value), 1e-11);
    EXPECT_LE(largest_difference(value.grad(), reference.d_v.value), 1e-11);
    const at::Tensor lse = scores.logsumexp(-1);
    const at::Tensor found = at::from_blob(const_cast<double*>(reference.lse.value.data()), lse.sizes(), at::kDouble);
    EXPECT_TRUE(at::allclose(lse, found, 1e-12, 1e-12));
  }
}

// What is added is what would be written. The sum may be rounded once or, with the product, twice.
template <typename Gradient>
void expect_adds(double rounding) {
  for (unsigned seed = 0; seed < kCases; seed += 4) {
    SCOPED_TRACE(seed);
    const SegmentCase c(seed);
    SegmentCall<BFloat16, float, float> written(c);
    SegmentCall<BFloat16, Gradient, Gradient> added(c);
    written.forward();
    added.forward();
    written.backward();
    added.d_q = random_elements<Gradient>(static_cast<int64_t>(added.d_q.size()), 4);
    added.d_kv = random_elements<Gradient>(static_cast<int64_t>(added.d_kv.size()), 5);
    const auto d_q_before = added.d_q, d_kv_before = added.d_kv;
    added.backward(Accumulate::kAdd);
    const auto expect_sum = [&](const auto& before, const std::vector<float>& addend, const auto& sum) {
      for (size_t i = 0; i < sum.size(); ++i) {
        const double right = double{to_float(before[i])} + addend[i];
        ASSERT_NEAR(to_float(sum[i]), right, rounding * std::abs(right) + 0x1p-24 * std::abs(addend[i]));
      }
    };
    expect_sum(d_q_before, written.d_q, added.d_q);
    expect_sum(d_kv_before, written.d_kv, added.d_kv);
  }
}

TEST(AttentionSegments, GradientsAreAddedInFp32) { expect_adds<float>(0x1p-23); }
TEST(AttentionSegments, GradientsAreAddedInBf16) { expect_adds<BFloat16>(0x1.01p-8); }

template <typename Element>
void expect_same_bits_for_every_thread_count() {
  const int threads_before = at::get_num_threads();
  const auto bytes = [](const SegmentCall<Element, float, Element>& call) {
    std::vector<char> all;
    const auto append = [&](const auto& values) {
      const char* first = reinterpret_cast<const char*>(values.data());
      all.insert(all.end(), first, first + values.size() * sizeof(values[0]));
    };
    append(call.o), append(call.lse), append(call.d_q), append(call.d_kv);
    return all;
  };
  for (unsigned seed = 0; seed < kCases; seed += 4) {
    const SegmentCase c(seed);
    std::vector<char> one;
    for (const int threads : {1, 2, 3, 7}) {
      at::set_num_threads(threads);
      SegmentCall<Element, float, Element> call(c);
      call.forward();
      call.backward();
      if (threads == 1) one = bytes(call);
      EXPECT_TRUE(bytes(call) == one) << "case " << seed << ", " << threads << " threads";
    }
  }
  at::set_num_threads(threads_before);
}

TEST(AttentionSegments, BitsDoNotDependOnTheNumberOfThreads) {
  expect_same_bits_for_every_thread_count<float>();
  expect_same_bits_for_every_thread_count<BFloat16>();
}

// A NaN outside the segments of a query, in its buffers' gaps or in keys that it does not see, stays there. Two causal
// segments share their first keys; the first must not see those that only the second sees.
TEST(AttentionSegments, HiddenKeysChangeNothing) {
  const std::vector<AttentionSegment> segments = {{0, 30, 0, 70, AttentionMask::kCausal},
                                                  {30, 50, 0, 130, AttentionMask::kFull}};
  SegmentCase c(0);
  c.segments = segments, c.q_rows = 90, c.kv_rows = 140, c.num_heads = 2, c.num_kv_heads = 1, c.head_dim = 16;
  c.chunks.clear(), c.chunk_rows = 0;
  SegmentCall<float> call(c), disturbed(c);
  for (int64_t row = 70; row < 140; ++row) disturbed.kv[row * disturbed.layout.kv_stride] = NAN;
  call.forward();
  disturbed.forward();
  EXPECT_EQ(0, std::memcmp(call.o.data(), disturbed.o.data(), 30 * call.q_width * sizeof(float)));
  EXPECT_TRUE(std::isnan(disturbed.o[30 * call.q_width]));
  EXPECT_EQ(disturbed.o[85 * call.q_width], 0.0f);
}

// The partial scores of a block may lie far below those of the whole: exp(s - lse) of rows and keys that only fill a
// tile must not reach a gradient as infinity times zero.
TEST(AttentionSegments, HoldsForLogSumExpsFarFromTheScores) {
  SegmentCase c(0);
  c.segments = {{0, 70, 0, 33, AttentionMask::kFull}}, c.q_rows = 70, c.kv_rows = 33;
  c.num_heads = 1, c.num_kv_heads = 1, c.head_dim = 16, c.chunks.clear(), c.chunk_rows = 0;
  SegmentCall<float> call(c);
  for (int64_t i = 0; i < c.q_rows; ++i) std::fill_n(call.q.begin() + i * call.layout.q_stride, 16, 8.0f);
  for (int64_t i = 0; i < c.kv_rows; ++i) std::fill_n(call.kv.begin() + i * call.layout.kv_stride, 16, -8.0f);
  call.forward();  // scores of -256: a key of zeros would weigh e^256
  call.backward();
  const AttentionReference reference = call.reference();
  EXPECT_LE(share_of_bound(call.o, reference.o), 1.0);
  EXPECT_LE(share_of_bound(call.lse, reference.lse), 1.0);
  EXPECT_LE(call.share_of_gradients(reference), 1.0);
}

TEST(AttentionSegmentsDeathTest, RefusesListsThatItCannotSum) {
  constexpr AttentionMask kFull = AttentionMask::kFull, kCausal = AttentionMask::kCausal;
  const auto run = [](std::vector<AttentionSegment> segments) {
    SegmentCase c(0);
    c.segments = std::move(segments), c.q_rows = 20, c.kv_rows = 20, c.chunks.clear(), c.chunk_rows = 0;
    SegmentCall<float>(c).forward();
  };
  at::set_num_threads(1);
  EXPECT_DEATH(run({{0, 4, 0, 4, kFull}, {3, 4, 8, 4, kFull}}), "in two segments");
  EXPECT_DEATH(run({{0, 4, 0, 4, kFull}, {4, 4, 3, 4, kFull}}), "key ranges cross");
  EXPECT_DEATH(run({{0, 4, 0, 21, kFull}}), "beyond the rows");
  EXPECT_DEATH(run({{0, 4, 0, 3, kCausal}}), "more rows than keys");
}

}  // namespace
}  // namespace fivefold::ops
