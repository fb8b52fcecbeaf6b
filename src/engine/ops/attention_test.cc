#include "engine/ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <ostream>
#include <random>
#include <type_traits>
#include <vector>

namespace fivefold::ops {
namespace {

using kernels::BFloat16;
using kernels::from_float;
using kernels::to_float;

struct Case {
  std::vector<int32_t> lengths;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << "heads " << c.num_heads << "/" << c.num_kv_heads << " of " << c.head_dim << ", documents";
  for (const int32_t length : c.lengths) out << ' ' << length;
  return out;
}

std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> offsets{0};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// Inputs and outputs of a call, with a layout that refers to its own offsets.
template <typename Element>
struct Call {
  explicit Call(const Case& c, int64_t gap = 0)
      : offsets(offsets_of(c.lengths)),
        tokens(offsets.back()),
        row((c.num_heads + 2 * c.num_kv_heads) * c.head_dim),
        layout{.cu_seqlens = offsets,
               .num_heads = c.num_heads,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim,
               .qkv_stride = row + gap,
               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))},
        qkv(random(tokens * layout.qkv_stride, 1)),
        d_o(random(tokens * c.num_heads * c.head_dim, 2)),
        o(d_o.size(), from_float<Element>(NAN)),
        lse(static_cast<size_t>(c.num_heads * tokens), NAN),
        d_qkv(qkv.size(), from_float<Element>(NAN)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  static std::vector<Element> random(int64_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<Element> values(static_cast<size_t>(count));
    for (Element& value : values) value = from_float<Element>(normal(generator));
    return values;
  }

  void forward() {
    with_scratch(attention_forward_scratch_bytes(layout.shape(), at::get_num_threads()),
                 [&](std::span<std::byte> s) { attention_forward(layout, qkv.data(), o.data(), lse.data(), s); });
  }
  void backward() {
    with_scratch(attention_backward_scratch_bytes(layout.shape(), at::get_num_threads()), [&](std::span<std::byte> s) {
      attention_backward(layout, qkv.data(), o.data(), lse.data(), d_o.data(), d_qkv.data(), s);
    });
  }

  // Exactly the stated bytes, full of NaN, between two guards that must survive.
  template <typename F>
  static void with_scratch(int64_t bytes, F&& f) {
    constexpr int64_t kGuard = 64;
    at::Tensor memory = at::empty({bytes + 2 * kGuard}, at::kByte);
    memory.fill_(0xff);
    auto* data = static_cast<std::byte*>(memory.data_ptr());
    f(std::span<std::byte>(data + kGuard, static_cast<size_t>(bytes)));
    for (int64_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(data[i], std::byte{0xff});
      ASSERT_EQ(data[kGuard + bytes + i], std::byte{0xff});
    }
  }

  std::vector<int32_t> offsets;
  int64_t tokens;
  int64_t row;
  AttentionLayout layout;
  std::vector<Element> qkv, d_o, o;
  std::vector<float> lse;
  std::vector<Element> d_qkv;
};

// A value in fp64 and a bound on the distance of a computed value from it.
struct Bounded {
  std::vector<double> value;
  std::vector<double> bound;
  explicit Bounded(size_t count) : value(count), bound(count) {}
  void add(size_t i, double v, double b) {
    value[i] += v;
    bound[i] += b;
  }
};

// The definition of attention, in fp64, with first-order error bounds carried along (Note [Error of attention]).
//
// Note [Error of attention]
// u = 2^-24 for fp32 arithmetic, r = unit roundoff of an operand (2^-8 for bf16, 0 for fp32 operands, which are used as
// they are). A dot product of n terms errs by at most n u sum |x y|. A score s errs by e_s = (d + 2) u scale sum |q k|;
// the exponent's argument is rounded relative to |s| and |lse| again, and the polynomial errs by 4 u, so that a
// probability errs relatively by  e_p = 2 max e_s + 4 u (|s| + |lse|) + 4 u + n u.  Then
//   o    : sum p |v| (e_p + r + n u)
//   d_s  : p (e_p |d_p - dot| + e_dp + e_dot), plus r |d_s|;  e_dp = d u sum |d_o v|, e_dot = (d u + R) sum |o d_o|
//   d_q, d_k : scale sum (e_ds + n u |d_s|) |k or q|;  d_v : sum p (e_p + r + n u) |d_o|
// and each written element is rounded by R = 2^-8 (bf16) or 2^-24 (fp32) of itself. Bounds get 1 % for second order.
struct Reference {
  template <typename Element>
  explicit Reference(const Call<Element>& call) : o(call.o.size()), lse(call.lse.size()), d_qkv(call.d_qkv.size()) {
    const bool narrow = std::is_same_v<Element, BFloat16>;
    operand_roundoff = narrow ? 0x1p-8 : 0.0;
    output_roundoff = narrow ? 0x1p-8 : 0x1p-24;
    const std::vector<double> qkv = widen(call.qkv), d_o = widen(call.d_o);
    for (size_t i = 0; i + 1 < call.offsets.size(); ++i) {
      for (int64_t head = 0; head < call.layout.num_heads; ++head) {
        add_head(call.layout, qkv, d_o, call.offsets[i], call.offsets[i + 1], head);
      }
    }
    for (Bounded* result : {&o, &d_qkv}) {
      for (size_t i = 0; i < result->value.size(); ++i) {
        result->bound[i] = 1.01 * (result->bound[i] + output_roundoff * std::abs(result->value[i])) + 1e-30;
      }
    }
  }

