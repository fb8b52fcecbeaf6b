// DualPipeV (DeepSeek-AI, github.com/deepseek-ai/DualPipe): chunks in a V, the forward of one chunk overlapped with the
// backward of the other, so that the communication inside a layer hides behind the computation of the other direction.
#include <deque>

#include "schedule/families.h"

namespace fivefold {
namespace {

class DualPipeRank {
 public:
  DualPipeRank(std::vector<ScheduleAction>& actions, int p, int rank, int m)
      : list_(actions), p_(p), rank_(rank), m_(m) {}

  void run() {
    const int to_turn = p_ - rank_ - 1;  // ranks between this one and the turn of the V
    for (int i = 0; i < 2 * to_turn; ++i) forward(0);
    for (int i = 0; i <= rank_; ++i) {
      forward(0);
      forward(1);
    }
    for (int i = 0; i < to_turn; ++i) {
      split_backward(1);
      weight();
      forward(1);
    }
    for (int i = 0; i < m_ - 2 * p_ + rank_ + 1; ++i) {
      // At the turn the first pair would wait for its own forward half: apart, the gradient leaves sooner.
      if (i == 0 && to_turn == 0) {
        forward(0);
        backward(1);
      } else {
        overlapped(0, 1);
      }
      overlapped(1, 0);
    }
    for (int i = 0; i < to_turn; ++i) {
      backward(1);
      overlapped(1, 0);
    }
    // The last rank_ + 1 microbatches of both chunks: the later half puts its weight gradients off.
    for (int i = 0; i < 2 * (rank_ + 1); ++i) {
      const int chunk = 1 - i % 2;
      if (i > rank_)
        split_backward(chunk);
      else
        backward(chunk);
    }
    for (int i = 0; i < to_turn; ++i) {
      weight();
      split_backward(0);
    }
    while (!waiting_.empty()) weight();
  }

 private:
  void forward(int chunk) { list_.f(chunk, forwards_[chunk]++); }
  void backward(int chunk) { list_.bw(chunk, backwards_[chunk]++); }
  void split_backward(int chunk) {
    waiting_.push_back({chunk, backwards_[chunk]});
    list_.b(chunk, backwards_[chunk]++);
  }
  void overlapped(int chunk, int backward_chunk) {
    list_.fb(chunk, forwards_[chunk]++, backward_chunk, backwards_[backward_chunk]++);
  }
  void weight() {
    FIVEFOLD_CHECK(!waiting_.empty());
    list_.w(waiting_.front().chunk, waiting_.front().microbatch);
    waiting_.pop_front();
  }

  struct Waiting {
    int chunk = 0, microbatch = 0;
  };
  ComputationList list_;
  const int p_, rank_, m_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::deque<Waiting> waiting_;  // weight gradients put off
};

}  // namespace

Schedule dualpipev_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 2, m, Placement::kV);
  for (int rank = 0; rank < p; ++rank) DualPipeRank(schedule.ranks[static_cast<size_t>(rank)], p, rank, m).run();
  return schedule;
}

}  // namespace fivefold
