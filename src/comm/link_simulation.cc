#include "comm/link_simulation.h"

#include <algorithm>
#include <limits>

#include "base/integer.h"

namespace fivefold {

// Links, in this order: each rank's out of and into its own, in its node; each port's out of and into its node.
LinkSimulation::LinkSimulation(NetworkSpec network, int num_ranks)
    : network_(std::move(network)), num_ranks_(num_ranks), flows_(bandwidths()) {
  FIVEFOLD_CHECK(check_num_ranks(network_, num_ranks).ok());
}

int LinkSimulation::node_link(int rank, Direction direction) const {
  return 2 * rank + (direction == Direction::kIn ? 1 : 0);
}

int LinkSimulation::port(int rank, Direction direction) const {
  const int64_t node = div_floor(rank, network_.devices_per_node), device = rank % network_.devices_per_node;
  const int64_t port = node * network_.ports + div_floor(device, div_exact(network_.devices_per_node, network_.ports));
  return static_cast<int>(2 * (num_ranks_ + port)) + (direction == Direction::kIn ? 1 : 0);
}

std::vector<double> LinkSimulation::bandwidths() const {
  const auto reached = [](const LinkSpec& link, double devices) {
    if (!link.bytes_per_s.known()) return std::numeric_limits<double>::infinity();
    return kLinkOfBandwidth * link.bytes_per_s.value * devices;
  };
  std::vector<double> links(static_cast<size_t>(2 * num_ranks_), reached(network_.node_link, 1));
  const int num_links = port(num_ranks_ - 1, Direction::kIn) + 1;
  const auto devices = static_cast<double>(div_exact(network_.devices_per_node, network_.ports));
  links.resize(static_cast<size_t>(num_links), reached(network_.network, devices));
  return links;
}

std::vector<LinkStage> LinkSimulation::stages(CollectiveKind kind, const std::vector<int>& members,
                                              const GroupShape& shape, bool across_nodes) const {
  std::vector<LinkStage> stages;
  const bool through_node = shape.ranks_per_node > 1 && kind != CollectiveKind::kAllToAll;
  std::map<int64_t, std::pair<std::map<int, double>, std::map<int, double>>> ports;  // of each node: out, in
  for (const int rank : members) {
    if (!across_nodes || through_node) {
      stages.push_back({{.link = node_link(rank, Direction::kOut)}});
      stages.push_back({{.link = node_link(rank, Direction::kIn)}});
    }
    if (!across_nodes) continue;
    auto& [out, in] = ports[div_floor(rank, network_.devices_per_node)];
    out[port(rank, Direction::kOut)] += 1;
    in[port(rank, Direction::kIn)] += 1;
  }
  for (const auto& [node, directions] : ports)
    for (const auto& uses : {directions.first, directions.second}) {
      LinkStage& stage = stages.emplace_back();
      for (const auto& [link, weight] : uses) stage.push_back({link, weight});
    }
  return stages;
}

int64_t LinkSimulation::start(const CollectiveCost& cost, std::vector<LinkStage> stages) {
  return flows_.start(now_s(), cost.latency_s, cost.bytes, std::move(stages));
}

int64_t LinkSimulation::start_collective(const void* group, int64_t sequence, CollectiveKind kind,
                                         const std::vector<int>& members, double bytes) {
  const std::lock_guard lock(mutex_);
  auto [entry, first] = starting_.try_emplace({group, sequence});
  auto& [transfer, num_members] = entry->second;
  if (first) {
    const GroupShape shape = group_shape(network_, members);
    const CollectiveCost cost = collective_cost(network_, kind, shape, bytes);
    transfer = start(cost, stages(kind, members, shape, cost.across_nodes));
  }
  const int64_t number = transfer;
  if (++num_members == members.size()) starting_.erase(entry);
  return number;
}

int64_t LinkSimulation::start_send(int from, int to, double bytes) {
  const GroupShape shape = group_shape(network_, {from, to});
  const CollectiveCost cost = collective_cost(network_, CollectiveKind::kSend, shape, bytes);
  std::vector<LinkStage> stages = {
      {{.link = cost.across_nodes ? port(from, Direction::kOut) : node_link(from, Direction::kOut)}},
      {{.link = cost.across_nodes ? port(to, Direction::kIn) : node_link(to, Direction::kIn)}}};
  const std::lock_guard lock(mutex_);
  return start(cost, std::move(stages));
}

bool LinkSimulation::wait(int64_t transfer) {
  std::unique_lock lock(mutex_);
  while (true) {
    flows_.advance(now_s());
    if (flows_.complete(transfer)) return true;
    if (interrupted_) return false;
    // What starts meanwhile can only delay the transfer, so nobody has to wake this rank earlier.
    const std::chrono::duration<double> end(flows_.foreseen_end(transfer));
    interrupted_now_.wait_until(lock, epoch_ + std::chrono::ceil<Clock::duration>(end));
  }
}

void LinkSimulation::interrupt() {
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
  }
  interrupted_now_.notify_all();
}

double LinkSimulation::idle_seconds() {
  const std::lock_guard lock(mutex_);
  const double now = now_s();
  flows_.advance(now);
  if (flows_.num_active() > 0) return 0;
  return flows_.last_end() > 0 ? now - flows_.last_end() : std::numeric_limits<double>::infinity();
}

}  // namespace fivefold
