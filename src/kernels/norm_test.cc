#include "kernels/norm.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

enum class Kind { kRms, kLayer };
constexpr float kEps = 1e-3f;

// One row, in fp64, from the definition.
struct RowNorm {
  double mean = 0;
  double rstd = 0;
  Values xhat;
};
RowNorm normalise(Kind kind, const Values& x) {
  const double n = static_cast<double>(x.size());
  RowNorm result;
  if (kind == Kind::kLayer) {
    for (double value : x) result.mean += value / n;
  }
  double variance = 0;
  for (double value : x) variance += (value - result.mean) * (value - result.mean) / n;
  result.rstd = 1 / std::sqrt(variance + static_cast<double>(kEps));
  for (double value : x) result.xhat.push_back((value - result.mean) * result.rstd);
  return result;
}

Values row_of(const Values& matrix, int64_t r, int64_t cols) {
  return Values(matrix.begin() + r * cols, matrix.begin() + (r + 1) * cols);
}

// Factor by which a rounding of x grows in xhat: the mean and the statistics carry it again.
double conditioning(const Values& x, const RowNorm& norm) {
  double mean_abs = 0;
  for (double value : x) mean_abs += std::abs(value) / static_cast<double>(x.size());
  const double a = 1 + mean_abs * norm.rstd;
  return a * a;
}

template <class T>
struct Case {
  Kind kind;
  Shape shape;
  NormWeight weight_kind = NormWeight::kPlain;
  std::vector<T> x = random_elements<T>(shape.rows * shape.cols, 1);
  std::vector<T> weight = random_elements<T>(shape.cols, 2);
  std::vector<T> bias = random_elements<T>(shape.cols, 3);
  std::vector<T> dy = random_elements<T>(shape.rows * shape.cols, 4);
  std::vector<T> y = std::vector<T>(x.size());
  std::vector<float> mean = std::vector<float>(static_cast<size_t>(shape.rows));
  std::vector<float> rstd = std::vector<float>(static_cast<size_t>(shape.rows));

  NormForward<T> forward_args(int num_threads) {
    return {.x = x.data(),
            .weight = weight.data(),
            .bias = kind == Kind::kLayer ? bias.data() : nullptr,
            .y = y.data(),
            .mean = kind == Kind::kLayer ? mean.data() : nullptr,
            .rstd = rstd.data(),
            .rows = shape.rows,
            .cols = shape.cols,
            .eps = kEps,
            .weight_kind = weight_kind,
            .num_threads = num_threads};
  }
  void forward(int num_threads = 2) {
    kind == Kind::kRms ? rms_norm_forward(forward_args(num_threads)) : layer_norm_forward(forward_args(num_threads));
  }
  void reemit(int num_threads = 2) {
    kind == Kind::kRms ? rms_norm_reemit(forward_args(num_threads)) : layer_norm_reemit(forward_args(num_threads));
  }
  // Runs on the statistics of an earlier forward().
  void backward(T* dx, Accumulate dx_mode, T* y_again, GradTarget weight_grad, GradTarget bias_grad,
                int num_threads = 2) {
    std::vector<std::byte> scratch(
        static_cast<size_t>(kind == Kind::kRms ? rms_norm_backward_scratch_bytes(shape.rows, shape.cols)
                                               : layer_norm_backward_scratch_bytes(shape.rows, shape.cols)));
    const NormBackward<T> args{.x = x.data(),
                               .weight = weight.data(),
                               .bias = kind == Kind::kLayer ? bias.data() : nullptr,
                               .mean = kind == Kind::kLayer ? mean.data() : nullptr,
                               .rstd = rstd.data(),
                               .dy = dy.data(),
                               .dx = dx,
                               .dx_mode = dx_mode,
                               .y = y_again,
                               .weight_grad = weight_grad,
                               .bias_grad = bias_grad,
                               .scratch = scratch.data(),
                               .rows = shape.rows,
                               .cols = shape.cols,
                               .weight_kind = weight_kind,
                               .num_threads = num_threads};
    kind == Kind::kRms ? rms_norm_backward(args) : layer_norm_backward(args);
  }
  double weight_at(size_t c) const {
    return static_cast<double>(to_float(weight[c])) + (weight_kind == NormWeight::kPlusOne ? 1.0 : 0.0);
  }
  double bias_at(size_t c) const { return kind == Kind::kLayer ? static_cast<double>(to_float(bias[c])) : 0.0; }
  std::string name() const {
    return std::string(kind == Kind::kRms ? "RMSNorm " : "LayerNorm ") + std::to_string(shape.rows) + " x " +
           std::to_string(shape.cols);
  }
};

