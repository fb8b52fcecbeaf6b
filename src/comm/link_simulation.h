// LinkSimulation: lets the calls of a `local` world take the time that they would take on a cluster. It holds the
// simulated links, starts a transfer for each collective and send, and lets ranks sleep until theirs is complete; it
// knows nothing of data. What a call costs is collective_cost() of spec/network.h; how links are shared is Note [Shared
// links] in comm/link_flows.h. Thread-safe. Internal to comm/local_*.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/link_flows.h"
#include "spec/enums.h"
#include "spec/network.h"

namespace fivefold {

class LinkSimulation {
 public:
  // REQUIRES: check_num_ranks() finds nothing.
  LinkSimulation(NetworkSpec network, int num_ranks);

  // Starts now what the members, of which each calls this once with the same arguments, do together; the first call
  // counts. `group` and `sequence` tell collectives apart. `bytes`: as in collective_cost().
  int64_t start_collective(const void* group, int64_t sequence, CollectiveKind kind, const std::vector<int>& members,
                           double bytes);
  // Starts a send of world rank `from` to `to` now.
  int64_t start_send(int from, int to, double bytes);

  // Sleeps until the transfer is complete; false: interrupted before that.
  bool wait(int64_t transfer);
  // Wakes all who wait, now and in future: the world is aborted.
  void interrupt();

  // Seconds since a transfer was under way; 0: one is, infinity: none ever was.
  double idle_seconds();

 private:
  using Clock = std::chrono::steady_clock;

  double now_s() const { return std::chrono::duration<double>(Clock::now() - epoch_).count(); }
  // Of the rank's own link in its node, or of its port; `in`: towards it. Links of both directions are apart.
  enum class Direction : uint8_t { kOut, kIn };
  int node_link(int rank, Direction direction) const;
  int port(int rank, Direction direction) const;
  std::vector<double> bandwidths() const;
  std::vector<LinkStage> stages(CollectiveKind kind, const std::vector<int>& members, const GroupShape& shape,
                                bool across_nodes) const;
  int64_t start(const CollectiveCost& cost, std::vector<LinkStage> stages);

  const NetworkSpec network_;
  const int num_ranks_;
  const Clock::time_point epoch_ = Clock::now();
  std::mutex mutex_;  // of the following
  std::condition_variable interrupted_now_;
  bool interrupted_ = false;
  LinkFlows flows_;
  // Collectives that not all members have asked for yet: number of the transfer, members that have.
  std::map<std::pair<const void*, int64_t>, std::pair<int64_t, size_t>> starting_;
};

}  // namespace fivefold
