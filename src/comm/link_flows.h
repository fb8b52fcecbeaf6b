// LinkFlows: transfers that are under way on a network, and when each will be complete. A model without clock and
// threads: the caller says what time it is. Not thread-safe.
//
// Note [Shared links]. A transfer first waits for its latency, then moves its bytes. It has stages, which are in use at
// the same time: for instance the ports out of a node, and those into another. It goes at the rate of its slowest
// stage; a stage's rate is the sum over its links. A link divides its bandwidth among the transfers that use it at a
// moment in proportion to their weights, in general how many ranks each has on it. So a transfer can only get slower by
// what starts after it, and ends no earlier than was last foreseen. Derivation:
// docs/communication.md#a-simulated-network.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace fivefold {

struct LinkUse {
  int link = 0;
  double weight = 1;
};
using LinkStage = std::vector<LinkUse>;

class LinkFlows {
 public:
  // Bandwidth of each link, bytes/s. Infinity: it takes no time.
  explicit LinkFlows(std::vector<double> bytes_per_s);

  // Starts a transfer at `now_s` and returns its number. Without bytes it ends with its latency. REQUIRES: `now_s` not
  // before the last time given; a stage, with a link, if there are bytes.
  int64_t start(double now_s, double latency_s, double bytes, std::vector<LinkStage> stages);
  // Lets the transfers go on until `now_s`.
  void advance(double now_s);

  bool complete(int64_t transfer) const;
  // When it will be complete if nothing else starts; the present, if it is.
  double foreseen_end(int64_t transfer) const;
  // Transfers under way.
  int num_active() const { return static_cast<int>(active_.size()); }
  // When the last transfer so far was complete; 0: none was.
  double last_end() const { return last_end_s_; }

 private:
  struct Transfer {
    int64_t number;
    double begin_s;  // end of its latency
    double bytes;    // that are left
    std::shared_ptr<const std::vector<LinkStage>> stages;
  };

  // Goes on to the next end of a latency or of a transfer, but not beyond `limit_s`; false: to there.
  bool step(double limit_s);
  double rate(const Transfer& transfer, const std::vector<double>& load) const;

  std::vector<double> bytes_per_s_;
  std::vector<Transfer> active_;
  double now_s_ = 0;
  double last_end_s_ = 0;
  int64_t num_started_ = 0;
};

}  // namespace fivefold