  template <typename Element>
  static std::vector<double> widen(const std::vector<Element>& values) {
    std::vector<double> wide(values.size());
    std::transform(values.begin(), values.end(), wide.begin(), [](Element v) { return double{to_float(v)}; });
    return wide;
  }

  void add_head(const AttentionLayout& l, const std::vector<double>& qkv, const std::vector<double>& d_o, int64_t begin,
                int64_t end, int64_t head) {
    constexpr double u = 0x1p-24;
    const int64_t d = l.head_dim, tokens = l.cu_seqlens.back();
    const int64_t kv_head = head / (l.num_heads / l.num_kv_heads);
    const int64_t group = l.num_heads / l.num_kv_heads;
    const double key_terms = static_cast<double>(group * (end - begin));
    for (int64_t i = begin; i < end; ++i) {
      const double n = static_cast<double>(i - begin + 1);
      const size_t q = static_cast<size_t>(i * l.qkv_stride + head * d);
      const size_t out = static_cast<size_t>((i * l.num_heads + head) * d);
      const auto key = [&](int64_t j) { return static_cast<size_t>(j * l.qkv_stride + (l.num_heads + kv_head) * d); };
      const auto value = [&](int64_t j) { return key(j) + static_cast<size_t>(l.num_kv_heads * d); };
      std::vector<double> s(static_cast<size_t>(n)), dp(s.size()), dp_size(s.size());
      double largest = -std::numeric_limits<double>::infinity(), e_s = 0.0;
      for (int64_t j = begin; j <= i; ++j) {
        double dot = 0.0, size = 0.0, d_dot = 0.0, d_size = 0.0;
        for (int64_t c = 0; c < d; ++c) {
          const double x = qkv[q + c] * qkv[key(j) + c], y = d_o[out + c] * qkv[value(j) + c];
          dot += x, size += std::abs(x), d_dot += y, d_size += std::abs(y);
        }
        s[j - begin] = l.scale * dot, dp[j - begin] = d_dot, dp_size[j - begin] = d_size;
        e_s = std::max(e_s, static_cast<double>(d + 2) * u * l.scale * size);
        largest = std::max(largest, s[j - begin]);
      }
      double sum = 0.0;
      for (const double x : s) sum += std::exp(x - largest);
      const double log_sum = largest + std::log(sum);
      double row_dot = 0.0, o_size = 0.0;
      std::vector<double> p(s.size()), e_p(s.size());
      for (size_t j = 0; j < s.size(); ++j) {
        p[j] = std::exp(s[j] - log_sum);
        e_p[j] = 2 * e_s + 4 * u * (std::abs(s[j]) + std::abs(log_sum)) + 4 * u + n * u;
        row_dot += p[j] * dp[j];
        for (int64_t c = 0; c < d; ++c) {
          const double v = p[j] * qkv[value(begin + static_cast<int64_t>(j)) + c];
          o.add(out + c, v, std::abs(v) * (e_p[j] + operand_roundoff + n * u));
        }
      }
      const size_t statistic = static_cast<size_t>(head * tokens + i);
      lse.value[statistic] = log_sum;
      lse.bound[statistic] = 1.01 * (e_s + 4 * u * (std::abs(largest) + std::abs(log_sum)) + (n + 8) * u);
      for (int64_t c = 0; c < d; ++c) o_size += std::abs(o.value[out + c] * d_o[out + c]);
      const double e_dot = o_size * (static_cast<double>(d) * u + output_roundoff);
      for (size_t j = 0; j < s.size(); ++j) {
        const size_t k = key(begin + static_cast<int64_t>(j)), v = value(begin + static_cast<int64_t>(j));
        const double ds = p[j] * (dp[j] - row_dot);
        const double e_ds =
            p[j] * (e_p[j] * std::abs(dp[j] - row_dot) + static_cast<double>(d) * u * dp_size[j] + e_dot) +
            operand_roundoff * std::abs(ds) + (key_terms + n) * u * std::abs(ds);
        for (int64_t c = 0; c < d; ++c) {
          d_qkv.add(q + c, l.scale * ds * qkv[k + c], l.scale * e_ds * std::abs(qkv[k + c]));
          d_qkv.add(k + c, l.scale * ds * qkv[q + c], l.scale * e_ds * std::abs(qkv[q + c]));
          d_qkv.add(v + c, p[j] * d_o[out + c],
                    p[j] * std::abs(d_o[out + c]) * (e_p[j] + operand_roundoff + key_terms * u));
        }
      }
    }
  }

