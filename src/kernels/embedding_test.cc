#include "kernels/embedding.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

struct Geometry {
  int64_t rows, cols, table_rows;
};
// More ids than rows, fewer, one; columns around the tile of 256.
const std::vector<Geometry> kGeometries = {{1, 1, 1}, {7, 5, 200}, {300, 257, 3}, {500, 33, 70}, {65, 512, 130}};
constexpr float kScale = 1.5f;

template <class T>
class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, ElementTypes);

TYPED_TEST(Embedding, ForwardGathersScaledRowsAndAddsPositions) {
  for (const Geometry& g : kGeometries) {
    const std::vector<TypeParam> table = random_elements<TypeParam>(g.table_rows * g.cols, 1);
    const std::vector<TypeParam> position_table = random_elements<TypeParam>(20 * g.cols, 2);
    const std::vector<int32_t> ids = random_indices(g.rows, g.table_rows, 3);
    const std::vector<int32_t> positions = random_indices(g.rows, 20, 4);
    for (const bool with_positions : {false, true}) {
      std::vector<TypeParam> out(static_cast<size_t>(g.rows * g.cols));
      embedding_forward<TypeParam>({.table = table.data(),
                                    .ids = ids.data(),
                                    .table_rows = g.table_rows,
                                    .position_table = with_positions ? position_table.data() : nullptr,
                                    .positions = positions.data(),
                                    .position_rows = 20,
                                    .out = out.data(),
                                    .rows = g.rows,
                                    .cols = g.cols,
                                    .scale = kScale,
                                    .num_threads = 2});
      Values expected, error;
      for (size_t r = 0; r < ids.size(); ++r) {
        for (int64_t c = 0; c < g.cols; ++c) {
          const double token = 1.5 * to_float(table[static_cast<size_t>(ids[r] * g.cols + c)]);
          const double position =
              with_positions ? to_float(position_table[static_cast<size_t>(positions[r] * g.cols + c)]) : 0.0;
          expected.push_back(token + position);
          error.push_back(2 * kUnitF32 * (std::abs(token) + std::abs(position)));
        }
      }
      expect_within(out, expected, error, "embedding");
    }
  }
}

template <class T>
void backward(const Geometry& g, const std::vector<T>& dout, const std::vector<int32_t>& ids, GradTarget target,
              int num_threads) {
  std::vector<std::byte> scratch(static_cast<size_t>(embedding_backward_scratch_bytes(g.rows, g.table_rows)));
  embedding_backward<T>({.dout = dout.data(),
                         .ids = ids.data(),
                         .table_grad = target,
                         .table_rows = g.table_rows,
                         .rows = g.rows,
                         .cols = g.cols,
                         .scale = kScale,
                         .scratch = scratch.data(),
                         .num_threads = num_threads});
}

// Against plain scatter-addition in fp64, row after row.
TYPED_TEST(Embedding, BackwardAddsTheRowsOfEachId) {
  for (const Geometry& g : kGeometries) {
    const std::vector<TypeParam> dout = random_elements<TypeParam>(g.rows * g.cols, 1);
    const std::vector<int32_t> ids = random_indices(g.rows, g.table_rows, 3);
    Values sum(static_cast<size_t>(g.table_rows * g.cols)), error(sum.size());
    for (size_t i = 0; i < dout.size(); ++i) {
      const size_t r = i / static_cast<size_t>(g.cols);
      const size_t at = static_cast<size_t>(ids[r] * g.cols) + i % static_cast<size_t>(g.cols);
      const double term = 1.5 * to_float(dout[i]);
      sum[at] += term;
      error[at] += (64 + static_cast<double>(g.rows) / 64 + 3) * kUnitF32 * std::abs(term);
    }
    for (const TargetKind kind : kTargetKinds) {
      GradBuffer target(g.table_rows * g.cols, kind.type, kind.mode);
      backward(g, dout, ids, target.target(), 2);
      target.expect(sum, error, "embedding backward");
    }
  }
}

