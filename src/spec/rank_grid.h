// RankGrid: which rank sits where. Dense grid tp x cp x dp x pp and expert grid etp x ep x edp x pp over the same
// ranks. Fastest first: tp, then cp, then dp, then pp; for experts etp, then ep, then edp, then pp. Derivation:
// docs/communication.md. Immutable, thread-safe.
#pragma once

#include <vector>

#include "base/result.h"
#include "spec/enums.h"

namespace fivefold {

struct Degrees {
  int dp = 1, tp = 1, cp = 1, pp = 1, ep = 1, etp = 1;
  int kv_holders = 1;  // ranks of a tensor group that share a KV head: t / k when KV heads are fewer than t
  int shard_size = 0;  // ranks over which ZeRO shards (HSDP when smaller than dp * cp); 0: all of dp x cp

  int world() const { return dp * tp * cp * pp; }
};

struct Coordinates {
  int tp = 0, cp = 0, dp = 0, pp = 0;  // dense grid
  int etp = 0, ep = 0, edp = 0;        // expert grid (same pp)
  int shard = 0, replicate = 0;        // position in dp x cp: shard fastest
};

class RankGrid {
 public:
  // Errors: a degree below 1, more than 2^20 ranks, ep * etp that does not divide tp * cp * dp, shard_size that does
  // not divide dp * cp.
  static Result<RankGrid> create(const Degrees& degrees);

  int world() const { return degrees_.world(); }
  const Degrees& degrees() const { return degrees_; }  // shard_size filled in
  int edp() const { return degrees_.tp * degrees_.cp * degrees_.dp / (degrees_.ep * degrees_.etp); }
  Coordinates coordinates(int rank) const;
  // Members in group order (index along the group's axis), `rank` among them. kEmbedding is the two ends of the rank's
  // pipeline: stages between them are not members.
  std::vector<int> group(GroupKind kind, int rank) const;
  int group_size(GroupKind kind) const;

 private:
  explicit RankGrid(const Degrees& degrees) : degrees_(degrees) {}
  Degrees degrees_;
};

}  // namespace fivefold
