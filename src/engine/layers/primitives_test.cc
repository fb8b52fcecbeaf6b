// Each primitive against the same function made of ATen operations in fp64, with ATen's autograd for the gradients; in
// fp32, bf16 and fp16, with every mode that the layers use, at one shape that is written here and at random ones.
#include "engine/layers/primitives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "spec/rope.h"

namespace fivefold::ops {
namespace {

// Error as norm of the difference over norm. fp32: sums of at most some hundred terms, and exponentials. bf16: results
// are rounded once or twice to 8 bits (2^-9 each at worst), after fp32 sums; fp16: to 11 bits.
double tolerance(at::ScalarType type) { return type == at::kFloat ? 2e-6 : type == at::kHalf ? 0x1p-11 : 0x1p-8; }

void expect_close(const at::Tensor& actual, const at::Tensor& right, const char* what, double allowed = 0) {
  const at::Tensor a = actual.detach().to(at::kDouble), b = right.detach();
  ASSERT_EQ(a.numel(), b.numel()) << what;
  const double error = (a.reshape(b.sizes()) - b).norm().item<double>() / b.norm().item<double>();
  EXPECT_LE(error, allowed > 0 ? allowed : tolerance(actual.scalar_type())) << what;
}

// Parameters: element type, and the number of the shape.
class Primitives : public ::testing::TestWithParam<std::tuple<at::ScalarType, int>> {
 protected:
  static at::ScalarType type() { return std::get<0>(GetParam()); }
  static bool random_shape() { return std::get<1>(GetParam()) > 0; }
  // In shape 0 `fixed`; in the others a random extent of the range, small ones as often as large ones.
  int64_t extent(int64_t fixed, int64_t least, int64_t most) {
    if (!random_shape()) return fixed;
    const double ratio = static_cast<double>(most + 1) / static_cast<double>(least);
    const auto value = static_cast<double>(least) * std::pow(ratio, std::uniform_real_distribution<>()(shapes_));
    return std::clamp(static_cast<int64_t>(value), least, most);
  }
  // In shape 0 `fixed`; in the others `count` random numbers below `bound`.
  at::Tensor indices(const std::vector<int32_t>& fixed, int64_t count, int64_t bound) {
    std::vector<int32_t> values = fixed;
    if (random_shape()) {
      values.resize(static_cast<size_t>(count));
      for (int32_t& value : values) value = static_cast<int32_t>(shapes_() % static_cast<uint64_t>(bound));
    }
    return at::tensor(values, at::TensorOptions().dtype(at::kInt));
  }
  at::Tensor random(at::IntArrayRef sizes) {
    return at::randn(sizes, generator_, at::TensorOptions().dtype(at::kFloat)).to(type());
  }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, NAN, at::TensorOptions().dtype(type));
  }
  at::Tensor empty(at::IntArrayRef sizes) const { return empty(sizes, type()); }
  static at::Tensor leaf(const at::Tensor& tensor) { return tensor.to(at::kDouble).clone().requires_grad_(true); }
  // A gradient written over NaN, and added to what is there.
  template <class F>
  void expect_gradient(at::IntArrayRef sizes, const at::Tensor& right, const char* what, const F& compute) {
    const at::Tensor fresh = empty(sizes);
    compute(fresh, false);
    expect_close(fresh, right, what);
    const at::Tensor before = random(sizes), added = before.clone();
    compute(added, true);
    expect_close(added, before.to(at::kDouble) + right, what);
  }

  at::Generator generator_ = at::detail::createCPUGenerator(20);
  std::mt19937_64 shapes_{static_cast<uint64_t>(std::get<1>(GetParam()))};
  static constexpr int kThreads = 2;
};