template <class T>
void check_forward(Case<T> c) {
  c.forward();
  Values y, y_error, mean, mean_error, rstd, rstd_error;
  const Values x = read(c.x);
  const double n = static_cast<double>(c.shape.cols);
  for (int64_t r = 0; r < c.shape.rows; ++r) {
    const Values row = row_of(x, r, c.shape.cols);
    const RowNorm norm = normalise(c.kind, row);
    const double unit = (n + 10) * kUnitF32 * conditioning(row, norm);
    for (size_t i = 0; i < row.size(); ++i) {
      y.push_back(norm.xhat[i] * c.weight_at(i) + c.bias_at(i));
      y_error.push_back(unit * ((std::abs(norm.xhat[i]) + 1) * std::abs(c.weight_at(i)) + std::abs(c.bias_at(i))));
    }
    mean.push_back(norm.mean);
    mean_error.push_back(unit);
    rstd.push_back(norm.rstd);
    rstd_error.push_back(unit * norm.rstd);
  }
  expect_within(c.y, y, y_error, c.name() + " y");
  expect_within(c.rstd, rstd, rstd_error, c.name() + " rstd");
  if (c.kind == Kind::kLayer) expect_within(c.mean, mean, mean_error, c.name() + " mean");

  const std::vector<T> first = c.y;
  std::fill(c.y.begin(), c.y.end(), T{});
  c.reemit();
  EXPECT_TRUE(bytes_of(c.y) == bytes_of(first)) << c.name() << ": re-emission gives other bits than the forward";
}

template <class T>
void check_backward(Case<T> c, TargetKind target, Accumulate dx_mode) {
  c.forward();
  const int64_t cols = c.shape.cols;
  GradBuffer weight_grad(cols, target.type, target.mode);
  GradBuffer bias_grad(cols, target.type, target.mode);
  std::vector<T> dx = random_elements<T>(c.shape.rows * cols, 5);
  const Values dx_before = read(dx);
  std::vector<T> y_again(c.x.size());
  c.backward(dx.data(), dx_mode, y_again.data(), weight_grad.target(), bias_grad.target());
  EXPECT_TRUE(bytes_of(y_again) == bytes_of(c.y)) << c.name() << ": the backward's y has other bits than the forward's";

  const Values x = read(c.x);
  const Values dy = read(c.dy);
  const size_t n = static_cast<size_t>(cols);
  Values dx_expected, dx_error, dw(n), dw_error(n), db(n), db_error(n);
  const double roundings = 2 * static_cast<double>(cols + c.shape.rows) + 20;
  for (int64_t r = 0; r < c.shape.rows; ++r) {
    const Values row = row_of(x, r, cols);
    const Values dy_row = row_of(dy, r, cols);
    const Values gradient = gradient_by_differences(row, [&](const Values& point) {
      const RowNorm norm = normalise(c.kind, point);
      double value = 0;
      for (size_t i = 0; i < n; ++i) value += dy_row[i] * (norm.xhat[i] * c.weight_at(i) + c.bias_at(i));
      return value;
    });
    const RowNorm norm = normalise(c.kind, row);
    const double unit = roundings * kUnitF32 * conditioning(row, norm);
    double mean_g = 0;
    double mean_g_xhat = 0;
    for (size_t i = 0; i < n; ++i) {
      mean_g += std::abs(dy_row[i] * c.weight_at(i)) / static_cast<double>(cols);
      mean_g_xhat += std::abs(dy_row[i] * c.weight_at(i)) * (std::abs(norm.xhat[i]) + 1) / static_cast<double>(cols);
    }
    for (size_t i = 0; i < n; ++i) {
      const double before = dx_mode == Accumulate::kAdd ? dx_before[dx_expected.size()] : 0.0;
      const double terms = std::abs(dy_row[i] * c.weight_at(i)) + mean_g + (std::abs(norm.xhat[i]) + 1) * mean_g_xhat;
      dx_expected.push_back(before + gradient[i]);
      dx_error.push_back(unit * norm.rstd * terms + 2 * kUnitF32 * std::abs(before) + 1e-9);
      // y is linear in weight and bias, so their gradients are dy times what multiplies them.
      dw[i] += dy_row[i] * norm.xhat[i];
      dw_error[i] += unit * std::abs(dy_row[i]) * (std::abs(norm.xhat[i]) + 1);
      db[i] += dy_row[i];
      db_error[i] += unit * std::abs(dy_row[i]);
    }
  }
  expect_within(dx, dx_expected, dx_error, c.name() + " dx");
  weight_grad.expect(dw, dw_error, c.name() + " dw");
  if (c.kind == Kind::kLayer) bias_grad.expect(db, db_error, c.name() + " db");
}

