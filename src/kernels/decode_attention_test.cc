#include "kernels/decode_attention.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

struct Geometry {
  int64_t positions, num_heads, num_kv_heads, head_dim;
};
// One position; head sizes that no vector divides; groups of one and of many; several blocks, the last one partial.
const std::vector<Geometry> kGeometries = {
    {1, 1, 1, 4}, {5, 4, 2, 12}, {128, 3, 3, 16}, {129, 9, 3, 64}, {700, 8, 1, 20}};

template <class T>
struct Case {
  Geometry g;
  std::vector<T> q = random_elements<T>(g.num_heads * g.head_dim, 1);
  std::vector<T> cache = random_elements<T>(g.positions * 2 * g.num_kv_heads * g.head_dim, 2);
  float scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim));

  std::vector<T> run(int num_threads = 2) const {
    std::vector<T> out(q.size());
    std::vector<float> scratch(static_cast<size_t>(
        decode_attention_scratch(g.positions, g.num_heads, g.num_kv_heads, g.head_dim, num_threads)));
    decode_attention<T>({.q = q.data(),
                         .cache = cache.data(),
                         .out = out.data(),
                         .scratch = scratch.data(),
                         .positions = g.positions,
                         .num_heads = g.num_heads,
                         .num_kv_heads = g.num_kv_heads,
                         .head_dim = g.head_dim,
                         .scale = scale,
                         .num_threads = num_threads});
    return out;
  }
};

// softmax(scale q K^T) V as it is written down, in fp64. A score of d terms is off by (d + 2) u sum |q k| scale, which
// the exponential makes a relative error of the weight; weights, sums and the quotient add a rounding a position and
// some ten more.
template <class T>
void reference(const Case<T>& c, Values& out, Values& error) {
  const Geometry& g = c.g;
  const Values q = read(c.q), cache = read(c.cache);
  const int64_t stride = 2 * g.num_kv_heads * g.head_dim;
  for (int64_t h = 0; h < g.num_heads; ++h) {
    const int64_t kv = h * g.num_kv_heads / g.num_heads;
    Values weights;
    double most = -INFINITY, magnitude = 0;
    for (int64_t p = 0; p < g.positions; ++p) {
      double score = 0, sum = 0;
      for (int64_t i = 0; i < g.head_dim; ++i) {
        const double term =
            q[static_cast<size_t>(h * g.head_dim + i)] * cache[static_cast<size_t>(p * stride + kv * g.head_dim + i)];
        score += term;
        sum += std::abs(term);
      }
      weights.push_back(score * static_cast<double>(c.scale));
      most = std::max(most, weights.back());
      magnitude = std::max(magnitude, sum * static_cast<double>(c.scale));
    }
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - most);
    for (int64_t i = 0; i < g.head_dim; ++i) {
      double value = 0, size = 0;
      for (int64_t p = 0; p < g.positions; ++p) {
        const double term = weights[static_cast<size_t>(p)] / total *
                            cache[static_cast<size_t>(p * stride + (g.num_kv_heads + kv) * g.head_dim + i)];
        value += term;
        size += std::abs(term);
      }
      out.push_back(value);
      const double of_scores = static_cast<double>(g.head_dim + 2) * magnitude;
      error.push_back((2 * of_scores + static_cast<double>(g.positions) + 16) * kUnitF32 * size);
    }
  }
}

template <class T>
class DecodeAttentionTest : public ::testing::Test {};
TYPED_TEST_SUITE(DecodeAttentionTest, ElementTypes);

TYPED_TEST(DecodeAttentionTest, IsTheSoftmaxWeightedSumOfValues) {
  for (const Geometry& g : kGeometries) {
    const Case<TypeParam> c{g};
    Values expected, error;
    reference(c, expected, error);
    expect_within(c.run(), expected, error, std::to_string(g.positions) + " positions");
  }
}

// Scores far apart between blocks: the largest one is in the last block, and what the others hold is as good as
// nothing.
TYPED_TEST(DecodeAttentionTest, TakesTheBlockOfTheLargestScore) {
  Case<TypeParam> c{{300, 1, 1, 8}};
  c.q.assign(8, from_float<TypeParam>(8));
  for (int64_t p = 0; p < 300; ++p)
    for (int64_t i = 0; i < 8; ++i) {
      c.cache[static_cast<size_t>(p * 16 + i)] = from_float<TypeParam>(p == 290 ? 8.0f : -8.0f);
      c.cache[static_cast<size_t>(p * 16 + 8 + i)] = from_float<TypeParam>(static_cast<float>(p));
    }
  // Scores are 8 x 64 / sqrt(8) = 181 at position 290 and -181 elsewhere: the value there, 290 (288 or 290 in bf16 as
  // stored), is all that counts.
  for (const TypeParam value : c.run()) EXPECT_EQ(to_float(value), to_float(from_float<TypeParam>(290)));
}

TYPED_TEST(DecodeAttentionTest, ThreadsChangeNoBit) {
  const Case<TypeParam> c{{700, 8, 2, 20}};
  expect_same_bits_for_any_threads([&](int num_threads) { return bytes_of(c.run(num_threads)); });
}

}  // namespace
}  // namespace fivefold::kernels