TEST_P(Primitives, Linear) {
  const int64_t rows = extent(19, 1, 300), in = extent(24, 8, 300), out_width = extent(30, 8, 300);
  const at::Tensor x = random({rows, in}), weight = random({out_width, in}), bias = random({out_width}),
                   residual = random({rows, out_width});
  for (const bool with_bias : {false, true}) {
    for (const bool with_residual : {false, true}) {
      const at::Tensor X = leaf(x), W = leaf(weight), B = leaf(bias), R = leaf(residual);
      at::Tensor right = at::mm(X, W.t());
      if (with_bias) right = right + B;
      if (with_residual) right = right + R;
      at::Tensor out = empty({rows, out_width});
      linear_forward(x, weight, with_bias ? bias : at::Tensor(), with_residual ? residual : at::Tensor(), out);
      expect_close(out, right, "out");

      const at::Tensor dy = random({rows, out_width});
      right.backward(dy.to(at::kDouble));
      at::Tensor dx = empty({rows, in});
      linear_input_grad(dy, weight, dx);
      expect_close(dx, X.grad(), "dx");
      expect_gradient({out_width, in}, W.grad(), "dweight",
                      [&](const at::Tensor& grad, bool accumulate) { linear_weight_grad(dy, x, grad, accumulate); });
      if (with_bias)
        expect_gradient({out_width}, B.grad(), "dbias",
                        [&](const at::Tensor& grad, bool accumulate) { bias_grad(dy, grad, accumulate, kThreads); });
    }
  }
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt((x * x).mean(-1, true) + eps) * weight;
}

TEST_P(Primitives, Norm) {
  const int64_t rows = extent(21, 1, 300), cols = extent(40, 8, 600);  // fewer columns: gradients that cancel
  for (const NormSpec& spec : {NormSpec{.eps = 1e-3}, NormSpec{.eps = 1e-3, .weight_plus_one = true},
                               NormSpec{.kind = NormKind::kLayer, .eps = 1e-3, .bias = true}}) {
    const bool layer_norm = spec.kind == NormKind::kLayer;
    const at::Tensor x = random({rows, cols}), dy = random({rows, cols});
    NormTensors norm{.spec = &spec, .weight = random({cols}), .rstd = empty({rows}, at::kFloat)};
    if (spec.bias) norm.bias = random({cols});
    if (layer_norm) norm.mean = empty({rows}, at::kFloat);

    const at::Tensor X = leaf(x), W = leaf(norm.weight), B = spec.bias ? leaf(norm.bias) : at::Tensor();
    const at::Tensor right = layer_norm ? at::layer_norm(X, {cols}, W, B, spec.eps)
                                        : rms_norm(X, spec.weight_plus_one ? W + 1 : W, spec.eps);
    right.backward(dy.to(at::kDouble));

    at::Tensor y = empty({rows, cols}), again = empty({rows, cols});
    norm_forward(x, norm, NormStatistics::kCompute, y, kThreads);
    expect_close(y, right, "y");
    norm_forward(x, norm, NormStatistics::kReuse, again, kThreads);
    EXPECT_TRUE(again.equal(y));

    const auto backward = [&](const at::Tensor& gradient, StreamGradient mode, at::Tensor& dx,
                              const at::Tensor& dweight, const at::Tensor& dbias, bool accumulate) {
      norm_backward(x, norm, gradient, mode, dx, dweight, dbias, accumulate, kThreads);
    };
    const at::Tensor no_bias, some_bias = spec.bias ? empty({cols}) : no_bias;
    // Over its own dy, as the head does; and added to the gradient of the residual stream, as the layers do.
    at::Tensor over = dy.clone();
    backward(over, StreamGradient::kOverwrite, over, empty({cols}), some_bias, false);
    expect_close(over, X.grad(), "dx");
    const at::Tensor stream = random({rows, cols});
    at::Tensor sum = stream.clone();
    backward(dy, StreamGradient::kAdd, sum, empty({cols}), some_bias, false);
    expect_close(sum, stream.to(at::kDouble) + X.grad(), "stream + dx");
    at::Tensor dx = empty({rows, cols});
    expect_gradient({cols}, W.grad(), "dweight", [&](const at::Tensor& grad, bool accumulate) {
      backward(dy, StreamGradient::kOverwrite, dx, grad, spec.bias ? at::zeros_like(grad) : no_bias, accumulate);
    });
    if (spec.bias)
      expect_gradient({cols}, B.grad(), "dbias", [&](const at::Tensor& grad, bool accumulate) {
        backward(dy, StreamGradient::kOverwrite, dx, at::zeros_like(grad), grad, accumulate);
      });
  }
}

