// Each primitive against the same function made of ATen operations in fp64, with ATen's autograd for the gradients; in
// fp32 and bf16, with every mode that the layers use.
#include "engine/layers/primitives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "spec/rope.h"

namespace fivefold::ops {
namespace {

// Error as norm of the difference over norm. fp32: sums of at most 64 terms, and exponentials. bf16: results are
// rounded once or twice to 8 bits (2^-9 each at worst), after fp32 sums.
double tolerance(at::ScalarType type) { return type == at::kFloat ? 2e-6 : 0x1p-8; }

void expect_close(const at::Tensor& actual, const at::Tensor& right, const char* what, double allowed = 0) {
  const at::Tensor a = actual.detach().to(at::kDouble), b = right.detach();
  ASSERT_EQ(a.numel(), b.numel()) << what;
  const double error = (a.reshape(b.sizes()) - b).norm().item<double>() / b.norm().item<double>();
  EXPECT_LE(error, allowed > 0 ? allowed : tolerance(actual.scalar_type())) << what;
}

class Primitives : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor random(at::IntArrayRef sizes) {
    return at::randn(sizes, generator_, at::TensorOptions().dtype(at::kFloat)).to(GetParam());
  }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, NAN, at::TensorOptions().dtype(type));
  }
  at::Tensor empty(at::IntArrayRef sizes) const { return empty(sizes, GetParam()); }
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
  static constexpr int kThreads = 2;
};

at::Tensor int32(const std::vector<int32_t>& values) { return at::tensor(values, at::TensorOptions().dtype(at::kInt)); }

TEST_P(Primitives, Linear) {
  const at::Tensor x = random({19, 24}), weight = random({30, 24}), bias = random({30}), residual = random({19, 30});
  for (const bool with_bias : {false, true}) {
    for (const bool with_residual : {false, true}) {
      const at::Tensor X = leaf(x), W = leaf(weight), B = leaf(bias), R = leaf(residual);
      at::Tensor right = at::mm(X, W.t());
      if (with_bias) right = right + B;
      if (with_residual) right = right + R;
      at::Tensor out = empty({19, 30});
      linear_forward(x, weight, with_bias ? bias : at::Tensor(), with_residual ? residual : at::Tensor(), out);
      expect_close(out, right, "out");

      const at::Tensor dy = random({19, 30});
      right.backward(dy.to(at::kDouble));
      at::Tensor dx = empty({19, 24});
      linear_input_grad(dy, weight, dx);
      expect_close(dx, X.grad(), "dx");
      expect_gradient({30, 24}, W.grad(), "dweight",
                      [&](const at::Tensor& grad, bool accumulate) { linear_weight_grad(dy, x, grad, accumulate); });
      if (with_bias)
        expect_gradient({30}, B.grad(), "dbias",
                        [&](const at::Tensor& grad, bool accumulate) { bias_grad(dy, grad, accumulate, kThreads); });
    }
  }
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt((x * x).mean(-1, true) + eps) * weight;
}

TEST_P(Primitives, Norm) {
  const int64_t rows = 21, cols = 40;
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
  const HeadGeometry heads{.num_heads = 4, .num_kv_heads = 2, .head_dim = 10};
  const int64_t rows = 13, d = heads.head_dim, q = 4 * d, k = 2 * d;
  const at::Tensor qkv = random({rows, heads.qkv_width()}), wq = random({d}), wk = random({d});
  const at::Tensor P = leaf(qkv), Q = leaf(wq), K = leaf(wk);
  const at::Tensor right =
      at::cat({rms_norm(P.narrow(1, 0, q).reshape({rows, 4, d}), Q, 1e-3).reshape({rows, q}),
               rms_norm(P.narrow(1, q, k).reshape({rows, 2, d}), K, 1e-3).reshape({rows, k}), P.narrow(1, q + k, k)},
              1);
  const at::Tensor dy = random({rows, heads.qkv_width()});
  right.backward(dy.to(at::kDouble));

  at::Tensor packed = qkv.clone(), copy = empty({rows, q + k}), rstd = empty({rows, 6}, at::kFloat);
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
  const HeadGeometry heads{.num_heads = 3, .num_kv_heads = 1, .head_dim = 12};
  const int64_t rows = 11, positions = 20, d = heads.head_dim;
  for (const int64_t rotary : {12, 8}) {
    std::vector<int64_t> all(static_cast<size_t>(positions));
    std::iota(all.begin(), all.end(), int64_t{0});
    const RopeTable table = rope_table({.theta = 100, .rotary_dim = rotary}, positions, all);
    const auto tensor = [&](const auto& values) {
      at::Tensor result = empty({positions, rotary / 2}, at::kFloat);
      std::copy(values.begin(), values.end(), result.data_ptr<float>());
      return result;
    };
    const at::Tensor cos = tensor(table.cos), sin = tensor(table.sin);
    const at::Tensor where = int32({0, 1, 2, 3, 0, 1, 2, 19, 18, 7, 7});
    const at::Tensor qkv = random({rows, heads.qkv_width()}), P = leaf(qkv);
    const at::Tensor angle = at::arange(positions, at::kDouble).index_select(0, where.to(at::kLong)).unsqueeze(1) *
                             at::pow(100.0, -at::arange(0, rotary, 2, at::kDouble) / static_cast<double>(rotary));
    const at::Tensor C = angle.cos().unsqueeze(1), S = angle.sin().unsqueeze(1);
    const at::Tensor H = P.narrow(1, 0, 4 * d).reshape({rows, 4, d});
    const at::Tensor a = H.narrow(2, 0, rotary / 2), b = H.narrow(2, rotary / 2, rotary / 2);
    const at::Tensor turned = at::cat({a * C - b * S, b * C + a * S, H.narrow(2, rotary, d - rotary)}, 2);
    const at::Tensor right = at::cat({turned.reshape({rows, 4 * d}), P.narrow(1, 4 * d, d)}, 1);
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
  const HeadGeometry heads{.num_heads = 4, .num_kv_heads = 2, .head_dim = 12};
  const std::vector<int32_t> offsets = {0, 7, 8, 40};
  const int64_t rows = 40, d = heads.head_dim;
  const at::Tensor qkv = random({rows, heads.qkv_width()}), dy = random({rows, 4 * d}), P = leaf(qkv);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t n = offsets[i + 1] - offsets[i];
    const at::Tensor part = P.narrow(0, offsets[i], n);
    const auto split = [&](int64_t begin, int64_t count) {
      return part.narrow(1, begin * d, count * d).reshape({n, count, d}).transpose(0, 1);
    };
    const at::Tensor q = split(0, 4), k = split(4, 2).repeat_interleave(2, 0), v = split(6, 2).repeat_interleave(2, 0);
    const at::Tensor above = at::ones({n, n}, at::TensorOptions().dtype(at::kBool)).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(d))).masked_fill(above, -INFINITY);
    outputs.push_back(at::matmul(scores.softmax(-1), v).transpose(0, 1).reshape({n, 4 * d}));
  }
  const at::Tensor right = at::cat(outputs, 0);
  right.backward(dy.to(at::kDouble));

  at::Tensor out = empty({rows, 4 * d}), lse = empty({rows, 4}, at::kFloat), dqkv = empty({rows, heads.qkv_width()});
  attention_forward(qkv, heads, offsets, out, lse, kThreads);
  expect_close(out, right, "out");
  attention_backward(qkv, heads, offsets, out, lse, dy, dqkv, kThreads);
  // bf16: probabilities and their gradients are rounded too.
  expect_close(dqkv, P.grad(), "dqkv", 4 * tolerance(GetParam()));
}

