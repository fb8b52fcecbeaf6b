// Every collective, dtype and group size against arithmetic in doubles that is written out here.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::Bf16;
using comm_test::buffer_of;
using comm_test::element;
using comm_test::Fp16;
using comm_test::value_of;

const LocalOptions kShort{.timeout_s = 30};
constexpr int kSizes[] = {1, 2, 3, 4, 8};

// Small integers and halves: sums over 8 ranks are exact in every dtype but the 8 significant bits of bf16, where they
// need rounding.
template <typename T>
double input_value(int rank, int64_t i) {
  const int64_t whole = (rank * 37 + i * 11) % 41 - 20;
  return std::is_integral_v<T> ? static_cast<double>(whole) : static_cast<double>(whole) * 0.5;
}
template <typename T>
std::vector<T> input_of(int rank, int64_t count, int64_t first = 0) {
  std::vector<T> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(element<T>(input_value<T>(rank, first + i)));
  return x;
}
template <typename T>
T reduced(const std::vector<int>& ranks, int64_t i, Reduction reduction) {
  double result = input_value<T>(ranks[0], i);
  for (size_t r = 1; r < ranks.size(); ++r) {
    const double x = input_value<T>(ranks[r], i);
    result = reduction == Reduction::kSum ? result + x : std::max(result, x);
  }
  return element<T>(result);
}

// Runs fn on each rank of worlds of every size, with the world group and with interleaved halves of it: ranks r, r+2,
// ... in descending order, so that group order is not world order.
template <typename Function>
void for_each_group(const Function& fn) {
  for (const int n : kSizes) {
    SCOPED_TRACE(n);
    run_ranks(n, kShort, [&](int rank, Communicator& comm) {
      fn(comm, comm.world());
      std::vector<int> half;
      for (int r = n - 1; r >= 0; --r)
        if (r % 2 == rank % 2) half.push_back(r);
      fn(comm, comm.create_group(GroupKind::kTp, rank % 2, half));
    });
  }
}

template <typename T>
class Collectives : public testing::Test {};
using ReducibleTypes = testing::Types<float, double, Bf16, Fp16, int32_t, int64_t>;
TYPED_TEST_SUITE(Collectives, ReducibleTypes);

TYPED_TEST(Collectives, AllReduceOfAnyCount) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      for (const int64_t count : {0, 1, 2, 7, 8, 5003}) {
        auto x = input_of<T>(comm.rank(), count);
        comm.all_reduce(group, buffer_of(x), reduction, Purpose::kGradients);
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(x[i], reduced<T>(group.members(), i, reduction)) << i;
      }
    }
  });
}

TYPED_TEST(Collectives, ReduceScatter) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      for (const int64_t chunk : {0, 1, 13, 2049}) {
        const int64_t first = group.rank() * chunk;
        const auto original = input_of<T>(comm.rank(), chunk * group.size());
        auto x = original;
        std::vector<T> out(chunk);
        comm.reduce_scatter(group, buffer_of(x), buffer_of(out), reduction, Purpose::kGradients);
        for (int64_t i = 0; i < chunk; ++i) ASSERT_EQ(out[i], reduced<T>(group.members(), first + i, reduction)) << i;
        ASSERT_EQ(x, original);
        // In place: the chunk is replaced, the rest stays.
        comm.reduce_scatter(group, buffer_of(x), buffer_of(x.data() + first, chunk), reduction, Purpose::kGradients);
        for (int64_t i = 0; i < chunk * group.size(); ++i)
          ASSERT_EQ(x[i], i >= first && i < first + chunk ? out[i - first] : original[i]) << i;
      }
    }
  });
}

TYPED_TEST(Collectives, ReduceScatterAccumulates) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    const int64_t chunk = 9;
    auto x = input_of<T>(comm.rank(), chunk * group.size());
    std::vector<T> out(chunk, element<T>(3));
    comm.reduce_scatter(group, buffer_of(x), buffer_of(out), Reduction::kSum, Purpose::kGradients, {},
                        Output::kAccumulate);
    for (int64_t i = 0; i < chunk; ++i) {
      double sum = 3;
      for (const int r : group.members()) sum += input_value<T>(r, group.rank() * chunk + i);
      ASSERT_EQ(out[i], element<T>(sum));
    }
  });
}

TEST(LocalCollectives, HalfPrecisionReducesIntoFp32Unrounded) {
  // Four ranks contribute 256, 1, 1, 1 in bf16: 259 is no bf16. Two microbatches accumulate to 518.
  run_ranks(4, kShort, [](int rank, Communicator& comm) {
    std::vector<Bf16> x(4, element<Bf16>(rank == 0 ? 256 : 1));
    std::vector<float> shard(1, 0.0f);
    for (const float expected : {259.0f, 518.0f}) {
      comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(shard), Reduction::kSum, Purpose::kGradients, {},
                          Output::kAccumulate);
      EXPECT_EQ(shard[0], expected);
    }
    comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(shard), Reduction::kMax, Purpose::kGradients);
    EXPECT_EQ(shard[0], 256.0f);
  });
}

template <typename T>
class Movements : public testing::Test {};
using AllTypes = testing::Types<float, double, Bf16, Fp16, int32_t, int64_t, uint8_t>;
TYPED_TEST_SUITE(Movements, AllTypes);

