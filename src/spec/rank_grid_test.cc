#include "spec/rank_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace fivefold {
namespace {

using Ranks = std::vector<int>;

RankGrid grid(const Degrees& degrees) { return RankGrid::create(degrees).value(); }
std::string error(const Degrees& degrees) {
  const auto created = RankGrid::create(degrees);
  return created.ok() ? "" : created.error().message();
}

// rank = tp + 2 cp + 4 dp + 8 pp; 13 = 1 + 0 + 4 + 8.
TEST(RankGrid, PlacesTpFastestThenCpDpPp) {
  const RankGrid g = grid({.dp = 2, .tp = 2, .cp = 2, .pp = 2});
  EXPECT_EQ(g.world(), 16);
  const Coordinates c = g.coordinates(13);
  EXPECT_EQ(c.tp, 1);
  EXPECT_EQ(c.cp, 0);
  EXPECT_EQ(c.dp, 1);
  EXPECT_EQ(c.pp, 1);
}

TEST(RankGrid, DenseGroupsOfTp2Cp2Dp2Pp2) {
  const RankGrid g = grid({.dp = 2, .tp = 2, .cp = 2, .pp = 2});
  EXPECT_EQ(g.group(GroupKind::kTp, 13), (Ranks{12, 13}));
  EXPECT_EQ(g.group(GroupKind::kCp, 13), (Ranks{13, 15}));
  EXPECT_EQ(g.group(GroupKind::kDp, 13), (Ranks{9, 13}));
  EXPECT_EQ(g.group(GroupKind::kPp, 13), (Ranks{5, 13}));
  EXPECT_EQ(g.group(GroupKind::kEmbedding, 13), (Ranks{5, 13}));
  EXPECT_EQ(g.group(GroupKind::kDpCp, 13), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(g.group(GroupKind::kShard, 13), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(g.group(GroupKind::kReplicate, 13), (Ranks{13}));
  EXPECT_EQ(g.group(GroupKind::kDpCp, 0), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(g.group(GroupKind::kWorld, 13).size(), 16u);
}

// etp 2, ep 2, edp 2 over the 8 ranks of tp 2 x dp 4: rank = etp + 2 ep + 4 edp.
TEST(RankGrid, ExpertGridOverTheSameRanks) {
  const RankGrid g = grid({.dp = 4, .tp = 2, .ep = 2, .etp = 2});
  EXPECT_EQ(g.edp(), 2);
  EXPECT_EQ(g.group(GroupKind::kEtp, 6), (Ranks{6, 7}));
  EXPECT_EQ(g.group(GroupKind::kEp, 6), (Ranks{4, 6}));
  EXPECT_EQ(g.group(GroupKind::kEdp, 6), (Ranks{2, 6}));
  EXPECT_EQ(g.group(GroupKind::kEp, 3), (Ranks{1, 3}));
  // etp 1: experts spread over tp ranks too.
  const RankGrid flat = grid({.dp = 4, .tp = 2, .ep = 4});
  EXPECT_EQ(flat.group(GroupKind::kEp, 6), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(flat.group(GroupKind::kEdp, 6), (Ranks{2, 6}));
  EXPECT_EQ(flat.group(GroupKind::kEtp, 6), (Ranks{6}));
}

TEST(RankGrid, ExpertGridStaysInsideAPipelineStage) {
  const RankGrid g = grid({.dp = 4, .pp = 2, .ep = 2});
  EXPECT_EQ(g.group(GroupKind::kEp, 6), (Ranks{6, 7}));
  EXPECT_EQ(g.group(GroupKind::kEdp, 6), (Ranks{4, 6}));
}

// tp 2, dp 4, shards of 2: dp indices {0, 1} and {2, 3} each hold a whole copy.
TEST(RankGrid, HybridShardingSplitsDp) {
  const RankGrid g = grid({.dp = 4, .tp = 2, .shard_size = 2});
  EXPECT_EQ(g.group(GroupKind::kShard, 5), (Ranks{5, 7}));
  EXPECT_EQ(g.group(GroupKind::kReplicate, 5), (Ranks{1, 5}));
  EXPECT_EQ(g.coordinates(5).shard, 0);
  EXPECT_EQ(g.coordinates(5).replicate, 1);
  EXPECT_EQ(g.group_size(GroupKind::kReplicate), 2);
}

// Shards run over dp x cp with cp first: with cp 2, dp 2 a shard of 2 is one cp pair.
TEST(RankGrid, HybridShardingCountsCpFirst) {
  const RankGrid g = grid({.dp = 2, .cp = 2, .shard_size = 2});
  EXPECT_EQ(g.group(GroupKind::kShard, 3), (Ranks{2, 3}));
  EXPECT_EQ(g.group(GroupKind::kReplicate, 3), (Ranks{1, 3}));
}

TEST(RankGrid, ShardSizeDefaultsToAllOfDpTimesCp) { EXPECT_EQ(grid({.dp = 3, .cp = 2}).degrees().shard_size, 6); }

TEST(RankGrid, MiddleStagesAreNotInTheirEmbeddingGroup) {
  const RankGrid g = grid({.pp = 4});
  EXPECT_EQ(g.group(GroupKind::kEmbedding, 1), (Ranks{0, 3}));
  EXPECT_EQ(grid({.dp = 2}).group(GroupKind::kEmbedding, 1), (Ranks{1}));
}

// Whatever the degrees, the groups of a kind cut the world into equal parts and each rank is in its own, except that
// only the ends of a pipeline are in embedding groups.
TEST(RankGrid, GroupsPartitionTheWorld) {
  for (const int tp : {1, 2, 3})
    for (const int cp : {1, 2})
      for (const int dp : {1, 2, 4})
        for (const int pp : {1, 2, 3})
          for (const int shard : {1, 2}) {
            if (dp * cp % shard != 0) continue;
            const RankGrid g = grid({.dp = dp, .tp = tp, .cp = cp, .pp = pp, .ep = dp, .etp = tp, .shard_size = shard});
            for (int k = 0; k < kNumGroupKinds; ++k) {
              const auto kind = static_cast<GroupKind>(k);
              std::set<Ranks> groups;
              for (int rank = 0; rank < g.world(); ++rank) {
                const Ranks group = g.group(kind, rank);
                EXPECT_EQ(static_cast<int>(group.size()), g.group_size(kind));
                const bool is_member = std::count(group.begin(), group.end(), rank) == 1;
                EXPECT_TRUE(is_member || kind == GroupKind::kEmbedding);
                groups.insert(group);
              }
              std::multiset<int> members;
              for (const Ranks& group : groups) members.insert(group.begin(), group.end());
              const size_t expected = kind == GroupKind::kEmbedding ? groups.size() * g.group(kind, 0).size()
                                                                    : static_cast<size_t>(g.world());
              EXPECT_EQ(members.size(), expected);
              EXPECT_EQ(std::set<int>(members.begin(), members.end()).size(), members.size()) << to_string(kind);
            }
          }
}

TEST(RankGrid, ErrorsNameTheNearestLegalDegree) {
  EXPECT_EQ(error({.dp = 0}), "parallel.dp: a degree of 0 has no ranks (use at least 1)");
  EXPECT_EQ(error({.dp = 8, .ep = 3}),
            "parallel.ep: ep x etp = 3 does not divide the 8 ranks of a stage (tp x cp x dp) (use ep = 2 or 4)");
  EXPECT_EQ(error({.dp = 2, .ep = 2, .etp = 2}),
            "parallel.ep: ep x etp = 4 does not divide the 2 ranks of a stage (tp x cp x dp) (use ep = 1)");
  EXPECT_EQ(error({.dp = 8, .etp = 3}),
            "parallel.etp: 3 does not divide the 8 ranks of a stage (tp x cp x dp) (use etp = 2 or 4)");
  EXPECT_EQ(error({.dp = 4, .shard_size = 3}),
            "parallel.shard_size: 3 does not divide the 4 ranks of dp x cp (use shard_size = 2 or 4)");
  EXPECT_EQ(error({.dp = 4, .shard_size = 16}),
            "parallel.shard_size: 16 does not divide the 4 ranks of dp x cp (use shard_size = 4)");
  EXPECT_EQ(error({.dp = 1 << 20, .tp = 1 << 20, .cp = 1 << 20, .pp = 1 << 20}),
            "parallel: dp x tp x cp x pp is more than 1048576 ranks (use smaller degrees)");
}

}  // namespace
}  // namespace fivefold
