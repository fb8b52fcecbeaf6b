#include "spec/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "spec/model_named.h"

namespace fivefold {
namespace {

// Frequencies in this file come from LlamaRotaryEmbedding of transformers 5.24.0 (fp32), with the parameters stated.
struct Case {
  const char* name;
  RopeSpec rope;
  int64_t sequence;
  double attention_factor;
  std::vector<double> inverse;
};

const Case kCases[] = {
    {"default",
     {.theta = 10000.0, .rotary_dim = 16},
     64,
     1.0,
     {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786}},
    {"linear",
     {.theta = 1e6, .rotary_dim = 16, .scaling = RopeScaling::kLinear, .factor = 8.0},
     64,
     1.0,
     {0.125, 0.0222284924, 0.00395284733, 0.000702926656, 0.000125000006, 2.22284925e-05, 3.95284678e-06,
      7.02926684e-07}},
    {"dynamic within the trained length",
     {.theta = 10000.0,
      .rotary_dim = 16,
      .scaling = RopeScaling::kDynamic,
      .factor = 2.0,
      .original_max_positions = 64},
     64,
     1.0,
     {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786}},
    {"dynamic at 200 of 64 trained positions",
     {.theta = 10000.0,
      .rotary_dim = 16,
      .scaling = RopeScaling::kDynamic,
      .factor = 2.0,
      .original_max_positions = 64},
     200,
     1.0,
     {1, 0.249528468, 0.0622644536, 0.0155367535, 0.00387686281, 0.000967387517, 0.000241390735, 6.02338623e-05}},
    {"llama3, the model of the numerical reference 16",
     {.theta = 10000.0, .rotary_dim = 8, .scaling = RopeScaling::kLlama3, .factor = 8.0, .original_max_positions = 32},
     128,
     1.0,
     {1, 0.0125000002, 0.00124999997, 0.000125000006}},
    {"yarn, truncated",
     {.theta = 10000.0, .rotary_dim = 32, .scaling = RopeScaling::kYarn, .factor = 4.0, .original_max_positions = 4096},
     16384,
     1.138629436111989,
     {1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0562341288, 0.0282346234, 0.0139721958, 0.00678571407,
      0.00321337907, 0.00146820047, 0.00063509983, 0.000250000012, 0.000140585325, 7.90569466e-05, 4.44569851e-05}},
    {"yarn with mscale",
     {.theta = 10000.0,
      .rotary_dim = 64,
      .scaling = RopeScaling::kYarn,
      .factor = 40.0,
      .original_max_positions = 4096,
      .mscale = 1.0,
      .mscale_all_dim = 0.707},
     4096,
     1.0857263992561355,
     {1,
      0.749894202,
      0.562341332,
      0.421696514,
      0.316227764,
      0.237137362,
      0.177827939,
      0.133352146,
      0.100000001,
      0.0749894157,
      0.0562341288,
      0.0390069261,
      0.0268793609,
      0.0183781441,
      0.012447956,
      0.0083345091,
      0.00550000044,
      0.00356199732,
      0.00224936521,
      0.00137051346,
      0.000790569407,
      0.000414990413,
      0.00017782794,
      3.3338034e-05,
      2.49999994e-05,
      1.87473543e-05,
      1.40585325e-05,
      1.05424124e-05,
      7.90569447e-06,
      5.92843435e-06,
      4.44569832e-06,
      3.33380353e-06}},
    {"yarn with a stated attention factor",
     {.theta = 10000.0,
      .rotary_dim = 16,
      .scaling = RopeScaling::kYarn,
      .factor = 4.0,
      .original_max_positions = 1024,
      .attention_factor = 1.25},
     4096,
     1.25,
     {1, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012, 7.90569466e-05}},
};

constexpr double kUlp = 1.2e-7;  // relative distance of neighbouring fp32 numbers, at most

void expect_frequencies(const std::string& name, const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  // The reference rounds after each of power, quotient, blend: a few fp32 steps.
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 5 * kUlp * expected[i]) << name << ", pair " << i;
}

TEST(Rope, FrequenciesEqualTransformers) {
  for (const Case& c : kCases) {
    const RopeFrequencies found = rope_frequencies(c.rope, c.sequence);
    EXPECT_NEAR(found.attention_factor, c.attention_factor, 1e-12) << c.name;
    expect_frequencies(c.name, found.inverse, c.inverse);
  }
}

RopeSpec rope_of(const std::string& model) {
  const auto path = find_named_model(model);
  EXPECT_TRUE(path.ok());
  return read_model_config(*path)->layers[0].mixer.rope;
}

// From a published config.json to frequencies: Llama-3.1-8B, every fourth pair of 64.
TEST(Rope, Llama31FrequenciesFromItsConfig) {
  const std::vector<float> all = rope_frequencies(rope_of("llama-3.1-8b"), 8192).inverse;
  ASSERT_EQ(all.size(), 64u);
  std::vector<float> some;
  for (size_t i = 0; i < all.size(); i += 4) some.push_back(all[i]);
  expect_frequencies("llama-3.1-8b", some,
                     {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
                      0.00321144611, 0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06,
                      2.92749974e-06, 1.28917316e-06, 5.6770881e-07});
}

// gpt-oss: YaRN whose ramp is not rounded to whole pairs.
TEST(Rope, GptOssFrequenciesFromItsConfig) {
  const RopeFrequencies all = rope_frequencies(rope_of("gpt-oss-20b"), 4096);
  EXPECT_NEAR(all.attention_factor, 1.3465735902799727, 1e-12);
  std::vector<float> some(all.inverse.begin() + 6, all.inverse.begin() + 20);
  expect_frequencies(
      "gpt-oss-20b", some,
      {0.107024424, 0.0737445652, 0.0508132726, 0.0317056961, 0.0193349998, 0.0115920492, 0.00679495931, 0.00386035908,
       0.00209379266, 0.00105260219, 0.000456483918, 0.000129318694, 3.83088118e-05, 2.63964685e-05});
}

struct TableEntry {
  int64_t position;
  size_t pair;
  double cos, sin;
};

// A frequency that is off by fp32 rounding turns position p by p times that much.
void expect_table(const RopeSpec& rope, const std::vector<TableEntry>& entries) {
  std::vector<int64_t> positions;
  for (const TableEntry& e : entries) positions.push_back(e.position);
  const RopeTable table = rope_table(rope, 1, positions);
  const RopeFrequencies frequencies = rope_frequencies(rope, 1);
  double used = 0;
  for (size_t row = 0; row < entries.size(); ++row) {
    const TableEntry& e = entries[row];
    const size_t at = row * static_cast<size_t>(table.half) + e.pair;
    const double angle = static_cast<double>(e.position) * frequencies.inverse[e.pair];
    const double bound = frequencies.attention_factor * (4 * kUlp * angle + 3 * kUlp);
    EXPECT_NEAR(table.cos[at], e.cos, bound) << "position " << e.position << " pair " << e.pair;
    EXPECT_NEAR(table.sin[at], e.sin, bound) << "position " << e.position << " pair " << e.pair;
    used = std::max({used, std::abs(table.cos[at] - e.cos) / bound, std::abs(table.sin[at] - e.sin) / bound});
  }
  ::testing::Test::RecordProperty("tolerance_used", std::to_string(used));
}

TEST(Rope, TableEqualsTransformers) {
  expect_table({.theta = 10000.0, .rotary_dim = 16}, {{0, 0, 1, 0},
                                                      {1, 1, 0.950415313, 0.310983598},
                                                      {7, 4, 0.997551024, 0.0699428469},
                                                      {4095, 0, -0.0659759939, -0.997821212},
                                                      {4095, 7, 0.272358716, 0.962195814},
                                                      {100000, 4, 0.562379062, 0.826879561}});
}

TEST(Rope, YarnTableCarriesTheAttentionFactor) {
  expect_table(rope_of("gpt-oss-20b"), {{0, 31, 1.34657359, 0},
                                        {1, 0, 0.727556884, 1.13310254},
                                        {7, 1, 0.14905709, -1.33829832},
                                        {4095, 16, -0.396016508, 1.28702426},
                                        {100000, 31, 1.34595811, 0.0407076031}});
}

TEST(Rope, RowsFollowTheGivenPositions) {
  const RopeSpec rope{.theta = 10000.0, .rotary_dim = 4};
  std::vector<int64_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  const RopeTable straight = rope_table(rope, 16, all);
  // Two packed documents and a zigzag chunk: each row is that of its position.
  const std::vector<int64_t> positions = {0, 1, 2, 0, 1, 12, 13};
  const RopeTable table = rope_table(rope, 16, positions);
  ASSERT_EQ(table.positions, 7);
  ASSERT_EQ(table.half, 2);
  for (size_t row = 0; row < positions.size(); ++row)
    for (size_t pair = 0; pair < 2; ++pair) {
      EXPECT_EQ(table.cos[2 * row + pair], straight.cos[2 * static_cast<size_t>(positions[row]) + pair]);
      EXPECT_EQ(table.sin[2 * row + pair], straight.sin[2 * static_cast<size_t>(positions[row]) + pair]);
    }
}

}  // namespace
}  // namespace fivefold
