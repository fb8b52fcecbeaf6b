// For tests of attention: a call with its buffers, and the definition of attention in fp64 with error bounds.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/ops/attention.h"

namespace fivefold::ops {

using kernels::BFloat16;
using kernels::from_float;
using kernels::to_float;

struct AttentionCase {
  std::vector<int32_t> lengths;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
};

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  out << "heads " << c.num_heads << "/" << c.num_kv_heads << " of " << c.head_dim << ", documents";
  for (const int32_t length : c.lengths) out << ' ' << length;
  return out;
}

inline std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> offsets{0};
  for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// Inputs and outputs of a call, with a layout that refers to its own offsets.
template <typename Element>
struct AttentionCall {
  explicit AttentionCall(const AttentionCase& c, int64_t gap = 0)
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
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

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
struct AttentionReference {
  template <typename Element>
  explicit AttentionReference(const AttentionCall<Element>& call)
      : o(call.o.size()), lse(call.lse.size()), d_qkv(call.d_qkv.size()) {
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

}  // namespace fivefold::ops
