#include "spec/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/integer.h"

namespace fivefold {
namespace {

// Measured seconds: those of the nearest number of ranks, linear between sizes, beyond the last by its rate.
struct MeasuredSeconds {
  double smallest = 0;  // of the smallest size
  double seconds = 0;   // 0: nothing was measured
};
MeasuredSeconds measured_seconds(const LinkSpec& link, CollectiveKind kind, int ranks, double bytes) {
  const auto distance = [ranks](const CollectivePoint& point) {
    return std::abs(std::log2(static_cast<double>(point.ranks) / ranks));
  };
  double nearest = std::numeric_limits<double>::infinity();
  for (const CollectivePoint& point : link.collectives.points)
    if (point.kind == kind) nearest = std::min(nearest, distance(point));
  std::vector<CollectivePoint> points;
  for (const CollectivePoint& point : link.collectives.points)
    if (point.kind == kind && distance(point) == nearest) points.push_back(point);
  if (points.empty()) return {};
  std::sort(points.begin(), points.end(),
            [](const CollectivePoint& a, const CollectivePoint& b) { return a.bytes < b.bytes; });
  const auto above = std::find_if(points.begin(), points.end(), [bytes](const CollectivePoint& point) {
    return static_cast<double>(point.bytes) >= bytes;
  });
  const double smallest = points.front().seconds;
  if (above == points.begin()) return {smallest, smallest};
  if (above == points.end())
    return {smallest, points.back().seconds * bytes / static_cast<double>(points.back().bytes)};
  const CollectivePoint& low = *(above - 1);
  const double share = (bytes - static_cast<double>(low.bytes)) / static_cast<double>(above->bytes - low.bytes);
  return {smallest, low.seconds + share * (above->seconds - low.seconds)};
}

double depth(int ranks) { return std::ceil(std::log2(ranks)); }

// All-reduces and broadcasts take trees, whose depth grows with the logarithm, the rest rings of n - 1 steps.
double latency_seconds(const LinkSpec& link, CollectiveKind kind, int ranks) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBarrier:
      return 2 * link.latency_s.value * depth(ranks);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      if (link.ring_step_s.known()) return link.ring_step_s.value * (ranks - 1);
      return link.latency_s.value * depth(ranks);
    case CollectiveKind::kBroadcast:
      return link.latency_s.value * depth(ranks);
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return link.latency_s.value;
  }
  FIVEFOLD_CHECK(false);
}

// Bytes on a member's link, or out of a node.
double bytes_on_links(CollectiveKind kind, const GroupShape& shape, bool across_nodes, double bytes) {
  const double n = shape.ranks, k = shape.ranks_per_node;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * bytes * (n - 1) / n;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return bytes * (n - 1) / n;
    case CollectiveKind::kAllToAll:
      // Each of a node's k members sends what the n - k others are to have; what stays in the node is hidden by it.
      return across_nodes ? k * bytes * (n - k) / n : bytes * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return bytes;
    case CollectiveKind::kBarrier:
      return 0;
  }
  FIVEFOLD_CHECK(false);
}

// Of the published rate, what a large collective reaches.
double reached_bytes_per_s(const LinkSpec& link) {
  return (link.reached_share.known() ? link.reached_share.value : kLinkOfBandwidth) * link.bytes_per_s.value;
}

// Bytes/s at which the bytes of bytes_on_links() go when each device has its share; 0: unknown.
double share_of_links(const NetworkSpec& network, CollectiveKind kind, const GroupShape& shape, bool across_nodes) {
  const double in_node = reached_bytes_per_s(network.node_link);
  if (!across_nodes) return in_node;
  const double per_device = reached_bytes_per_s(network.network);
  if (kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv) return per_device;
  // A node's members have a share each. A ring also runs through the node, from one member to the next.
  const double ports = per_device * shape.ranks_per_node;
  const bool through_node = shape.ranks_per_node > 1 && kind != CollectiveKind::kAllToAll && in_node > 0;
  return through_node ? std::min(ports, in_node) : ports;
}

}  // namespace

NetworkSpec network_of(const HardwareSpec& hardware) {
  return {.name = hardware.name,
          .devices_per_node = hardware.devices_per_node,
          .ports = hardware.network_ports > 0 ? hardware.network_ports : hardware.devices_per_node,
          .node_link = hardware.node_link,
          .network = hardware.network};
}

Status check_num_ranks(const NetworkSpec& network, int num_ranks) {
  const int64_t devices = network.devices_per_node;
  if (num_ranks <= devices || network.network.bytes_per_s.known()) return Ok{};
  const auto count = [](int64_t n, std::string_view noun) {
    return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
  };
  return Error{"comm.simulate",
               fmt::format("{} is one node of {} without a network, the run has {} ranks", network.name,
                           count(devices, "device"), num_ranks),
               fmt::format("use {} or fewer, or a cluster, for example simulate = dgx-h100", count(devices, "rank"))};
}

GroupShape group_shape(const NetworkSpec& network, const std::vector<int>& members) {
  std::vector<int64_t> nodes;
  for (const int rank : members) nodes.push_back(div_floor(rank, network.devices_per_node));
  std::sort(nodes.begin(), nodes.end());
  GroupShape shape{static_cast<int>(members.size()), 0, static_cast<int>(members.size())};
  for (auto node = nodes.begin(); node != nodes.end(); ++shape.nodes) {
    const auto next = std::upper_bound(node, nodes.end(), *node);
    shape.ranks_per_node = std::min(shape.ranks_per_node, static_cast<int>(next - node));
    node = next;
  }
  return shape;
}

CollectiveCost collective_cost(const NetworkSpec& network, CollectiveKind kind, const GroupShape& shape, double bytes) {
  if (shape.ranks <= 1) return {};
  CollectiveCost cost;
  cost.across_nodes = shape.nodes > 1 && network.network.bytes_per_s.known();
  const LinkSpec& link = cost.across_nodes ? network.network : network.node_link;
  const double bandwidth = share_of_links(network, kind, shape, cost.across_nodes);
  if (bandwidth > 0) cost.bytes_per_s = bandwidth;
  const MeasuredSeconds measured = measured_seconds(link, kind, shape.ranks, bytes);
  if (measured.seconds > 0) {
    cost.latency_s = std::min(measured.smallest, measured.seconds);
    cost.bytes = (measured.seconds - cost.latency_s) * cost.bytes_per_s;
  } else if (bandwidth > 0) {
    cost.latency_s = latency_seconds(link, kind, shape.ranks);
    cost.bytes = bytes_on_links(kind, shape, cost.across_nodes, bytes);
  }
  return cost;
}

}  // namespace fivefold