template <class T>
class Norm : public ::testing::Test {};
TYPED_TEST_SUITE(Norm, ElementTypes);

TYPED_TEST(Norm, ForwardMatchesTheDefinitionAndReemitsTheSameBits) {
  for (const Shape shape : kShapes) {
    check_forward<TypeParam>({.kind = Kind::kRms, .shape = shape});
    check_forward<TypeParam>({.kind = Kind::kRms, .shape = shape, .weight_kind = NormWeight::kPlusOne});
    check_forward<TypeParam>({.kind = Kind::kLayer, .shape = shape});
  }
}

TYPED_TEST(Norm, BackwardMatchesFiniteDifferences) {
  for (const Shape shape : kShapes) {
    for (const TargetKind target : kTargetKinds) {
      check_backward<TypeParam>({.kind = Kind::kRms, .shape = shape}, target, Accumulate::kAdd);
    }
    const TargetKind target{ElementType::kFloat32, Accumulate::kOverwrite};
    check_backward<TypeParam>({.kind = Kind::kRms, .shape = shape}, target, Accumulate::kOverwrite);
    check_backward<TypeParam>({.kind = Kind::kRms, .shape = shape, .weight_kind = NormWeight::kPlusOne}, target,
                              Accumulate::kAdd);
    check_backward<TypeParam>({.kind = Kind::kLayer, .shape = shape}, target, Accumulate::kOverwrite);
    check_backward<TypeParam>({.kind = Kind::kLayer, .shape = shape}, {ElementType::kBFloat16, Accumulate::kAdd},
                              Accumulate::kAdd);
  }
}

TYPED_TEST(Norm, BackwardMayReplaceTheOutputGradient) {
  Case<TypeParam> c{.kind = Kind::kRms, .shape = {65, 31}};
  c.forward();
  std::vector<TypeParam> dx(c.x.size());
  std::vector<float> dw(31);
  c.backward(dx.data(), Accumulate::kOverwrite, nullptr, overwrite(dw.data()), {});
  c.backward(c.dy.data(), Accumulate::kOverwrite, nullptr, overwrite(dw.data()), {});
  EXPECT_TRUE(bytes_of(c.dy) == bytes_of(dx));
}

TYPED_TEST(Norm, ThreadsChangeNoBit) {
  for (const Kind kind : {Kind::kRms, Kind::kLayer}) {
    expect_same_bits_for_any_threads([&](int num_threads) {
      Case<TypeParam> c{.kind = kind, .shape = {1000, 67}};
      c.forward(num_threads);
      std::vector<TypeParam> dx = random_elements<TypeParam>(1000 * 67, 5);
      std::vector<float> dw(67), db(67);
      c.backward(dx.data(), Accumulate::kAdd, nullptr, overwrite(dw.data()), overwrite(db.data()), num_threads);
      return bytes_of(c.y, c.rstd, dx, dw, db);
    });
  }
}

}  // namespace
}  // namespace fivefold::kernels
