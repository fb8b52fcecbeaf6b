#include "kernels/qk_norm.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

constexpr float kEps = 1e-3f;

struct Geometry {
  int64_t rows, num_q_heads, num_kv_heads, head_dim;
  int64_t heads() const { return num_q_heads + num_kv_heads; }
  int64_t row_stride() const { return (num_q_heads + 2 * num_kv_heads) * head_dim; }
};
const std::vector<Geometry> kGeometries = {{1, 1, 1, 1}, {5, 4, 2, 16}, {17, 3, 1, 33}, {70, 2, 2, 64}};

template <class T>
struct Case {
  Geometry g;
  std::vector<T> qkv = random_elements<T>(g.rows * g.row_stride(), 1);
  std::vector<T> q_weight = random_elements<T>(g.head_dim, 2);
  std::vector<T> k_weight = random_elements<T>(g.head_dim, 3);
  std::vector<T> dqkv = random_elements<T>(g.rows * g.row_stride(), 4);
  std::vector<T> pre_norm = std::vector<T>(static_cast<size_t>(g.rows * g.heads() * g.head_dim));
  std::vector<float> rstd = std::vector<float>(static_cast<size_t>(g.rows * g.heads()));

  void forward(NormWeight weight_kind, int num_threads = 2) {
    qk_norm_forward<T>({.qkv = qkv.data(),
                        .q_weight = q_weight.data(),
                        .k_weight = k_weight.data(),
                        .pre_norm = pre_norm.data(),
                        .rstd = rstd.data(),
                        .rows = g.rows,
                        .row_stride = g.row_stride(),
                        .num_q_heads = g.num_q_heads,
                        .num_kv_heads = g.num_kv_heads,
                        .head_dim = g.head_dim,
                        .eps = kEps,
                        .weight_kind = weight_kind,
                        .num_threads = num_threads});
  }
  void backward(NormWeight weight_kind, GradTarget q_grad, GradTarget k_grad, int num_threads = 2) {
    std::vector<std::byte> scratch(static_cast<size_t>(qk_norm_backward_scratch_bytes(g.rows, g.head_dim)));
    qk_norm_backward<T>({.dqkv = dqkv.data(),
                         .q_weight = q_weight.data(),
                         .k_weight = k_weight.data(),
                         .pre_norm = pre_norm.data(),
                         .rstd = rstd.data(),
                         .q_weight_grad = q_grad,
                         .k_weight_grad = k_grad,
                         .scratch = scratch.data(),
                         .rows = g.rows,
                         .row_stride = g.row_stride(),
                         .num_q_heads = g.num_q_heads,
                         .num_kv_heads = g.num_kv_heads,
                         .head_dim = g.head_dim,
                         .weight_kind = weight_kind,
                         .num_threads = num_threads});
  }
};

double rstd_of(const Values& head) {
  double mean_square = 0;
  for (double value : head) mean_square += value * value / static_cast<double>(head.size());
  return 1 / std::sqrt(mean_square + static_cast<double>(kEps));
}

template <class T>
void check(const Geometry& g, NormWeight weight_kind, TargetKind target) {
  Case<T> c{.g = g};
  const Values x = read(c.qkv);
  const Values dy = read(c.dqkv);
  const double offset = weight_kind == NormWeight::kPlusOne ? 1.0 : 0.0;
  GradBuffer q_grad(g.head_dim, target.type, target.mode);
  GradBuffer k_grad(g.head_dim, target.type, target.mode);
  c.forward(weight_kind);
  c.backward(weight_kind, q_grad.target(), k_grad.target());

  const size_t dim = static_cast<size_t>(g.head_dim);
  // What no head covers, the value heads, stays exactly as it is.
  Values y = x, y_error(x.size()), dx = dy, dx_error(x.size());
  Values dw[2] = {Values(dim), Values(dim)}, dw_error[2] = {Values(dim), Values(dim)};
  const double unit = (static_cast<double>(2 * g.head_dim + g.rows * g.heads()) + 20) * kUnitF32;
  size_t copied = 0;
  for (int64_t r = 0; r < g.rows; ++r) {
    for (int64_t h = 0; h < g.heads(); ++h) {
      const bool is_query = h < g.num_q_heads;
      const Values w = read(is_query ? c.q_weight : c.k_weight);
      const size_t start = static_cast<size_t>(r * g.row_stride() + h * g.head_dim);
      const Values head(x.begin() + static_cast<int64_t>(start), x.begin() + static_cast<int64_t>(start + dim));
      const double rstd = rstd_of(head);
      EXPECT_NEAR(c.rstd[static_cast<size_t>(r * g.heads() + h)], rstd, unit * rstd);
      const Values gradient = gradient_by_differences(head, [&](const Values& point) {
        double value = 0;
        for (size_t i = 0; i < dim; ++i) value += dy[start + i] * point[i] * rstd_of(point) * (w[i] + offset);
        return value;
      });
      double mean_g_xhat = 0;
      for (size_t i = 0; i < dim; ++i) {
        mean_g_xhat += std::abs(dy[start + i] * (w[i] + offset) * head[i] * rstd) / static_cast<double>(dim);
      }
      for (size_t i = 0; i < dim; ++i) {
        const double xhat = head[i] * rstd;
        EXPECT_EQ(static_cast<double>(to_float(c.pre_norm[copied++])), head[i]);
        y[start + i] = xhat * (w[i] + offset);
        y_error[start + i] = unit * std::abs(y[start + i]);
        dx[start + i] = gradient[i];
        dx_error[start + i] =
            unit * rstd * (std::abs(dy[start + i] * (w[i] + offset)) + std::abs(xhat) * mean_g_xhat) + 1e-9;
        dw[is_query ? 0 : 1][i] += dy[start + i] * xhat;
        dw_error[is_query ? 0 : 1][i] += unit * std::abs(dy[start + i] * xhat);
      }
    }
  }
  expect_within(c.qkv, y, y_error, "qk-norm forward");
  expect_within(c.dqkv, dx, dx_error, "qk-norm backward");
  q_grad.expect(dw[0], dw_error[0], "gradient of the query weight");
  k_grad.expect(dw[1], dw_error[1], "gradient of the key weight");
}

template <class T>
class QkNorm : public ::testing::Test {};
TYPED_TEST_SUITE(QkNorm, ElementTypes);

TYPED_TEST(QkNorm, MatchesTheDefinitionAndFiniteDifferences) {
  for (const Geometry& g : kGeometries) {
    for (const TargetKind target : kTargetKinds) check<TypeParam>(g, NormWeight::kPlain, target);
    check<TypeParam>(g, NormWeight::kPlusOne, kTargetKinds[0]);
  }
}

TYPED_TEST(QkNorm, ThreadsChangeNoBit) {
  expect_same_bits_for_any_threads([](int num_threads) {
    Case<TypeParam> c{.g = {301, 3, 1, 40}};
    std::vector<float> dq(40), dk(40);
    c.forward(NormWeight::kPlain, num_threads);
    c.backward(NormWeight::kPlain, overwrite(dq.data()), overwrite(dk.data()), num_threads);
    return bytes_of(c.qkv, c.dqkv, c.rstd, dq, dk);
  });
}

}  // namespace
}  // namespace fivefold::kernels
