// V-half and V-min of "Pipeline Parallelism with Controllable Memory" (Qi et al. 2024): chunks in a V, and a building
// block that repeats every 6 units and holds about a half, a third, of the activations of 1F1B.
//
// The block gives, for one microbatch, the time of its two forwards and two backwards on each rank when each takes one
// unit; of the 6 units the remaining two are for W. Laid out without change it leaves gaps at both ends of a step. Here
// the ranks run in unit time and take what is next in the order of the blocks; a rank that would wait takes, in this
// order: a gradient that is there out of turn, a weight gradient, a forward of the first chunk for which there is room
// beside the forwards that the microbatches under way still need. Against the public implementation
// (sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py; p 1-16, 25 values of m up to 64) a step is at most 3 units
// (V-min) and 4 units (V-half) longer, mostly as long, and up to 17 shorter when m is near p.
#include <array>
#include <deque>

#include "schedule/families.h"

namespace fivefold {
namespace {

// In the order of a microbatch: F of chunk 0, F of chunk 1, B of chunk 1, B of chunk 0.
constexpr int kNumPasses = 4;
constexpr int chunk_of(int pass) { return pass == 1 || pass == 2 ? 1 : 0; }
constexpr bool is_forward(int pass) { return pass < 2; }
using Block = std::array<int, kNumPasses>;  // unit at which each pass of microbatch 0 starts
constexpr int kPeriod = 6;

class UnitTime {
 public:
  UnitTime(int p, int m, std::vector<Block> blocks, int most_chunks)
      : p_(p),
        m_(m),
        most_chunks_(most_chunks),
        blocks_(std::move(blocks)),
        ranks_(static_cast<size_t>(p)),
        done_(static_cast<size_t>(kNumPasses * p), 0),
        schedule_(empty_schedule(p, 2, m, Placement::kV)) {}

  Schedule run() {
    for (int left = 6 * p_ * m_; left > 0;) {
      std::vector<size_t> ended;  // passes that ended in this unit: others see them in the next
      int started = 0;
      for (int rank = 0; rank < p_; ++rank) started += step(rank, ended);
      for (const size_t pass : ended) ++done_[pass];
      FIVEFOLD_CHECK(started > 0);
      left -= started;
    }
    return std::move(schedule_);
  }

 private:
  struct Rank {
    std::array<int, kNumPasses> next{};  // microbatch
    std::deque<ScheduleAction> waiting;  // W
    int live = 0;                        // chunks between F and W
  };

  size_t index(int rank, int pass) const {
    return static_cast<size_t>(pass) * static_cast<size_t>(p_) + static_cast<size_t>(rank);
  }

  // What the next microbatch of this pass needs has ended. F of chunk 0 and B of chunk 1 go towards the turn or come
  // from the loss on rank 0; the other two run the other way.
  bool ready(int rank, int pass) const {
    const int microbatch = ranks_[static_cast<size_t>(rank)].next[static_cast<size_t>(pass)];
    if (microbatch == m_) return false;
    const bool down = pass == 0 || pass == 2;
    const int from = down ? rank - 1 : rank + 1;
    if (from >= 0 && from < p_) return done_[index(from, pass)] > microbatch;
    return pass == 0 || done_[index(rank, pass - 1)] > microbatch;
  }
  bool fits(const Rank& rank, int pass) const { return !is_forward(pass) || rank.live < most_chunks_; }

  // The pass whose turn it is by the order of the blocks; kNumPasses when all are done.
  int in_turn(int rank) const {
    int turn = kNumPasses, turn_at = 0;
    for (int pass = 0; pass < kNumPasses; ++pass) {
      const int microbatch = ranks_[static_cast<size_t>(rank)].next[static_cast<size_t>(pass)];
      const int at = blocks_[static_cast<size_t>(rank)][static_cast<size_t>(pass)] + kPeriod * microbatch;
      if (microbatch < m_ && (turn == kNumPasses || at < turn_at)) {
        turn = pass;
        turn_at = at;
      }
    }
    return turn;
  }

  // Returns the number of computations started: 0 or 1.
  int step(int rank, std::vector<size_t>& ended) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    const int turn = in_turn(rank);
    if (turn < kNumPasses && ready(rank, turn) && fits(state, turn)) return start(rank, turn, ended);
    for (const int pass : {2, 3})
      if (ready(rank, pass)) return start(rank, pass, ended);
    if (!state.waiting.empty()) {
      schedule_.ranks[static_cast<size_t>(rank)].push_back(state.waiting.front());
      state.waiting.pop_front();
      --state.live;
      return 1;
    }
    // Room for this forward, for its second one, and for those of the microbatches before it.
    const int second_forwards_due = state.next[0] - state.next[1];
    if (ready(rank, 0) && state.live + second_forwards_due + 2 <= most_chunks_) return start(rank, 0, ended);
    return 0;
  }

  int start(int rank, int pass, std::vector<size_t>& ended) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    ComputationList list(schedule_.ranks[static_cast<size_t>(rank)]);
    const int chunk = chunk_of(pass), microbatch = state.next[static_cast<size_t>(pass)]++;
    if (is_forward(pass)) {
      list.f(chunk, microbatch);
      ++state.live;
    } else {
      list.b(chunk, microbatch);
      state.waiting.push_back({ScheduleOp::kBackwardWeight, chunk, microbatch});
    }
    ended.push_back(index(rank, pass));
    return 1;
  }

  const int p_, m_, most_chunks_;
  const std::vector<Block> blocks_;  // per rank
  std::vector<Rank> ranks_;
  std::vector<int> done_;  // per pass and rank: microbatches
  Schedule schedule_;
};

}  // namespace

Schedule v_half_computations(int p, int m) {
  std::vector<Block> blocks;
  const int gap = p % 2 == 0 ? 3 : 0;  // keeps the four passes of a rank at different units modulo 6
  for (int rank = 0; rank < p; ++rank)
    blocks.push_back({2 * rank, 3 * p - rank - 2, 3 * p + gap + 2 * rank - 1, 6 * p + gap - rank - 2});
  return UnitTime(p, m, std::move(blocks), (p + 2) / 2 * 2).run();
}

Schedule v_min_computations(int p, int m) {
  std::vector<Block> blocks;
  const int gap = p % 3 == 0 ? 2 : 0;
  for (int rank = 0; rank < p; ++rank)
    blocks.push_back({rank, 2 * p - rank - 1, 2 * p + gap + rank, 4 * p + gap - rank - 1});
  return UnitTime(p, m, std::move(blocks), (p + 4) / 3 * 2).run();
}

}  // namespace fivefold
