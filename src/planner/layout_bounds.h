// LayoutBounds: what a layout takes at the least, in seconds and in bytes, without a replay: what the search prunes by.
// No prediction is below its bound (docs/decisions.md#planning has the derivation in words; the test walks many
// layouts). Not thread-safe: it uses a memo.
//
// Note [Bounds of a step]
//   All pipeline ranks meet at the gradient norm, so a step takes as long as from one meeting to the next. In between a
//   rank r does its sums of squares, its updates, m microbatches of its chunks and its accumulations, one after the
//   other: their sum is a bound. The first microbatch reaches r after forward and transfer of the ranks before it, and
//   after r's last input gradient that of the ranks before it follows: with both, weight gradients aside, the other
//   bound. The order of computations, each as long as it takes at the least and without transfers, is a bound as well,
//   dearer and better: it has the bubble of every schedule. A naive schedule computes everything in one chain. A rank's
//   collectives run one after the other as well: their sum is a third bound. A rank holds its states, its data, and, at
//   some moment, as many chunks' activations as the schedule says. The next thing that changes their number is a
//   backward: it runs while all of them are there, with its segment recomputed or what its last layer's backward holds,
//   the gradient of the stream, and its layer's gathered weights and gradient. The ranks with embedding and head have
//   another moment each: the loss of a microbatch, and the embedding's part of forward and backward with the other
//   chunks held.
#pragma once

#include <vector>

#include "planner/peak_bytes.h"

namespace fivefold {

class LayoutBounds {
 public:
  // REQUIRES: both outlive it.
  LayoutBounds(PredictionMemo& memo, PeakBytes& peaks);

  // Of any schedule, segment and sharding with the configuration's precision, tp, sp, cp, pp and microbatch.
  double split_seconds(const ResolvedConfig& config);

  // What a pipeline rank keeps of microbatches on their way, whatever is sharded.
  struct RankHeld {
    RankStages stages;
    int64_t activations = 0;  // bytes
    int64_t working = 0;      // more of them while a layer's backward runs
    int layer = -1;           // the unit whose backward takes least beside them; -1: a chunk has none
    int64_t at_loss = 0;      // of the last rank, while the loss runs
    int64_t at_ends = 0;      // of the first rank, while the embedding runs
  };
  std::vector<RankHeld> held(const ResolvedConfig& config);
  // Of the fullest rank, without what is outside the tensors.
  int64_t bytes(const ResolvedConfig& config, const std::vector<RankHeld>& held);

  // What a pipeline rank computes in a step, whatever is sharded.
  struct RankWork {
    RankStages stages;
    double computing = 0;          // m microbatches
    double inputs = 0;             // of them without weight gradients that are computed apart
    double before = 0, after = 0;  // of the ranks before it: the first microbatch's way to it, the last one's back
    double transfers = 0;          // what it sends, m microbatches
    double exposed = 0;            // collectives inside computations that nothing hides
  };
  // Of the configuration but its sharding.
  std::vector<RankWork> work(const ResolvedConfig& config);
  // From the first forward to the last backward of the pipeline's ranks, in the order of the schedule, with transfers
  // that take no time. 0 without a pipeline.
  double makespan(const ResolvedConfig& config);
  // `makespan`: as above, or 0.
  double seconds(const ResolvedConfig& config, const std::vector<RankWork>& work, double makespan);
  // Of any sharding: seconds without states.
  double seconds_unsharded(const ResolvedConfig& config, const std::vector<RankWork>& work) const;

 private:
  // Bytes of the chunk's layers; `working`: more of them during the backward that needs most.
  struct ChunkBytes {
    int64_t kept = 0, working = 0;
    int layer = -1;
  };
  int64_t stream_bytes(const ResolvedConfig& config) const;
  int64_t loss_bytes(const ResolvedConfig& config, const RankStages& stages);
  ChunkBytes chunk_bytes(const ResolvedConfig& config, const StageUnits& chunk);
  const std::vector<int>& held_chunks(const ResolvedConfig& config);

  PredictionMemo& memo_;
  PeakBytes& peaks_;
  bool layers_alike_;
  std::map<std::tuple<ScheduleKind, int, int, int64_t>, std::vector<int>> held_;
};

}  // namespace fivefold
