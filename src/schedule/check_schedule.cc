// check_computations and check_schedule: what can be seen on one rank. What takes several ranks: check_transfers.cc.
#include <algorithm>

#include "schedule/check_transfers.h"
#include "schedule/schedule.h"

namespace fivefold {
namespace {

enum class Scope { kComputations, kAll };

// One pass over the list of one rank. What has been done with each (chunk, microbatch) is a set of bits.
class RankCheck {
 public:
  RankCheck(const Schedule& schedule, int rank, Scope scope)
      : schedule_(schedule),
        rank_(rank),
        scope_(scope),
        done_(static_cast<size_t>(schedule.chunks_per_rank) * static_cast<size_t>(schedule.num_microbatches), 0) {
    for (int chunk = 0; chunk < schedule.chunks_per_rank; ++chunk) {
      const int stage = virtual_stage(schedule, rank, chunk);
      const bool last = stage + 1 == schedule.num_virtual_stages();
      before_.push_back(stage == 0 ? kNowhere : local_chunk(stage - 1));
      after_.push_back(last ? kNowhere : local_chunk(stage + 1));
    }
  }

  Result<LiveChunks> run() {
    const std::vector<ScheduleAction>& actions = schedule_.ranks[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < actions.size(); ++i) {
      position_ = i;
      FIVEFOLD_TRY(visit(actions[i]));
      if (actions[i].joined && (!is_transfer(actions[i].op) || i == 0 || !is_transfer(actions[i - 1].op)))
        return error(actions[i], "is joined to no transfer before it");
    }
    position_ = actions.size();
    FIVEFOLD_TRY(find_missing());
    return peak_;
  }

 private:
  enum Bit : uint8_t { kF = 1, kB = 2, kSplit = 4, kW = 8, kRecvF = 16, kSendF = 32, kRecvB = 64, kSendB = 128 };
  static constexpr int kNowhere = -2, kElsewhere = -1;  // beside them: a chunk of this rank

  int local_chunk(int stage) const {
    const ChunkPlace place = place_of(schedule_, stage);
    return place.rank == rank_ ? place.chunk : kElsewhere;
  }

  Error error(const ScheduleAction& action, const std::string& problem, std::string hint = "") const {
    return {"schedule rank " + std::to_string(rank_) + " position " + std::to_string(position_),
            to_string(action) + " " + problem, std::move(hint)};
  }
  bool exists(int chunk, int microbatch) const {
    return chunk >= 0 && chunk < schedule_.chunks_per_rank && microbatch >= 0 &&
           microbatch < schedule_.num_microbatches;
  }
  uint8_t& done(int chunk, int microbatch) {
    return done_[static_cast<size_t>(chunk) * static_cast<size_t>(schedule_.num_microbatches) +
                 static_cast<size_t>(microbatch)];
  }

  Status visit(const ScheduleAction& action) {
    if (!exists(action.chunk, action.microbatch)) return error(action, "does not exist");
    switch (action.op) {
      case ScheduleOp::kForward:
        return forward(action, action.chunk, action.microbatch);
      case ScheduleOp::kBackward:
      case ScheduleOp::kBackwardInput:
        return backward(action, action.chunk, action.microbatch);
      case ScheduleOp::kBackwardWeight:
        return weight(action);
      case ScheduleOp::kOverlapped:
        // Both run at once, so the backward must not need this forward, nor the forward this backward. It never does.
        if (!exists(action.backward_chunk, action.backward_microbatch)) return error(action, "does not exist");
        FIVEFOLD_TRY(backward(action, action.backward_chunk, action.backward_microbatch));
        ++live_.activations;  // held until both have ended
        FIVEFOLD_TRY(forward(action, action.chunk, action.microbatch));
        --live_.activations;
        return Ok{};
      case ScheduleOp::kSendForward:
        return transfer(action, kSendF, kF, "its forward");
      case ScheduleOp::kRecvForward:
        return transfer(action, kRecvF, 0, "");
      case ScheduleOp::kSendBackward:
        return transfer(action, kSendB, kB, "its backward");
      case ScheduleOp::kRecvBackward:
        return transfer(action, kRecvB, 0, "");
    }
    FIVEFOLD_CHECK(false);
  }

  Status forward(const ScheduleAction& action, int chunk, int microbatch) {
    uint8_t& mine = done(chunk, microbatch);
    if (mine & kF) return error(action, "is there twice");
    const int before = before_[static_cast<size_t>(chunk)];
    if (before >= 0 && !(done(before, microbatch) & kF))
      return error(action, "comes before the forward of chunk " + std::to_string(before));
    if (before == kElsewhere && scope_ == Scope::kAll && !(mine & kRecvF))
      return error(action, "comes before its input is received");
    mine |= kF;
    ++live_.activations;
    note_peak();
    return Ok{};
  }

