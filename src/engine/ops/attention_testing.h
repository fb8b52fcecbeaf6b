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
using kernels::Float16;
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

template <typename Element>
std::vector<Element> random_elements(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<Element> values(static_cast<size_t>(count));
  for (Element& value : values) value = from_float<Element>(normal(generator));
  return values;
}

// `count` columns from `first` on of rows that are `stride` elements apart, without gaps.
template <typename T>
std::vector<T> columns(const std::vector<T>& rows, int64_t stride, int64_t first, int64_t count) {
  std::vector<T> cut;
  for (auto row = rows.begin(); row != rows.end(); row += stride) {
    cut.insert(cut.end(), row + first, row + first + count);
  }
  return cut;
}

template <typename Element>
std::vector<double> widen(const std::vector<Element>& values) {
  std::vector<double> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), [](Element v) { return double{to_float(v)}; });
  return wide;
}

// Exactly the stated bytes, full of NaN, between two guards that must survive.
template <typename F>
void with_scratch(int64_t bytes, F&& f) {
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

// The two calls, with their scratch.
template <typename Element>
void run_forward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs, const AttentionOutput& output,
                 float* lse) {
  with_scratch(attention_forward_scratch_bytes(layout.shape(), at::get_num_threads()),
               [&](std::span<std::byte> scratch) { attention_forward(layout, inputs, output, lse, scratch); });
}
template <typename Element>
void run_backward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs, const Element* o,
                  const float* lse, const Element* d_o, const AttentionGradients& gradients) {
  with_scratch(
      attention_backward_scratch_bytes(layout.shape(), at::get_num_threads()),
      [&](std::span<std::byte> scratch) { attention_backward(layout, inputs, o, lse, d_o, gradients, scratch); });
}

// Values of a call in fp64: q and d_o [q_rows, a d], k and v [kv_rows, k d] in the numbering of the segments.
struct AttentionValues {
  std::vector<double> q, k, v, d_o;
};

// Self-attention of packed documents: inputs and outputs of a call, with a layout that refers to its own segments.
template <typename Element>
struct AttentionCall {
  explicit AttentionCall(const AttentionCase& c, int64_t gap = 0)
      : offsets(offsets_of(c.lengths)),
        segments(packed_segments(offsets)),
        tokens(offsets.back()),
        row((c.num_heads + 2 * c.num_kv_heads) * c.head_dim),
        layout{.segments = segments,
               .q_rows = tokens,
               .kv_rows = tokens,
               .num_heads = c.num_heads,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim,
               .q_stride = row + gap,
               .kv_stride = row + gap,
               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))},
        qkv(random_elements<Element>(tokens * layout.q_stride, 1)),
        d_o(random_elements<Element>(tokens * c.num_heads * c.head_dim, 2)),
        o(d_o.size(), from_float<Element>(NAN)),
        lse(static_cast<size_t>(c.num_heads * tokens), NAN),
        d_qkv(qkv.size(), from_float<Element>(NAN)) {}
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  void forward() {
    run_forward(layout, packed_inputs(layout, qkv.data()), {.data = o.data(), .type = kernels::kElementTypeOf<Element>},
                lse.data());
  }
  void backward() {
    run_backward(layout, packed_inputs(layout, qkv.data()), o.data(), lse.data(), d_o.data(),
                 packed_gradients(layout, d_qkv.data()));
  }

  // The query, key or value heads of packed rows.
  enum Part { kQueries, kKeys, kValues };
  template <typename T>
  std::vector<T> part(const std::vector<T>& packed, Part part) const {
    const int64_t q = layout.num_heads * layout.head_dim, k = layout.num_kv_heads * layout.head_dim;
    return columns(packed, layout.q_stride, part == kQueries ? 0 : part == kKeys ? q : q + k, part == kQueries ? q : k);
  }
  AttentionValues values() const {
    return {widen(part(qkv, kQueries)), widen(part(qkv, kKeys)), widen(part(qkv, kValues)), widen(d_o)};
  }

  std::vector<int32_t> offsets;
  std::vector<AttentionSegment> segments;
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
// they are, and for fp16, whose tiles are fp32). A dot product of n terms errs by at most n u sum |x y|. A score s errs
// by e_s = (d + 2) u scale sum |q k|; the exponent's argument is rounded relative to |s| and |lse| again, and the
// polynomial errs by 4 u, so that a probability errs relatively by  e_p = 2 max e_s + 4 u (|s| + |lse|) + 4 u + n u.
// Then
//   o    : sum p |v| (e_p + r + n u)
//   d_s  : p (e_p |d_p - dot| + e_dp + e_dot), plus r |d_s|;  e_dp = d u sum |d_o v|, e_dot = (d u + R) sum |o d_o|
//   d_q, d_k : scale sum (e_ds + n u |d_s|) |k or q|;  d_v : sum p (e_p + r + n u) |d_o|
// and each written element is rounded by R = 2^-8 (bf16), 2^-11 (fp16, and below 2^-14 by 2^-25) or 2^-24 (fp32) of
// itself. Bounds get 1 % for second order.
//
// Splitting the keys over `blocks` merged results adds, for each, the error of a log-sum-exp to those of the weights, a
// few roundings to a weight, and one rounding of a partial sum to each gradient.
struct AttentionRounding {
  double operand = 0, output = 0x1p-24, smallest = 1e-30;
};
template <typename Element>
inline constexpr AttentionRounding kRounding{};
template <>
inline constexpr AttentionRounding kRounding<BFloat16>{.operand = 0x1p-8, .output = 0x1p-8};
template <>
inline constexpr AttentionRounding kRounding<Float16>{.output = 0x1p-11, .smallest = 0x1p-25};