TYPED_TEST(Movements, AllGather) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    for (const int64_t chunk : {0, 1, 1001}) {
      std::vector<T> expected;
      for (const int r : group.members())
        for (const T x : input_of<T>(r, chunk)) expected.push_back(x);
      auto mine = input_of<T>(comm.rank(), chunk);
      std::vector<T> all(chunk * group.size());
      comm.all_gather(group, buffer_of(mine), buffer_of(all), Purpose::kParameters);
      ASSERT_EQ(all, expected);
      // In place, while the other half of the group's members is not.
      std::vector<T> again(chunk * group.size());
      T* const place = again.data() + group.rank() * chunk;
      std::copy(mine.begin(), mine.end(), place);
      const Buffer input = group.rank() % 2 == 0 ? buffer_of(place, chunk) : buffer_of(mine);
      comm.all_gather(group, input, buffer_of(again), Purpose::kParameters);
      ASSERT_EQ(again, expected);
    }
  });
}

TYPED_TEST(Movements, AllToAll) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    const int64_t chunk = 5;
    auto x = input_of<T>(comm.rank(), chunk * group.size());
    std::vector<T> y(x.size());
    comm.all_to_all(group, buffer_of(x), buffer_of(y), Purpose::kActivations);
    for (int j = 0; j < group.size(); ++j)
      for (int64_t i = 0; i < chunk; ++i)
        ASSERT_EQ(y[j * chunk + i], element<T>(input_value<T>(group.members()[j], group.rank() * chunk + i)));
  });
}

TYPED_TEST(Movements, RaggedAllToAll) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    // Member a sends (2 a + 3 b) mod 5 elements to member b: some send nothing.
    const auto count = [](int a, int b) { return int64_t{(2 * a + 3 * b) % 5}; };
    std::vector<int64_t> send_counts, recv_counts;
    std::vector<T> expected;
    int64_t total = 0;
    for (int j = 0; j < group.size(); ++j) {
      send_counts.push_back(count(group.rank(), j));
      recv_counts.push_back(count(j, group.rank()));
      total += send_counts.back();
      int64_t before = 0;
      for (int b = 0; b < group.rank(); ++b) before += count(j, b);
      for (const T x : input_of<T>(group.members()[j], recv_counts.back(), before)) expected.push_back(x);
    }
    auto x = input_of<T>(comm.rank(), total);
    std::vector<T> y(expected.size());
    comm.all_to_all(group, buffer_of(x), send_counts, buffer_of(y), recv_counts, Purpose::kActivations);
    ASSERT_EQ(y, expected);
  });
}

TYPED_TEST(Movements, Broadcast) {
  using T = TypeParam;
  for_each_group([](Communicator& comm, const Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      auto x = input_of<T>(comm.rank(), 77);
      comm.broadcast(group, buffer_of(x), root, Purpose::kControl);
      ASSERT_EQ(x, input_of<T>(group.members()[root], 77));
    }
  });
}

TEST(LocalCollectives, BarrierWaitsForEverybody) {
  for (const int n : kSizes) {
    std::vector<std::atomic<int>> round(n);
    run_ranks(n, kShort, [&](int rank, Communicator& comm) {
      for (int i = 1; i <= 200; ++i) {
        round[rank] = i;
        comm.barrier(comm.world(), Purpose::kControl);
        for (int j = 0; j < n; ++j) ASSERT_GE(round[j], i);
      }
    });
  }
}

TEST(LocalCollectives, GroupsAreNamedAndShared) {
  run_ranks(4, kShort, [](int rank, Communicator& comm) {
    EXPECT_EQ(comm.world().name(), "world[0]");
    EXPECT_EQ(comm.world().rank(), rank);
    const std::vector<int> members = rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{3, 2};
    const Group group = comm.create_group(GroupKind::kTp, rank / 2, members);
    EXPECT_EQ(group.name(), rank < 2 ? "tp[0]" : "tp[1]");
    EXPECT_EQ(group.rank(), 1 - rank % 2);
    // The same group by another handle: sequence numbers go on.
    const Group again = comm.create_group(GroupKind::kTp, rank / 2, members);
    comm.barrier(group, Purpose::kControl);
    comm.barrier(again, Purpose::kControl);
    EXPECT_EQ(comm.flight_recorder().records().back().sequence, 1);
  });
}

TEST(LocalCollectivesDeathTest, WrongArgumentsAreBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto communicators = LocalWorld::create(1);
  Communicator& comm = *communicators[0];
  std::vector<float> x(4), y(3);
  std::vector<uint8_t> bytes(4);
  EXPECT_DEATH(comm.all_reduce(comm.world(), buffer_of(bytes), Reduction::kSum, Purpose::kLoss), "can_be_reduced");
  EXPECT_DEATH(comm.all_gather(comm.world(), buffer_of(x), buffer_of(y), Purpose::kLoss), "does not hold");
  EXPECT_DEATH(comm.all_to_all(comm.world(), buffer_of(x), buffer_of(x), Purpose::kLoss), "apart");
  EXPECT_DEATH(comm.send(comm.world(), buffer_of(x), 0, Purpose::kLoss), "does not hold");
  EXPECT_DEATH(comm.create_group(GroupKind::kDp, 0, {0, 0}), "twice");
}

}  // namespace
}  // namespace fivefold