  Status backward(const ScheduleAction& action, int chunk, int microbatch) {
    uint8_t& mine = done(chunk, microbatch);
    if (!(mine & kF)) return error(action, "comes before its forward");
    if (mine & kB) return error(action, "is there twice");
    const int after = after_[static_cast<size_t>(chunk)];
    if (after >= 0 && !(done(after, microbatch) & kB))
      return error(action, "comes before the backward of chunk " + std::to_string(after));
    if (after == kElsewhere && scope_ == Scope::kAll && !(mine & kRecvB))
      return error(action, "comes before the gradient of its output is received");
    mine |= kB;
    --live_.activations;
    if (action.op == ScheduleOp::kBackwardInput) {
      mine |= kSplit;
      ++live_.weight_inputs;
      note_peak();
    }
    return Ok{};
  }

  Status weight(const ScheduleAction& action) {
    uint8_t& mine = done(action.chunk, action.microbatch);
    if ((mine & kB) && !(mine & kSplit)) return error(action, "follows a BW, which has the weight gradient in it");
    if (!(mine & kB)) return error(action, "comes before its input gradient");
    if (mine & kW) return error(action, "is there twice");
    mine |= kW;
    --live_.weight_inputs;
    return Ok{};
  }

  Status transfer(const ScheduleAction& action, Bit bit, uint8_t needed, const char* what) {
    if (scope_ == Scope::kComputations) return error(action, "is a transfer in a schedule of computations only");
    const int peer = peer_of(schedule_, rank_, action.op, action.chunk);
    if (peer < 0) return error(action, "has no other end: the model ends there, or goes on on the same rank");
    if (peer != action.peer) return error(action, "has the wrong peer", "use rank " + std::to_string(peer));
    uint8_t& mine = done(action.chunk, action.microbatch);
    if (mine & bit) return error(action, "is there twice");
    if (needed != 0 && !(mine & needed)) return error(action, std::string("comes before ") + what);
    mine |= bit;
    return Ok{};
  }

  Status find_missing() {
    for (int chunk = 0; chunk < schedule_.chunks_per_rank; ++chunk) {
      const int after = after_[static_cast<size_t>(chunk)], before = before_[static_cast<size_t>(chunk)];
      for (int microbatch = 0; microbatch < schedule_.num_microbatches; ++microbatch) {
        const uint8_t mine = done(chunk, microbatch);
        const auto missing = [&](ScheduleOp op, int peer = -1) {
          return error({.op = op, .chunk = chunk, .microbatch = microbatch, .peer = peer}, "is missing");
        };
        const auto missing_transfer = [&](ScheduleOp op) { return missing(op, peer_of(schedule_, rank_, op, chunk)); };
        if (!(mine & kF)) return missing(ScheduleOp::kForward);
        if (!(mine & kB)) return missing(ScheduleOp::kBackward);
        if ((mine & kSplit) && !(mine & kW)) return missing(ScheduleOp::kBackwardWeight);
        if (scope_ == Scope::kComputations) continue;
        if (after == kElsewhere && !(mine & kSendF)) return missing_transfer(ScheduleOp::kSendForward);
        if (before == kElsewhere && !(mine & kSendB)) return missing_transfer(ScheduleOp::kSendBackward);
      }
    }
    return Ok{};
  }

  void note_peak() {
    peak_.activations = std::max(peak_.activations, live_.activations);
    peak_.weight_inputs = std::max(peak_.weight_inputs, live_.weight_inputs);
    peak_.together = std::max(peak_.together, live_.activations + live_.weight_inputs);
  }

  const Schedule& schedule_;
  const int rank_;
  const Scope scope_;
  std::vector<uint8_t> done_;
  std::vector<int> before_, after_;  // per chunk: the chunk of this rank that is the virtual stage before, after
  size_t position_ = 0;
  LiveChunks live_, peak_;
};

Result<std::vector<LiveChunks>> check_ranks(const Schedule& schedule, Scope scope) {
  if (schedule.num_stages < 1 || schedule.chunks_per_rank < 1 || schedule.num_microbatches < 1)
    return Error{"schedule", "ranks, chunks and microbatches must be at least 1", ""};
  if (schedule.ranks.size() != static_cast<size_t>(schedule.num_stages))
    return Error{"schedule",
                 std::to_string(schedule.num_stages) + " ranks have " + std::to_string(schedule.ranks.size()) +
                     " lists of actions",
                 ""};
  std::vector<LiveChunks> peaks;
  for (int rank = 0; rank < schedule.num_stages; ++rank) {
    FIVEFOLD_ASSIGN(const LiveChunks peak, RankCheck(schedule, rank, scope).run());
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace

Result<std::vector<LiveChunks>> check_computations(const Schedule& schedule) {
  return check_ranks(schedule, Scope::kComputations);
}

Result<std::vector<LiveChunks>> check_schedule(const Schedule& schedule) {
  FIVEFOLD_ASSIGN(std::vector<LiveChunks> peaks, check_ranks(schedule, Scope::kAll));
  FIVEFOLD_TRY(check_transfers(schedule));
  return peaks;
}

}  // namespace fivefold
