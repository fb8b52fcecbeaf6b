// Support of the tests of src/kernels: random inputs that are exact in the element type, comparison against a reference
// in fp64 under a stated error bound, and the check that the number of threads changes no bit.
//
// Bounds follow from the arithmetic: a kernel computes in fp32 (unit roundoff u = 2^-24) and rounds its result once to
// the element type. A test states the fp32 part for every element: (number of roundings) x u x (sum of the magnitudes
// of the terms); the rounding of the result is added here.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/element.h"

namespace fivefold::kernels {

using Values = std::vector<double>;

inline constexpr double kUnitF32 = 0x1p-24;
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float>      ? 0x1p-24
                                : std::is_same_v<T, BFloat16> ? 0x1p-8
                                                              : 0x1p-11;
// Half the distance between the smallest numbers of the type.
template <class T>
inline constexpr double kSmallest = std::is_same_v<T, Float16> ? 0x1p-25 : 0x1p-126;

using ElementTypes = ::testing::Types<float, BFloat16, Float16>;

struct Shape {
  int64_t rows;
  int64_t cols;
};
// One row, one column, whole blocks, and lengths that no block or vector divides.
inline const std::vector<Shape> kShapes = {{1, 1}, {1, 7}, {9, 1}, {3, 16}, {64, 48}, {65, 31}, {131, 257}};

template <class T>
Values read(const std::vector<T>& elements) {
  Values values;
  for (T element : elements) values.push_back(static_cast<double>(to_float(element)));
  return values;
}

template <class T>
std::vector<T> rounded(const Values& values) {
  std::vector<T> elements;
  for (double value : values) elements.push_back(from_float<T>(static_cast<float>(value)));
  return elements;
}

// n elements, uniform in [-range, range).
template <class T>
std::vector<T> random_elements(int64_t n, uint64_t seed, double range = 2.0) {
  std::mt19937_64 generator(seed);
  Values values(static_cast<size_t>(n));
  for (double& value : values) value = range * (static_cast<double>(generator() >> 11) * 0x1p-52 - 1.0);
  return rounded<T>(values);
}

inline std::vector<int32_t> random_indices(int64_t n, int64_t limit, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> indices(static_cast<size_t>(n));
  for (int32_t& index : indices) index = static_cast<int32_t>(generator() % static_cast<uint64_t>(limit));
  return indices;
}

// |actual - expected| <= fp32_error + the rounding of the result to T. Prints the largest share of the bound that was
// used.
template <class T>
void expect_within(const std::vector<T>& actual, const Values& expected, const Values& fp32_error,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), fp32_error.size()) << what;
  double worst = 0;
  size_t worst_index = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double value = static_cast<double>(to_float(actual[i]));
    const double bound = fp32_error[i] + kUnit<T> * (std::abs(expected[i]) + fp32_error[i]) + kSmallest<T>;
    const double share = std::abs(value - expected[i]) / bound;
    if (!(share <= worst)) {  // also a NaN
      worst = share;
      worst_index = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << worst_index << " of " << actual.size() << " is "
                        << to_float(actual[worst_index]) << ", expected " << expected[worst_index] << "; it uses "
                        << 100 * worst << " % of its bound";
}

// d f / d at[i] for every i: central differences of fourth order, whose own error (1e-10 or so) is far below fp32's.
inline Values gradient_by_differences(const Values& at, const std::function<double(const Values&)>& f) {
  constexpr double kStep = 1e-3;
  Values point = at;
  Values gradient;
  for (size_t i = 0; i < at.size(); ++i) {
    const auto value_at = [&](double offset) {
      point[i] = at[i] + offset;
      return f(point);
    };
    const double near = value_at(kStep) - value_at(-kStep);
    const double far = value_at(2 * kStep) - value_at(-2 * kStep);
    gradient.push_back((8 * near - far) / (12 * kStep));
    point[i] = at[i];
  }
  return gradient;
}

// A destination of a reduced gradient, with something in it before.
class GradBuffer {
 public:
  GradBuffer(int64_t n, ElementType type, Accumulate mode)
      : mode_(mode),
        type_(type),
        elements_(random_elements<float>(n, 77), random_elements<BFloat16>(n, 78), random_elements<Float16>(n, 79)) {
    visit([&](const auto& elements) { before_ = read(elements); });
  }
  GradTarget target() {
    GradTarget target{nullptr, type_, mode_};
    visit([&](auto& elements) { target.data = elements.data(); });
    return target;
  }
  // Compares with `sum`, or with what was there before plus `sum`.
  void expect(Values sum, Values fp32_error, const std::string& what) const {
    for (size_t i = 0; i < sum.size(); ++i) {
      if (mode_ == Accumulate::kAdd) {
        sum[i] += before_[i];
        fp32_error[i] += kUnitF32 * std::abs(sum[i]);
      }
      fp32_error[i] += kUnitF32 * std::abs(sum[i]);
    }
    visit([&](const auto& elements) { expect_within(elements, sum, fp32_error, what); });
  }

 private:
  template <class F>
  void visit(const F& f) {
    visit_element(type_, [&]<class T>(std::type_identity<T>) { f(std::get<std::vector<T>>(elements_)); });
  }
  template <class F>
  void visit(const F& f) const {
    visit_element(type_, [&]<class T>(std::type_identity<T>) { f(std::get<std::vector<T>>(elements_)); });
  }

  Accumulate mode_;
  ElementType type_;
  std::tuple<std::vector<float>, std::vector<BFloat16>, std::vector<Float16>> elements_;
  Values before_;
};

struct TargetKind {
  ElementType type;
  Accumulate mode;
};
inline constexpr TargetKind kTargetKinds[] = {
    {ElementType::kFloat32, Accumulate::kOverwrite},  {ElementType::kFloat32, Accumulate::kAdd},
    {ElementType::kBFloat16, Accumulate::kOverwrite}, {ElementType::kBFloat16, Accumulate::kAdd},
    {ElementType::kFloat16, Accumulate::kOverwrite},  {ElementType::kFloat16, Accumulate::kAdd}};

// The bytes of some vectors, one after the other.
template <class... Vectors>
std::string bytes_of(const Vectors&... vectors) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(vectors.data()), vectors.size() * sizeof(vectors[0])), ...);
  return bytes;
}

// run(num_threads) must return the same bytes for 1, 2 and 3 threads.
inline void expect_same_bits_for_any_threads(const std::function<std::string(int)>& run) {
  const std::string one = run(1);
  EXPECT_FALSE(one.empty());
  for (int num_threads : {2, 3}) EXPECT_TRUE(run(num_threads) == one) << num_threads << " threads give other bits";
}

}  // namespace fivefold::kernels
