#include "schedule/replay.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "schedule/transfers.h"

namespace fivefold {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

enum class Hand { kByTransfers, kAtOnce };  // how a value comes to another rank

// Runs each rank as far as what is known allows, and wakes the ranks that wait for what it produced. Times do not
// depend on the order in which ranks are taken: each is a maximum over times known before.
class Replayer {
 public:
  Replayer(const Schedule& schedule, const std::vector<StageTimes>& times, double transfer_s, Hand hand)
      : schedule_(schedule),
        times_(times),
        transfer_s_(transfer_s),
        hand_(hand),
        ranks_(schedule.ranks.size()),
        ready_s_(num_messages(schedule), kUnknown),
        issued_(hand == Hand::kByTransfers ? num_messages(schedule) : 0) {
    FIVEFOLD_CHECK(times.size() == static_cast<size_t>(schedule.num_virtual_stages()));
    const auto m = static_cast<size_t>(schedule.num_microbatches);
    std::fill_n(ready_s_.begin(), m, 0.0);   // inputs of the model
    std::fill_n(ready_s_.rbegin(), m, 0.0);  // the loss needs nothing but its forward
    for (const auto& actions : schedule.ranks) out_.actions.emplace_back(actions.size());
    out_.ranks.resize(schedule.ranks.size());
  }

  Result<Replay> run() {
    for (int rank = schedule_.num_stages - 1; rank >= 0; --rank) wake(rank);
    while (!awake_.empty() || !complete_.empty()) {
      if (!complete_.empty()) {
        const int rank = complete_.back();
        complete_.pop_back();
        finish(rank);
        continue;
      }
      const int rank = awake_.back();
      awake_.pop_back();
      ranks_[static_cast<size_t>(rank)].awake = false;
      advance(rank);
    }
    for (int rank = 0; rank < schedule_.num_stages; ++rank) {
      const size_t position = ranks_[static_cast<size_t>(rank)].position;
      const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
      if (position < actions.size())
        return Error{"schedule rank " + std::to_string(rank) + " position " + std::to_string(position),
                     to_string(actions[position]) + " waits for ever for what another rank should compute before", ""};
      RankTime& time = out_.ranks[static_cast<size_t>(rank)];
      out_.makespan_s = std::max(out_.makespan_s, time.last_s);
    }
    return std::move(out_);
  }

 private:
  struct Batch {
    size_t begin = 0, end = 0;  // positions
    double issued_s = 0, end_s = 0;
    int unmatched = 0;
  };
  struct RankState {
    size_t position = 0;
    double free_s = 0;            // end of the last computation
    std::deque<Batch> batches;    // issued and not complete
    double transfers_free_s = 0;  // end of the last complete batch
    bool awake = false;
  };
  struct Issued {  // the first end of a message that has been issued at the head of its rank's batches
    int rank = -1;
    size_t position = 0;
  };

  void wake(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (state.awake) return;
    state.awake = true;
    awake_.push_back(rank);
  }
  size_t message(bool forward, int stage, int microbatch) const {
    const int row = (forward ? 0 : schedule_.num_virtual_stages()) + stage;
    return static_cast<size_t>(row) * static_cast<size_t>(schedule_.num_microbatches) + static_cast<size_t>(microbatch);
  }

  // When the input of a forward, or the gradient that a backward starts from, is on its rank.
  double input_s(int rank, bool forward, int chunk, int microbatch) const {
    return ready_s_[message(forward, virtual_stage(schedule_, rank, chunk), microbatch)];
  }
  void produce(int rank, bool forward, int chunk, int microbatch, double end_s) {
    const int stage = virtual_stage(schedule_, rank, chunk) + (forward ? 1 : -1);
    if (stage < 0 || stage == schedule_.num_virtual_stages()) return;
    const int receiver = place_of(schedule_, stage).rank;
    if (receiver != rank && hand_ == Hand::kByTransfers) return;
    ready_s_[message(forward, stage, microbatch)] = receiver == rank ? end_s : end_s + transfer_s_;
    if (receiver != rank) wake(receiver);
  }

  void advance(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
    while (state.position < actions.size()) {
      if (is_transfer(actions[state.position].op)) {
        issue(rank);
      } else if (!compute(rank, actions[state.position])) {
        return;
      }
    }
  }