// A table cut into parts of rows: the parts' outputs add up to the whole's, bit for bit since all but one are zero, and
// each part gets the gradient of its rows.
TYPED_TEST(Embedding, PartsOfTheTableGiveTheWhole) {
  const int64_t rows = 90, cols = 37, table_rows = 50;
  const std::vector<TypeParam> table = random_elements<TypeParam>(table_rows * cols, 1);
  const std::vector<TypeParam> positions_table = random_elements<TypeParam>(20 * cols, 5);
  const std::vector<TypeParam> dout = random_elements<TypeParam>(rows * cols, 2);
  const std::vector<int32_t> ids = random_indices(rows, table_rows, 3), positions = random_indices(rows, 20, 4);
  std::vector<TypeParam> whole(static_cast<size_t>(rows * cols)), sum(whole.size());
  std::vector<float> grad(table.size()), part_grad(table.size());
  const EmbeddingForward<TypeParam> args{.table = table.data(),
                                         .ids = ids.data(),
                                         .table_rows = table_rows,
                                         .position_table = nullptr,
                                         .positions = positions.data(),
                                         .position_rows = 20,
                                         .out = whole.data(),
                                         .rows = rows,
                                         .cols = cols};
  embedding_forward<TypeParam>(args);
  backward({rows, cols, table_rows}, dout, ids, overwrite(grad.data()), 2);
  for (const int64_t first : {0, 20, 40}) {
    const int64_t count = std::min<int64_t>(20, table_rows - first);
    std::vector<TypeParam> out(whole.size());
    EmbeddingForward<TypeParam> part = args;
    part.table = table.data() + first * cols;
    part.table_rows = count;
    part.first_id = first;
    part.whole_rows = table_rows;
    part.out = out.data();
    embedding_forward<TypeParam>(part);
    for (size_t i = 0; i < out.size(); ++i) sum[i] = from_float<TypeParam>(to_float(sum[i]) + to_float(out[i]));
    part.position_table = positions_table.data();
    embedding_forward<TypeParam>(part);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = static_cast<size_t>(r);
      if (ids[row] >= first && ids[row] < first + count) continue;
      EXPECT_EQ(to_float(out[row * static_cast<size_t>(cols) + 5]),
                to_float(positions_table[static_cast<size_t>(positions[row] * cols + 5)]));
    }
    std::vector<std::byte> scratch(static_cast<size_t>(embedding_backward_scratch_bytes(rows, count)));
    embedding_backward<TypeParam>({.dout = dout.data(),
                                   .ids = ids.data(),
                                   .table_grad = overwrite(part_grad.data() + first * cols),
                                   .table_rows = count,
                                   .first_id = first,
                                   .whole_rows = table_rows,
                                   .rows = rows,
                                   .cols = cols,
                                   .scale = kScale,
                                   .scratch = scratch.data(),
                                   .num_threads = 2});
  }
  EXPECT_TRUE(bytes_of(sum) == bytes_of(whole));
  EXPECT_TRUE(bytes_of(part_grad) == bytes_of(grad));
}

TYPED_TEST(Embedding, ThreadsChangeNoBit) {
  const Geometry g{5000, 300, 90};
  const std::vector<TypeParam> dout = random_elements<TypeParam>(g.rows * g.cols, 1);
  const std::vector<int32_t> ids = random_indices(g.rows, g.table_rows, 3);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<float> grad(static_cast<size_t>(g.table_rows * g.cols));
    backward(g, dout, ids, overwrite(grad.data()), num_threads);
    return bytes_of(grad);
  });
}

TEST(EmbeddingDeathTest, AnIdOutsideTheTableAborts) {
  const std::vector<float> table(8);
  std::vector<float> out(4);
  for (const int32_t id : {-1, 2}) {
    EXPECT_DEATH(embedding_forward<float>(
                     {.table = table.data(), .ids = &id, .table_rows = 2, .out = out.data(), .rows = 1, .cols = 4}),
                 "outside the table");
  }
}

}  // namespace
}  // namespace fivefold::kernels