struct AttentionReference {
  AttentionReference(const AttentionLayout& layout, const AttentionValues& values, const AttentionRounding& rounding,
                     int64_t merged_blocks = 0)
      : blocks(static_cast<double>(merged_blocks)),
        operand_roundoff(rounding.operand),
        output_roundoff(rounding.output),
        o(values.q.size()),
        lse(static_cast<size_t>(layout.num_heads * layout.q_rows)),
        d_q(values.q.size()),
        d_k(values.k.size()),
        d_v(values.v.size()) {
    std::fill(lse.value.begin(), lse.value.end(), -std::numeric_limits<double>::infinity());
    for (const AttentionSegment& segment : layout.segments) {
      for (int64_t head = 0; head < layout.num_heads; ++head) {
        for (int64_t i = 0; i < segment.q_len; ++i) add_row(layout, values, segment, i, head);
      }
    }
    for (Bounded* result : {&o, &d_q, &d_k, &d_v}) {
      for (size_t i = 0; i < result->value.size(); ++i) {
        result->bound[i] = 1.01 * (result->bound[i] + output_roundoff * std::abs(result->value[i])) + rounding.smallest;
      }
    }
  }
  template <typename Element>
  explicit AttentionReference(const AttentionCall<Element>& call)
      : AttentionReference(call.layout, call.values(), kRounding<Element>) {}

