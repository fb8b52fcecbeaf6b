#include "store/tensor_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace fivefold {
namespace {

uint16_t encoded(float value, DType dtype) {
  const auto bytes = encode_values(std::span(&value, 1), dtype);
  uint16_t bits = 0;
  EXPECT_EQ(bytes.size(), 2u);
  std::memcpy(&bits, bytes.data(), 2);
  return bits;
}

float decoded(uint16_t bits, DType dtype) { return decode_values(dtype, std::as_bytes(std::span(&bits, 1))).at(0); }

// Every finite half of a type comes back as itself, and lies where its definition says.
TEST(TensorValues, EveryHalfIsReadAndWritten) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float fp16 = decoded(half, DType::kFloat16), bf16 = decoded(half, DType::kBFloat16);
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    if (exponent == 0x1f) {
      EXPECT_EQ(std::isinf(fp16), (bits & 0x3ff) == 0);
    } else {
      const double fraction = (bits & 0x3ff) / 1024.0;
      const double value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      ASSERT_EQ(fp16, static_cast<float>(bits & 0x8000 ? -value : value)) << bits;
      ASSERT_EQ(encoded(fp16, DType::kFloat16), half);
    }
    if (std::isnan(bf16)) continue;
    ASSERT_EQ(encoded(bf16, DType::kBFloat16), half);
  }
}

// The value half way between two neighbours goes to the even one, a little more or less to the nearer one.
TEST(TensorValues, RoundsToNearestAndTiesToEven) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const int largest = dtype == DType::kFloat16 ? 0x7bff : 0x7f7f;
    for (int low = 0; low < largest; ++low) {
      const float a = decoded(static_cast<uint16_t>(low), dtype), b = decoded(static_cast<uint16_t>(low + 1), dtype);
      const float middle = a + (b - a) / 2;  // exact: both types have at least 8 bits less than fp32
      const int even = low % 2 == 0 ? low : low + 1;
      ASSERT_EQ(encoded(middle, dtype), even) << low;
      ASSERT_EQ(encoded(std::nextafter(middle, 0.0f), dtype), low) << low;
      ASSERT_EQ(encoded(std::nextafter(middle, HUGE_VALF), dtype), low + 1) << low;
    }
  }
}

TEST(TensorValues, TooLargeIsInfiniteAndNanStaysNan) {
  EXPECT_EQ(encoded(65519.99f, DType::kFloat16), 0x7bff);  // 65504 is the largest fp16, 65520 half way to the next
  EXPECT_EQ(encoded(65520.0f, DType::kFloat16), 0x7c00);
  EXPECT_EQ(encoded(-1e30f, DType::kFloat16), 0xfc00);
  EXPECT_EQ(encoded(std::numeric_limits<float>::max(), DType::kBFloat16), 0x7f80);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    EXPECT_TRUE(std::isnan(decoded(encoded(std::numeric_limits<float>::quiet_NaN(), dtype), dtype)));
}

TEST(TensorValues, DoublesAndUnalignedBytes) {
  std::vector<std::byte> bytes(1 + 2 * sizeof(double));
  const double values[] = {1.0 + 1e-12, -3.5};
  std::memcpy(bytes.data() + 1, values, sizeof values);
  EXPECT_EQ(decode_values(DType::kFloat64, std::span(bytes).subspan(1)), (std::vector<float>{1.0f, -3.5f}));
}

}  // namespace
}  // namespace fivefold
