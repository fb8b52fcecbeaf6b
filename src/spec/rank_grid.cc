#include "spec/rank_grid.h"

#include <fmt/format.h>

#include "spec/validate_degrees.h"

namespace fivefold {
namespace {

// More ranks than any machine has; keeps products of degrees inside int.
constexpr int64_t kMaxWorld = 1 << 20;

// Ranks `first, first + stride, ...`, `count` of them.
std::vector<int> strided(int first, int stride, int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ranks[static_cast<size_t>(i)] = first + i * stride;
  return ranks;
}

}  // namespace

Result<RankGrid> RankGrid::create(const Degrees& degrees) {
  const std::pair<const char*, int> positive[] = {{"parallel.dp", degrees.dp}, {"parallel.tp", degrees.tp},
                                                  {"parallel.cp", degrees.cp}, {"parallel.pp", degrees.pp},
                                                  {"parallel.ep", degrees.ep}, {"parallel.etp", degrees.etp}};
  int64_t world = 1;
  for (const auto& [name, degree] : positive) {
    if (degree < 1) return Error{name, fmt::format("a degree of {} has no ranks", degree), "use at least 1"};
    if (degree > kMaxWorld)
      return Error{name, fmt::format("{} ranks are more than {}", degree, kMaxWorld), "use a smaller degree"};
  }
  for (const int degree : {degrees.dp, degrees.tp, degrees.cp, degrees.pp}) {
    world *= degree;
    if (world > kMaxWorld)
      return Error{"parallel", fmt::format("dp x tp x cp x pp is more than {} ranks", kMaxWorld),
                   "use smaller degrees"};
  }
  const int64_t stage = int64_t{degrees.tp} * degrees.cp * degrees.dp;
  if (stage % degrees.etp != 0)
    return Error{"parallel.etp",
                 fmt::format("{} does not divide the {} ranks of a stage (tp x cp x dp)", degrees.etp, stage),
                 nearest_degrees("etp", degrees.etp, stage, [&](int64_t etp) { return stage % etp == 0; })};
  if (stage % (int64_t{degrees.ep} * degrees.etp) != 0)
    return Error{"parallel.ep",
                 fmt::format("ep x etp = {} does not divide the {} ranks of a stage (tp x cp x dp)",
                             int64_t{degrees.ep} * degrees.etp, stage),
                 nearest_degrees("ep", degrees.ep, stage, [&](int64_t ep) { return stage % (ep * degrees.etp) == 0; })};
  Degrees filled = degrees;
  const int replicas = degrees.dp * degrees.cp;
  if (filled.shard_size == 0) filled.shard_size = replicas;
  if (filled.shard_size < 0 || replicas % filled.shard_size != 0)
    return Error{
        "parallel.shard_size", fmt::format("{} does not divide the {} ranks of dp x cp", filled.shard_size, replicas),
        nearest_degrees("shard_size", filled.shard_size, replicas, [&](int64_t n) { return replicas % n == 0; })};
  return RankGrid(filled);
}

Coordinates RankGrid::coordinates(int rank) const {
  FIVEFOLD_CHECK(rank >= 0 && rank < world());
  const auto& d = degrees_;
  Coordinates c;
  c.tp = rank % d.tp;
  c.cp = rank / d.tp % d.cp;
  c.dp = rank / (d.tp * d.cp) % d.dp;
  c.pp = rank / (d.tp * d.cp * d.dp);
  c.etp = rank % d.etp;
  c.ep = rank / d.etp % d.ep;
  c.edp = rank / (d.etp * d.ep) % edp();
  const int replica = c.cp + d.cp * c.dp;  // position in dp x cp, cp fastest
  c.shard = replica % d.shard_size;
  c.replicate = replica / d.shard_size;
  return c;
}

std::vector<int> RankGrid::group(GroupKind kind, int rank) const {
  const Coordinates c = coordinates(rank);
  const auto& d = degrees_;
  const int size = group_size(kind);
  const int cp_stride = d.tp, dp_stride = d.tp * d.cp, pp_stride = d.tp * d.cp * d.dp;
  switch (kind) {
    case GroupKind::kWorld:
      return strided(0, 1, size);
    case GroupKind::kTp:
      return strided(rank - c.tp, 1, size);
    case GroupKind::kCp:
      return strided(rank - c.cp * cp_stride, cp_stride, size);
    case GroupKind::kDp:
      return strided(rank - c.dp * dp_stride, dp_stride, size);
    case GroupKind::kPp:
      return strided(rank - c.pp * pp_stride, pp_stride, size);
    // dp x cp is one axis of stride tp, since dp follows cp.
    case GroupKind::kDpCp:
      return strided(rank - (c.cp + d.cp * c.dp) * cp_stride, cp_stride, size);
    case GroupKind::kShard:
      return strided(rank - c.shard * cp_stride, cp_stride, size);
    case GroupKind::kReplicate:
      return strided(rank - c.replicate * d.shard_size * cp_stride, d.shard_size * cp_stride, size);
    case GroupKind::kEmbedding:
      return strided(rank - c.pp * pp_stride, (d.pp - 1) * pp_stride, size);
    case GroupKind::kEtp:
      return strided(rank - c.etp, 1, size);
    case GroupKind::kEp:
      return strided(rank - c.ep * d.etp, d.etp, size);
    case GroupKind::kEdp:
      return strided(rank - c.edp * d.etp * d.ep, d.etp * d.ep, size);
    case GroupKind::kKvHead:
      return strided(rank - c.tp % d.kv_holders, 1, size);
  }
  FIVEFOLD_CHECK(false);
}

int RankGrid::group_size(GroupKind kind) const {
  const auto& d = degrees_;
  switch (kind) {
    case GroupKind::kWorld:
      return world();
    case GroupKind::kDp:
      return d.dp;
    case GroupKind::kDpCp:
      return d.dp * d.cp;
    case GroupKind::kShard:
      return d.shard_size;
    case GroupKind::kReplicate:
      return d.dp * d.cp / d.shard_size;
    case GroupKind::kTp:
      return d.tp;
    case GroupKind::kCp:
      return d.cp;
    case GroupKind::kPp:
      return d.pp;
    case GroupKind::kEmbedding:
      return d.pp > 1 ? 2 : 1;
    case GroupKind::kEtp:
      return d.etp;
    case GroupKind::kEp:
      return d.ep;
    case GroupKind::kEdp:
      return edp();
    case GroupKind::kKvHead:
      return d.kv_holders;
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace fivefold