  bool compute(int rank, const ScheduleAction& action) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const StageTimes& time = times_[static_cast<size_t>(virtual_stage(schedule_, rank, action.chunk))];
    const bool overlapped = action.op == ScheduleOp::kOverlapped;
    const bool forward = action.op == ScheduleOp::kForward || overlapped;
    const bool backward = action.op != ScheduleOp::kForward && action.op != ScheduleOp::kBackwardWeight;
    const int back_chunk = overlapped ? action.backward_chunk : action.chunk;
    const int back_microbatch = overlapped ? action.backward_microbatch : action.microbatch;
    double start_s = state.free_s;
    if (forward) start_s = std::max(start_s, input_s(rank, true, action.chunk, action.microbatch));
    if (backward) start_s = std::max(start_s, input_s(rank, false, back_chunk, back_microbatch));
    if (start_s == kUnknown) return false;
    double duration_s = 0;
    switch (action.op) {
      case ScheduleOp::kForward:
        duration_s = time.forward_s;
        break;
      case ScheduleOp::kBackward:
        duration_s = time.backward_s();
        break;
      case ScheduleOp::kBackwardInput:
        duration_s = time.backward_input_s;
        break;
      case ScheduleOp::kBackwardWeight:
        duration_s = time.backward_weight_s;
        break;
      default:
        duration_s = time.overlapped_s;
    }
    const double end_s = start_s + duration_s;
    RankTime& total = out_.ranks[static_cast<size_t>(rank)];
    if (total.busy_s == 0) total.first_s = start_s;
    total.busy_s += duration_s;
    total.last_s = state.free_s = end_s;
    out_.actions[static_cast<size_t>(rank)][state.position++] = {start_s, end_s};
    if (forward) produce(rank, true, action.chunk, action.microbatch, end_s);
    if (backward) produce(rank, false, back_chunk, back_microbatch, end_s);
    return true;
  }

  // Takes the batch at the rank's position.
  void issue(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
    Batch batch{.begin = state.position, .end = state.position + 1, .issued_s = state.free_s};
    while (batch.end < actions.size() && actions[batch.end].joined) ++batch.end;
    batch.unmatched = static_cast<int>(batch.end - batch.begin);
    state.position = batch.end;
    state.batches.push_back(batch);
    if (state.batches.size() == 1) post(rank);
  }

  // The rank's first open batch has come to the head: it meets the other ends that are at the head of theirs.
  void post(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const Batch batch = state.batches.front();
    for (size_t position = batch.begin; position < batch.end; ++position) {
      const ScheduleAction& action = schedule_.ranks[static_cast<size_t>(rank)][position];
      Issued& other = issued_[message_index(schedule_, rank, action)];
      if (other.rank < 0) {
        other = {rank, position};
        continue;
      }
      const double start_s = std::max(start_of_head(rank), start_of_head(other.rank));
      complete(rank, position, start_s);
      complete(other.rank, other.position, start_s);
    }
  }
  double start_of_head(int rank) const {
    const RankState& state = ranks_[static_cast<size_t>(rank)];
    return std::max(state.batches.front().issued_s, state.transfers_free_s);
  }

  void complete(int rank, size_t position, double start_s) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    Batch& batch = state.batches.front();
    out_.actions[static_cast<size_t>(rank)][position] = {start_s, start_s + transfer_s_};
    batch.end_s = std::max(batch.end_s, start_s + transfer_s_);
    if (--batch.unmatched == 0) complete_.push_back(rank);
  }

  // The rank's first open batch is complete: what it received can be used, and the next one comes to the head.
  void finish(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const Batch batch = state.batches.front();
    state.batches.pop_front();
    state.transfers_free_s = batch.end_s;
    for (size_t position = batch.begin; position < batch.end; ++position) {
      const ScheduleAction& action = schedule_.ranks[static_cast<size_t>(rank)][position];
      if (!is_send(action.op)) ready_s_[message_index(schedule_, rank, action)] = batch.end_s;
    }
    wake(rank);
    if (!state.batches.empty()) post(rank);
  }

  const Schedule& schedule_;
  const std::vector<StageTimes>& times_;
  const double transfer_s_;
  const Hand hand_;
  std::vector<RankState> ranks_;
  std::vector<double> ready_s_;  // per message: when it is where it is needed
  std::vector<Issued> issued_;   // per message
  std::vector<int> awake_, complete_;
  Replay out_;
};

}  // namespace

Replay replay(const Schedule& schedule, const std::vector<StageTimes>& times, double transfer_s) {
  return Replayer(schedule, times, transfer_s, Hand::kByTransfers).run().value();
}

Replay replay(const Schedule& schedule, const StageTimes& times, double transfer_s) {
  return replay(schedule, std::vector(static_cast<size_t>(schedule.num_virtual_stages()), times), transfer_s);
}

Result<Replay> replay_computations(const Schedule& schedule, const std::vector<StageTimes>& times, double transfer_s) {
  return Replayer(schedule, times, transfer_s, Hand::kAtOnce).run();
}

std::vector<LivePoint> live_over_time(const Schedule& schedule, const Replay& replay, int rank) {
  const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
  std::vector<LivePoint> points;
  LivePoint live;
  const auto note = [&](double time_s) {
    live.time_s = time_s;
    points.push_back(live);
  };
  for (size_t position = 0; position < actions.size(); ++position) {
    const ScheduleOp op = actions[position].op;
    if (is_transfer(op)) continue;
    const ActionTime time = replay.actions[static_cast<size_t>(rank)][position];
    if (op == ScheduleOp::kForward || op == ScheduleOp::kOverlapped) {
      ++live.activations;
      note(time.start_s);
    }
    if (op == ScheduleOp::kForward) continue;
    if (op == ScheduleOp::kBackwardInput) ++live.weight_inputs;
    if (op == ScheduleOp::kBackwardWeight)
      --live.weight_inputs;
    else
      --live.activations;
    note(time.end_s);
  }
  return points;
}

}  // namespace fivefold