// Normed queries and keys beside untouched values, as one packed tensor.
TEST_P(Primitives, QkNorm) {
  const int64_t kv_heads = extent(2, 1, 4), q_heads = kv_heads * extent(2, 1, 4);
  const HeadGeometry heads{.num_heads = q_heads, .num_kv_heads = kv_heads, .head_dim = extent(10, 8, 140)};
  const int64_t rows = extent(13, 1, 100), d = heads.head_dim, q = q_heads * d, k = kv_heads * d;
  const at::Tensor qkv = random({rows, heads.qkv_width()}), wq = random({d}), wk = random({d});
  const at::Tensor P = leaf(qkv), Q = leaf(wq), K = leaf(wk);
  const at::Tensor right = at::cat(
      {rms_norm(P.narrow(1, 0, q).reshape({rows, q_heads, d}), Q, 1e-3).reshape({rows, q}),
       rms_norm(P.narrow(1, q, k).reshape({rows, kv_heads, d}), K, 1e-3).reshape({rows, k}), P.narrow(1, q + k, k)},
      1);
  const at::Tensor dy = random({rows, heads.qkv_width()});
  right.backward(dy.to(at::kDouble));

  at::Tensor packed = qkv.clone(), copy = empty({rows, q + k}), rstd = empty({rows, q_heads + kv_heads}, at::kFloat);
  qk_norm_forward(packed, heads, 1e-3, wq, wk, copy, rstd, kThreads);
  expect_close(packed, right, "normed");
  EXPECT_TRUE(copy.equal(qkv.narrow(1, 0, q + k)));
  at::Tensor dqkv = dy.clone();
  qk_norm_backward(dqkv, heads, wq, wk, copy, rstd, empty({d}), empty({d}), false, kThreads);
  expect_close(dqkv, P.grad(), "dqkv");
  const auto backward = [&](const at::Tensor& dq, const at::Tensor& dk, bool accumulate) {
    at::Tensor scratch = dy.clone();
    qk_norm_backward(scratch, heads, wq, wk, copy, rstd, dq, dk, accumulate, kThreads);
  };
  expect_gradient({d}, Q.grad(), "dq_weight",
                  [&](const at::Tensor& grad, bool accumulate) { backward(grad, at::zeros_like(grad), accumulate); });
  expect_gradient({d}, K.grad(), "dk_weight",
                  [&](const at::Tensor& grad, bool accumulate) { backward(at::zeros_like(grad), grad, accumulate); });
}