TEST_P(Primitives, GatedActivation) {
  const at::Tensor gate_up = random({17, 2 * 24}), dact = random({17, 24}), P = leaf(gate_up);
  const at::Tensor right = at::silu(P.narrow(1, 0, 24)) * P.narrow(1, 24, 24);
  right.backward(dact.to(at::kDouble));
  at::Tensor act = empty({17, 24}), in_place = gate_up.clone(), again = dact.clone();
  gated_activation_forward(gate_up, act, kThreads);
  expect_close(act, right, "act");
  gated_activation_backward(in_place, again, kThreads);
  expect_close(in_place, P.grad(), "gradient");
  EXPECT_TRUE(again.equal(act));
}

TEST_P(Primitives, Activation) {
  for (const auto& [kind, approximate] :
       {std::pair{Activation::kGeluTanh, "tanh"}, std::pair{Activation::kGelu, "none"}}) {
    const at::Tensor x = random({17, 24}), dy = random({17, 24}), X = leaf(x);
    const at::Tensor right = at::gelu(X, approximate);
    right.backward(dy.to(at::kDouble));
    at::Tensor y = empty({17, 24}), gradient = x.clone(), again = dy.clone();
    activation_forward(kind, x, y, kThreads);
    expect_close(y, right, approximate);
    activation_backward(kind, gradient, again, kThreads);
    expect_close(gradient, X.grad(), approximate);
    EXPECT_TRUE(again.equal(y));
  }
}

TEST_P(Primitives, Embedding) {
  const int64_t rows = 12, cols = 20, vocab = 9;
  const at::Tensor ids = int32({3, 3, 8, 0, 3, 5, 5, 8, 1, 3, 0, 0}),
                   positions = int32({0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1});
  const at::Tensor table = random({vocab, cols}), learned = random({8, cols}), dout = random({rows, cols});
  for (const bool with_positions : {false, true}) {
    const double scale = with_positions ? 1.0 : 2.5;
    const at::Tensor W = leaf(table), L = leaf(learned);
    at::Tensor right = at::embedding(W, ids.to(at::kLong)) * scale;
    if (with_positions) right = right + at::embedding(L, positions.to(at::kLong));
    right.backward(dout.to(at::kDouble));
    at::Tensor out = empty({rows, cols});
    embedding_forward(ids, table, scale, positions, with_positions ? learned : at::Tensor(), out, kThreads);
    expect_close(out, right, "out");
    expect_gradient({vocab, cols}, W.grad(), "dweight", [&](const at::Tensor& grad, bool accumulate) {
      embedding_backward(ids, dout, scale, grad, accumulate, kThreads);
    });
  }
}

TEST_P(Primitives, CrossEntropy) {
  const int64_t rows = 9, vocab = 33;
  const double scale = 0.125;
  const at::Tensor logits = random({rows, vocab}) * 3, targets = int32({4, -100, 0, 32, 7, -100, 7, 1, 2});
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

INSTANTIATE_TEST_SUITE_P(Types, Primitives, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "Fp32" : "Bf16"; });

}  // namespace
}  // namespace fivefold::ops
