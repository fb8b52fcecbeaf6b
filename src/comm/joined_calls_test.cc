// Joined calls: several buffers in one collective end with the bits that calls of their own give, and count once.
#include <gtest/gtest.h>

#include <random>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::Bf16;
using comm_test::buffer_of;
using comm_test::element;

const LocalOptions kShort{.timeout_s = 30};
const std::vector<int64_t> kChunks = {5, 0, 1, 130};

// Values that sums round, different on each rank.
template <typename T>
std::vector<T> values(int rank, int64_t count, unsigned salt) {
  std::minstd_rand random(salt + 7919u * static_cast<unsigned>(rank) + 1u);
  std::vector<T> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(element<T>((static_cast<double>(random() % 20000) - 10000) / 700));
  return x;
}

template <typename T>
class JoinedCalls : public testing::Test {};
using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(JoinedCalls, Types);

TYPED_TEST(JoinedCalls, AllGather) {
  using T = TypeParam;
  run_ranks(3, kShort, [](int rank, Communicator& comm) {
    std::vector<std::vector<T>> inputs, outputs, single;
    std::vector<InOut> buffers;
    for (const int64_t chunk : kChunks) {
      inputs.push_back(values<T>(rank, chunk, static_cast<unsigned>(chunk)));
      outputs.emplace_back(static_cast<size_t>(3 * chunk));
    }
    single = outputs;
    for (size_t i = 0; i < kChunks.size(); ++i) {
      comm.all_gather(comm.world(), buffer_of(inputs[i]), buffer_of(single[i]), Purpose::kParameters);
      buffers.push_back({buffer_of(inputs[i]), buffer_of(outputs[i])});
    }
    comm.all_gather(comm.world(), buffers, Purpose::kParameters);
    EXPECT_EQ(outputs, single);
  });
}

TYPED_TEST(JoinedCalls, ReduceScatterAndAllReduce) {
  using T = TypeParam;
  for (const Output mode : {Output::kOverwrite, Output::kAccumulate}) {
    run_ranks(4, kShort, [mode](int rank, Communicator& comm) {
      std::vector<std::vector<T>> inputs;
      std::vector<std::vector<float>> outputs, single;
      std::vector<InOut> buffers;
      for (const int64_t chunk : kChunks) {
        inputs.push_back(values<T>(rank, 4 * chunk, static_cast<unsigned>(chunk)));
        outputs.push_back(values<float>(rank, chunk, 99));
      }
      single = outputs;
      for (size_t i = 0; i < kChunks.size(); ++i) {
        comm.reduce_scatter(comm.world(), buffer_of(inputs[i]), buffer_of(single[i]), Reduction::kSum,
                            Purpose::kGradients, {}, mode);
        buffers.push_back({buffer_of(inputs[i]), buffer_of(outputs[i])});
      }
      comm.reduce_scatter(comm.world(), buffers, Reduction::kSum, Purpose::kGradients, {}, mode);
      EXPECT_EQ(outputs, single);

      std::vector<std::vector<T>> together = inputs;
      std::vector<Buffer> data;
      for (std::vector<T>& x : together) data.push_back(buffer_of(x));
      for (std::vector<T>& x : inputs)
        comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
      comm.all_reduce(comm.world(), data, Reduction::kSum, Purpose::kGradients);
      EXPECT_EQ(together, inputs);
    });
  }
}

// Chunks of 5, 0, 1 and 130 fp32: a gather sends 2 x 136 x 4 bytes from each of 3 ranks, in one call.
TEST(JoinedCallsCount, OnceWithTheBytesOfAll) {
  run_ranks(3, kShort, [](int, Communicator& comm) {
    std::vector<std::vector<float>> inputs, outputs;
    std::vector<InOut> buffers;
    for (const int64_t chunk : kChunks) {
      inputs.emplace_back(static_cast<size_t>(chunk));
      outputs.emplace_back(static_cast<size_t>(3 * chunk));
    }
    for (size_t i = 0; i < kChunks.size(); ++i) buffers.push_back({buffer_of(inputs[i]), buffer_of(outputs[i])});
    comm.all_gather(comm.world(), buffers, Purpose::kParameters);
    comm.all_gather(comm.world(), std::vector<InOut>{}, Purpose::kParameters);
    const CommCount count = comm.counters().count(CollectiveKind::kAllGather, GroupKind::kWorld, Purpose::kParameters);
    EXPECT_EQ(count.calls, 1);
    EXPECT_EQ(count.bytes, 2 * 136 * 4);
  });
}

// The same bytes in all, cut in another way.
TEST(JoinedCallsDiffer, OtherCutsAreNamed) {
  try {
    run_ranks(2, kShort, [](int rank, Communicator& comm) {
      std::vector<float> a(rank == 0 ? 3 : 4), b(rank == 0 ? 5 : 4), all_a(2 * a.size()), all_b(2 * b.size());
      comm.all_gather(comm.world(), {{buffer_of(a), buffer_of(all_a)}, {buffer_of(b), buffer_of(all_b)}},
                      Purpose::kParameters);
    });
    FAIL() << "ranks with other buffers met";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("in buffers of 12 + 20"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("in buffers of 16 + 16"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fivefold