// Pairs (i, i + r / 2) of the first r dims of query and key heads turn; the other dims and the values stay.
TEST_P(Primitives, Rope) {
  const int64_t kv_heads = extent(1, 1, 3), q_heads = kv_heads * extent(3, 1, 3), turned_heads = q_heads + kv_heads;
  const HeadGeometry heads{.num_heads = q_heads, .num_kv_heads = kv_heads, .head_dim = 2 * extent(6, 2, 70)};
  const int64_t rows = extent(11, 1, 200), positions = extent(20, 1, 500), d = heads.head_dim;
  for (const int64_t rotary : {d, d / 3 * 2}) {
    std::vector<int64_t> all(static_cast<size_t>(positions));
    std::iota(all.begin(), all.end(), int64_t{0});
    const RopeTable table = rope_table({.theta = 100, .rotary_dim = rotary}, positions, all);
    const auto tensor = [&](const auto& values) {
      at::Tensor result = empty({positions, rotary / 2}, at::kFloat);
      std::copy(values.begin(), values.end(), result.data_ptr<float>());
      return result;
    };
    const at::Tensor cos = tensor(table.cos), sin = tensor(table.sin);
    const at::Tensor where = indices({0, 1, 2, 3, 0, 1, 2, 19, 18, 7, 7}, rows, positions);
    const at::Tensor qkv = random({rows, heads.qkv_width()}), P = leaf(qkv);
    const at::Tensor angle = at::arange(positions, at::kDouble).index_select(0, where.to(at::kLong)).unsqueeze(1) *
                             at::pow(100.0, -at::arange(0, rotary, 2, at::kDouble) / static_cast<double>(rotary));
    const at::Tensor C = angle.cos().unsqueeze(1), S = angle.sin().unsqueeze(1);
    const at::Tensor H = P.narrow(1, 0, turned_heads * d).reshape({rows, turned_heads, d});
    const at::Tensor a = H.narrow(2, 0, rotary / 2), b = H.narrow(2, rotary / 2, rotary / 2);
    const at::Tensor turned = at::cat({a * C - b * S, b * C + a * S, H.narrow(2, rotary, d - rotary)}, 2);
    const at::Tensor right =
        at::cat({turned.reshape({rows, turned_heads * d}), P.narrow(1, turned_heads * d, kv_heads * d)}, 1);
    const at::Tensor dy = random({rows, heads.qkv_width()});
    right.backward(dy.to(at::kDouble));

    at::Tensor packed = qkv.clone(), gradient = dy.clone();
    rope(packed, heads, cos, sin, where, RopeTurn::kForward, kThreads);
    expect_close(packed, right, "turned");
    rope(gradient, heads, cos, sin, where, RopeTurn::kBackward, kThreads);
    expect_close(gradient, P.grad(), "gradient");
  }
}

TEST_P(Primitives, AttentionOfPackedDocuments) {
  const int64_t kv_heads = extent(2, 1, 3), group = extent(2, 1, 4), q_heads = kv_heads * group;
  const HeadGeometry heads{.num_heads = q_heads, .num_kv_heads = kv_heads, .head_dim = extent(12, 1, 140)};
  std::vector<int32_t> offsets = {0};
  for (const int32_t fixed : {7, 1, 32})
    offsets.push_back(offsets.back() + static_cast<int32_t>(extent(fixed, 1, 400)));
  const int64_t rows = offsets.back(), d = heads.head_dim;
  const at::Tensor qkv = random({rows, heads.qkv_width()}), dy = random({rows, q_heads * d}), P = leaf(qkv);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t n = offsets[i + 1] - offsets[i];
    const at::Tensor part = P.narrow(0, offsets[i], n);
    const auto split = [&](int64_t begin, int64_t count) {
      return part.narrow(1, begin * d, count * d).reshape({n, count, d}).transpose(0, 1);
    };
    const at::Tensor q = split(0, q_heads), k = split(q_heads, kv_heads).repeat_interleave(group, 0),
                     v = split(q_heads + kv_heads, kv_heads).repeat_interleave(group, 0);
    const at::Tensor above = at::ones({n, n}, at::TensorOptions().dtype(at::kBool)).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d))).masked_fill(above, -INFINITY);
    outputs.push_back(at::matmul(scores.softmax(-1), v).transpose(0, 1).reshape({n, q_heads * d}));
  }
  const at::Tensor right = at::cat(outputs, 0);
  right.backward(dy.to(at::kDouble));

  at::Tensor out = empty({rows, q_heads * d}), lse = empty({rows, q_heads}, at::kFloat),
             dqkv = empty({rows, heads.qkv_width()});
  attention_forward(qkv, heads, offsets, out, lse, kThreads);
  expect_close(out, right, "out");
  attention_backward(qkv, heads, offsets, out, lse, dy, dqkv, kThreads);
  // bf16: probabilities and their gradients are rounded too.
  expect_close(dqkv, P.grad(), "dqkv", 4 * tolerance(type()));
}

TEST_P(Primitives, GatedActivation) {
  const int64_t rows = extent(17, 1, 200), width = extent(24, 1, 700);
  const at::Tensor gate_up = random({rows, 2 * width}), dact = random({rows, width}), P = leaf(gate_up);
  const at::Tensor right = at::silu(P.narrow(1, 0, width)) * P.narrow(1, width, width);
  right.backward(dact.to(at::kDouble));
  at::Tensor act = empty({rows, width}), in_place = gate_up.clone(), again = dact.clone();
  gated_activation_forward(gate_up, act, kThreads);
  expect_close(act, right, "act");
  gated_activation_backward(in_place, again, kThreads);
  expect_close(in_place, P.grad(), "gradient");
  EXPECT_TRUE(again.equal(act));
}