  // Row i of a segment.
  void add_row(const AttentionLayout& l, const AttentionValues& in, const AttentionSegment& segment, int64_t i,
               int64_t head) {
    constexpr double u = 0x1p-24;
    const int64_t d = l.head_dim, group = l.num_heads / l.num_kv_heads;
    const size_t keys = static_cast<size_t>(
        segment.mask == AttentionMask::kFull ? segment.kv_len : segment.kv_len - segment.q_len + i + 1);
    if (keys == 0) return;
    const double n = static_cast<double>(keys) + blocks;
    double key_terms = blocks;  // of the sum that is a key's gradient
    for (const AttentionSegment& s : l.segments) {
      if (s.kv_begin == segment.kv_begin) key_terms += static_cast<double>(group * s.q_len);
    }
    const size_t q = static_cast<size_t>(((segment.q_begin + i) * l.num_heads + head) * d);
    const auto key = [&](size_t j) {
      return static_cast<size_t>(((segment.kv_begin + static_cast<int64_t>(j)) * l.num_kv_heads + head / group) * d);
    };
    std::vector<double> s(keys), dp(keys), dp_size(keys);
    double largest = -std::numeric_limits<double>::infinity(), e_s = 0.0;
    for (size_t j = 0; j < keys; ++j) {
      double dot = 0.0, size = 0.0, d_dot = 0.0, d_size = 0.0;
      for (int64_t c = 0; c < d; ++c) {
        const double x = in.q[q + c] * in.k[key(j) + c], y = in.d_o[q + c] * in.v[key(j) + c];
        dot += x, size += std::abs(x), d_dot += y, d_size += std::abs(y);
      }
      s[j] = l.scale * dot, dp[j] = d_dot, dp_size[j] = d_size;
      e_s = std::max(e_s, static_cast<double>(d + 2) * u * l.scale * size);
      largest = std::max(largest, s[j]);
    }
    double sum = 0.0;
    for (const double x : s) sum += std::exp(x - largest);
    const double log_sum = largest + std::log(sum);
    const size_t statistic = static_cast<size_t>(head * l.q_rows + segment.q_begin + i);
    lse.value[statistic] = log_sum;
    lse.bound[statistic] = 1.01 * (e_s + 4 * u * (std::abs(largest) + std::abs(log_sum)) + (n + 8) * u +
                                   blocks * u * (4 + std::abs(log_sum)));
    const double e_merge = blocks * (2 * lse.bound[statistic] + 8 * u);
    double row_dot = 0.0, o_size = 0.0;
    std::vector<double> p(keys), e_p(keys);
    for (size_t j = 0; j < keys; ++j) {
      p[j] = std::exp(s[j] - log_sum);
      e_p[j] = 2 * e_s + 4 * u * (std::abs(s[j]) + std::abs(log_sum)) + 4 * u + n * u + e_merge;
      row_dot += p[j] * dp[j];
      for (int64_t c = 0; c < d; ++c) {
        const double v = p[j] * in.v[key(j) + c];
        o.add(q + c, v, std::abs(v) * (e_p[j] + operand_roundoff + n * u));
      }
    }
    for (int64_t c = 0; c < d; ++c) o_size += std::abs(o.value[q + c] * in.d_o[q + c]);
    const double e_dot = o_size * (static_cast<double>(d) * u + output_roundoff);
    for (size_t j = 0; j < keys; ++j) {
      const size_t k = key(j);
      const double ds = p[j] * (dp[j] - row_dot);
      const double e_ds =
          p[j] * (e_p[j] * std::abs(dp[j] - row_dot) + static_cast<double>(d) * u * dp_size[j] + e_dot) +
          operand_roundoff * std::abs(ds) + (key_terms + n) * u * std::abs(ds);
      for (int64_t c = 0; c < d; ++c) {
        d_q.add(q + c, l.scale * ds * in.k[k + c], l.scale * e_ds * std::abs(in.k[k + c]));
        d_k.add(k + c, l.scale * ds * in.q[q + c], l.scale * e_ds * std::abs(in.q[q + c]));
        d_v.add(k + c, p[j] * in.d_o[q + c],
                p[j] * std::abs(in.d_o[q + c]) * (e_p[j] + operand_roundoff + key_terms * u));
      }
    }
  }

  double blocks, operand_roundoff, output_roundoff;
  Bounded o, lse, d_q, d_k, d_v;
};

// Largest share of its bound that an element's error takes; infinity for a NaN.
template <typename Element>
double share_of_bound(const std::vector<Element>& computed, const Bounded& expected, double factor = 1.0) {
  double share = 0.0;
  for (size_t i = 0; i < computed.size(); ++i) {
    const double value = double{to_float(computed[i])};
    if (value == expected.value[i]) continue;  // infinities among them
    const double error = std::abs(value - expected.value[i]);
    share = std::max(share, std::isnan(error) ? INFINITY : error / (factor * expected.bound[i]));
  }
  return share;
}

// The largest share over the three gradients of a call on packed documents.
template <typename Element>
double gradient_share(const AttentionCall<Element>& call, const AttentionReference& expected) {
  using Call = AttentionCall<Element>;
  return std::max({share_of_bound(call.part(call.d_qkv, Call::kQueries), expected.d_q),
                   share_of_bound(call.part(call.d_qkv, Call::kKeys), expected.d_k),
                   share_of_bound(call.part(call.d_qkv, Call::kValues), expected.d_v)});
}

}  // namespace fivefold::ops