  double operand_roundoff, output_roundoff;
  Bounded o, lse, d_qkv;
};

// Largest share of its bound that an element's error takes; infinity for a NaN.
template <typename Element>
double share_of_bound(const std::vector<Element>& computed, const Bounded& expected, double factor = 1.0) {
  double share = 0.0;
  for (size_t i = 0; i < computed.size(); ++i) {
    const double error = std::abs(double{to_float(computed[i])} - expected.value[i]);
    share = std::max(share, std::isnan(error) ? INFINITY : error / (factor * expected.bound[i]));
  }
  return share;
}

template <typename Element>
void expect_matches_reference(const Case& c) {
  SCOPED_TRACE(testing::PrintToString(c));
  Call<Element> call(c);
  const Reference reference(call);
  call.forward();
  const double o = share_of_bound(call.o, reference.o), lse = share_of_bound(call.lse, reference.lse);
  call.backward();
  const double d_qkv = share_of_bound(call.d_qkv, reference.d_qkv);
  EXPECT_LE(o, 1.0);
  EXPECT_LE(lse, 1.0);
  EXPECT_LE(d_qkv, 1.0);
  std::cout << "share of bound: o " << o << ", lse " << lse << ", d_qkv " << d_qkv << " (" << c << ")\n";
}

// Lengths around the tile (64), the strips (256, 512) and the sharing of strips (up to 4 blocks, up to 4 heads).
const Case kCases[] = {
    {{1}, 1, 1, 8},
    {{2}, 1, 1, 64},
    {{63}, 2, 1, 10},
    {{64}, 2, 2, 12},
    {{65}, 4, 2, 16},
    {{127}, 4, 1, 64},
    {{128}, 3, 1, 80},
    {{129}, 5, 1, 12},
    {{255}, 6, 2, 8},
    {{257}, 8, 1, 10},
    {{300}, 8, 4, 64},
    {{300}, 2, 2, 128},
    {{513}, 2, 1, 16},
    {{700}, 1, 1, 12},
    {{1, 1, 1}, 4, 2, 64},
    {{1, 63, 64, 65}, 4, 4, 8},
    {{300, 1, 127}, 8, 2, 16},
    {{5, 0, 7}, 2, 1, 64},
    {{64, 64, 64, 64}, 4, 2, 80},
    {{17, 100, 31, 2, 90}, 8, 8, 10},
    {{17, 100, 31, 2, 90}, 8, 4, 12},
    {{17, 100, 31, 2, 90}, 8, 2, 80},
    {{17, 100, 31, 2, 90}, 8, 1, 128},
    {{33, 260}, 12, 3, 16},
    {{512, 40}, 4, 2, 32},
    {{191, 193}, 9, 3, 24},
    {{577}, 16, 2, 8},
    {{130}, 2, 1, 288},
    {{66}, 2, 2, 1},
    {{1025}, 2, 1, 8},
};

TEST(Attention, MatchesDefinitionInFp32) {
  for (const Case& c : kCases) expect_matches_reference<float>(c);
}

TEST(Attention, MatchesDefinitionInBf16) {
  for (const Case& c : kCases) expect_matches_reference<BFloat16>(c);
}

// 600 keys (768 padded) of width 352 are past what backward keeps of a whole document (2^18 elements), on any number of
// threads.
TEST(Attention, MatchesDefinitionBeyondKeptKeys) {
  const Case c{{600}, 1, 1, 352};
  ASSERT_FALSE(attention_backward_fits_fused(Call<float>(c).layout.shape()));
  expect_matches_reference<float>(c);
  expect_matches_reference<BFloat16>(c);
}

// Without oneDNN bf16 runs on fp32 tiles, and fp32 products on the BLAS.
TEST(Attention, MatchesDefinitionWithoutOneDnn) {
  at::globalContext().setUserEnabledMkldnn(false);
  for (const Case& c : {kCases[6], kCases[10], kCases[16]}) {
    expect_matches_reference<float>(c);
    expect_matches_reference<BFloat16>(c);
  }
  at::globalContext().setUserEnabledMkldnn(true);
}

// Scores of +-60 and more: the softmax must subtract its maximum, in every strip.
TEST(Attention, HoldsForLargeScores) {
  Call<float> call({{600, 70}, 2, 1, 16});
  for (float& x : call.qkv) x *= 8.0f;
  const Reference reference(call);
  call.forward();
  call.backward();
  EXPECT_LE(share_of_bound(call.o, reference.o), 1.0);
  EXPECT_LE(share_of_bound(call.lse, reference.lse), 1.0);
  EXPECT_LE(share_of_bound(call.d_qkv, reference.d_qkv), 1.0);
}

// ATen's own flash attention, one document after the other. Each side is within the bound of the definition.
TEST(Attention, AgreesWithAtenFlashAttention) {
  for (const Case& c : {Case{{300, 65}, 8, 4, 64}, Case{{127, 64}, 4, 4, 80}, Case{{200}, 8, 1, 16}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    Call<float> call(c);
    const Reference reference(call);
    call.forward();
    call.backward();
    const int64_t a = c.num_heads, k = c.num_kv_heads, d = c.head_dim;
    Bounded o = reference.o, d_qkv = reference.d_qkv;
    for (size_t i = 0; i < c.lengths.size(); ++i) {
      const int64_t begin = call.offsets[i], length = c.lengths[i];
      const at::Tensor rows = at::from_blob(call.qkv.data() + begin * call.row, {length, a + 2 * k, d});
      const auto heads = [&](int64_t first, int64_t count) {
        return rows.narrow(1, first, count).transpose(0, 1).repeat_interleave(a / count, 0).unsqueeze(0).contiguous();
      };
      const at::Tensor q = heads(0, a), key = heads(a, k), value = heads(a + k, k);
      const at::Tensor d_o = at::from_blob(call.d_o.data() + begin * a * d, {1, length, a, d}).transpose(1, 2);
      const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, key, value, 0.0, true);
      const auto [dq, dk, dv] =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(d_o, q, key, value, out, lse, 0.0, true);
      const auto summed = [&](const at::Tensor& g) { return g.view({k, a / k, length, d}).sum(1).transpose(0, 1); };
      const at::Tensor expected_o = out[0].transpose(0, 1).contiguous();
      const at::Tensor expected_d = at::cat({dq[0].transpose(0, 1), summed(dk), summed(dv)}, 1).contiguous();
      std::copy_n(expected_o.data_ptr<float>(), length * a * d, o.value.begin() + begin * a * d);
      std::copy_n(expected_d.data_ptr<float>(), length * call.row, d_qkv.value.begin() + begin * call.row);
    }
    EXPECT_LE(share_of_bound(call.o, o, 2.0), 1.0);
    EXPECT_LE(share_of_bound(call.d_qkv, d_qkv, 2.0), 1.0);
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// One document with one key head is one fused task on one thread and is split on more.
template <typename Element>
void expect_same_bits_for_every_thread_count() {
  const int threads_before = at::get_num_threads();
  for (const Case& c :
       {Case{{600}, 4, 1, 64}, Case{{700}, 1, 1, 16}, Case{{17, 100, 300, 2, 90}, 8, 2, 80}, Case{{320}, 6, 1, 10}}) {
    SCOPED_TRACE(testing::PrintToString(c));
    at::set_num_threads(1);
    Call<Element> one(c);
    one.forward();
    one.backward();
    for (const int threads : {1, 2, 3, 7}) {
      at::set_num_threads(threads);
      Call<Element> many(c);
      many.forward();
      many.backward();
      EXPECT_TRUE(same_bits(one.o, many.o)) << threads << " threads";
      EXPECT_TRUE(same_bits(one.lse, many.lse)) << threads << " threads";
      EXPECT_TRUE(same_bits(one.d_qkv, many.d_qkv)) << threads << " threads";
    }
  }
  at::set_num_threads(threads_before);
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  expect_same_bits_for_every_thread_count<float>();
  expect_same_bits_for_every_thread_count<BFloat16>();
}

// Between documents nothing passes, be it NaN: B between neighbours of NaN has the bits of B alone.
template <typename Element>
void expect_documents_do_not_see_each_other(int32_t length) {
  const int64_t a = 4, k = 2, d = 16;
  Call<Element> alone({{length}, a, k, d});
  Call<Element> packed({{70, length, 5}, a, k, d});
  std::fill(packed.qkv.begin(), packed.qkv.end(), from_float<Element>(NAN));
  std::fill(packed.d_o.begin(), packed.d_o.end(), from_float<Element>(NAN));
  std::copy(alone.qkv.begin(), alone.qkv.end(), packed.qkv.begin() + 70 * alone.row);
  std::copy(alone.d_o.begin(), alone.d_o.end(), packed.d_o.begin() + 70 * a * d);
  for (Call<Element>* call : {&alone, &packed}) {
    call->forward();
    call->backward();
  }
  const auto is_at = [](const auto& part, const auto& whole, int64_t first) {
    return std::memcmp(part.data(), whole.data() + first, part.size() * sizeof(part[0])) == 0;
  };
  EXPECT_TRUE(is_at(alone.o, packed.o, 70 * a * d)) << length;
  EXPECT_TRUE(is_at(alone.d_qkv, packed.d_qkv, 70 * alone.row)) << length;
  for (int64_t head = 0; head < a; ++head) {
    EXPECT_EQ(0, std::memcmp(&alone.lse[head * length], &packed.lse[head * packed.tokens + 70], length * 4)) << length;
  }
}

TEST(Attention, DocumentsDoNotSeeEachOther) {
  for (const int32_t length : {1, 63, 64, 100, 300}) {
    expect_documents_do_not_see_each_other<float>(length);
    expect_documents_do_not_see_each_other<BFloat16>(length);
  }
}

// A later token of the same document, NaN included, changes nothing before it.
TEST(Attention, EarlierTokensDoNotSeeLaterOnes) {
  Call<float> whole({{150}, 2, 1, 16}), cut({{100}, 2, 1, 16});
  std::copy(cut.qkv.begin(), cut.qkv.end(), whole.qkv.begin());
  for (float& x : whole.qkv) x = &x - whole.qkv.data() < 100 * whole.row ? x : 1e30f;
  whole.forward();
  cut.forward();
  EXPECT_EQ(0, std::memcmp(whole.o.data(), cut.o.data(), cut.o.size() * sizeof(float)));
}

// A row of one token: the only probability is 1, so o = v, and lse = scale q.k.
TEST(Attention, OneTokenReturnsItsValue) {
  Call<float> call({{1}, 1, 1, 2});
  call.qkv = {3.0f, 4.0f, 0.5f, 0.25f, 7.0f, -9.0f};  // q, k, v
  call.layout.scale = 2.0f;
  call.forward();
  EXPECT_FLOAT_EQ(call.o[0], 7.0f);
  EXPECT_FLOAT_EQ(call.o[1], -9.0f);
  EXPECT_NEAR(call.lse[0], 5.0f, 5.0f * 0x1p-22);  // 2 (3 / 2 + 4 / 4) = 5
}

TEST(Attention, LeavesGapsBetweenRowsAlone) {
  const Case c{{70, 3}, 4, 2, 10};
  Call<BFloat16> call(c, /*gap=*/6);
  const Reference reference(call);
  const BFloat16 mark{0x1234};
  std::fill(call.d_qkv.begin(), call.d_qkv.end(), mark);
  call.forward();
  call.backward();
  EXPECT_LE(share_of_bound(call.o, reference.o), 1.0);
  for (int64_t t = 0; t < call.tokens; ++t) {
    for (int64_t i = 0; i < 6; ++i) {
      BFloat16& in_gap = call.d_qkv[static_cast<size_t>(t * call.layout.qkv_stride + call.row + i)];
      ASSERT_EQ(in_gap.bits, mark.bits);
      in_gap = BFloat16{0};
    }
  }
  EXPECT_LE(share_of_bound(call.d_qkv, reference.d_qkv), 1.0);
}

TEST(Attention, NoTokensIsNoWork) {
  Call<float> call({{0, 0}, 2, 1, 16});
  call.forward();
  call.backward();
}

// By hand, w = 64: 6400 * 64 + 198656 = 608256; 8448 * 64 + 231424 + 8 * 512 * 64 = 1034240.
// w = 128, 2048 tokens: 819200 + 198656 = 1017856; 1081344 + 231424 + 8 * 2048 * 128 = 3409920; with 2049 tokens
// 8 * 256 * 128 = 262144 in place of 2097152: 1574912. Heads of 10 are padded to 16: 6400 * 16 + 198656 = 301056.
TEST(Attention, ScratchIsTheStatedFormula) {
  const auto shape = [](int64_t longest, int64_t d) {
    return AttentionShape{
        .tokens = 4096, .max_document_tokens = longest, .num_heads = 8, .num_kv_heads = 4, .head_dim = d};
  };
  EXPECT_EQ(attention_forward_scratch_bytes(shape(512, 64), 1), 608256);
  EXPECT_EQ(attention_forward_scratch_bytes(shape(2048, 128), 2), 2 * 1017856);
  EXPECT_EQ(attention_forward_scratch_bytes(shape(9, 10), 1), 301056);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(512, 64), 1), 1034240);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(2048, 128), 2), 2 * 3409920);
  EXPECT_EQ(attention_backward_scratch_bytes(shape(2049, 128), 1), 1574912);
}

}  // namespace
}  // namespace fivefold::ops