TEST_P(Primitives, Activation) {
  const int64_t rows = extent(17, 1, 200), width = extent(24, 1, 700);
  for (const auto& [kind, approximate] :
       {std::pair{Activation::kGeluTanh, "tanh"}, std::pair{Activation::kGelu, "none"}}) {
    const at::Tensor x = random({rows, width}), dy = random({rows, width}), X = leaf(x);
    const at::Tensor right = at::gelu(X, approximate);
    right.backward(dy.to(at::kDouble));
    at::Tensor y = empty({rows, width}), gradient = x.clone(), again = dy.clone();
    activation_forward(kind, x, y, kThreads);
    expect_close(y, right, approximate);
    activation_backward(kind, gradient, again, kThreads);
    expect_close(gradient, X.grad(), approximate);
    EXPECT_TRUE(again.equal(y));
  }
}

TEST_P(Primitives, Embedding) {
  const int64_t rows = extent(12, 1, 300), cols = extent(20, 1, 300), vocab = extent(9, 1, 500);
  const at::Tensor ids = indices({3, 3, 8, 0, 3, 5, 5, 8, 1, 3, 0, 0}, rows, vocab),
                   positions = indices({0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1}, rows, 8);
  const at::Tensor table = random({vocab, cols}), learned = random({8, cols}), dout = random({rows, cols});
  for (const bool with_positions : {false, true}) {
    const double scale = with_positions ? 1.0 : 2.5;
    const at::Tensor W = leaf(table), L = leaf(learned);
    at::Tensor right = at::embedding(W, ids.to(at::kLong)) * scale;
    if (with_positions) right = right + at::embedding(L, positions.to(at::kLong));
    right.backward(dout.to(at::kDouble));
    at::Tensor out = empty({rows, cols});
    embedding_forward(ids, table, {}, scale, positions, with_positions ? learned : at::Tensor(), out, kThreads);
    expect_close(out, right, "out");
    expect_gradient({vocab, cols}, W.grad(), "dweight", [&](const at::Tensor& grad, bool accumulate) {
      embedding_backward(ids, dout, {}, scale, grad, accumulate, kThreads);
    });
  }
}

TEST_P(Primitives, CrossEntropy) {
  const int64_t rows = extent(9, 6, 200), vocab = extent(33, 2, 3000);
  const double scale = 0.125;
  const at::Tensor logits = random({rows, vocab}) * 3,
                   targets = indices({4, -100, 0, 32, 7, -100, 7, 1, 2}, rows, vocab);
  for (const int64_t ignored : {1, 5}) targets[ignored].fill_(-100);
  const at::Tensor Z = leaf(logits);
  // Reduction 2: the sum over the rows that are not ignored.
  const at::Tensor right = at::cross_entropy_loss(Z, targets.to(at::kLong), {}, 2, -100);
  (right * scale).backward();
  at::Tensor z = logits.clone(), losses = empty({rows}, at::kFloat);
  EXPECT_NEAR(cross_entropy(z, targets, losses, 0, kThreads) / right.item<double>(), 1, 2e-6);
  EXPECT_TRUE(z.equal(logits));
  EXPECT_NEAR(cross_entropy(z, targets, losses, static_cast<float>(scale), kThreads) / right.item<double>(), 1, 2e-6);
  expect_close(z, Z.grad(), "dlogits");
  for (const int64_t ignored : {1, 5}) {
    EXPECT_EQ(losses[ignored].item<float>(), 0);
    EXPECT_EQ(z[ignored].abs().max().item<float>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndShapes, Primitives,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Range(0, 16)),
                         [](const auto& info) {
                           return std::string(at::toString(std::get<0>(info.param))) + "Shape" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace fivefold::ops
