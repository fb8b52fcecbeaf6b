#include "comm/local_meeting.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace fivefold {
namespace {

bool same_call(const PublishedCall& a, const PublishedCall& b) {
  const bool same_size = a.ragged || a.record.bytes == b.record.bytes;  // ragged: compared pair by pair
  return a.record.kind == b.record.kind && a.record.sequence == b.record.sequence && a.record.dtype == b.record.dtype &&
         a.record.purpose == b.record.purpose && a.reduction == b.reduction && a.root == b.root &&
         a.ragged == b.ragged && same_size && a.more_bytes == b.more_bytes;
}

std::string describe(const PublishedCall& call) {
  const CallRecord& record = call.record;
  std::string text = record.name() + " (" + std::to_string(record.bytes) + " bytes of " +
                     std::string(to_string(record.dtype)) + ", " + std::string(to_string(record.purpose));
  if (record.kind == CollectiveKind::kBroadcast) text += ", root " + std::to_string(call.root);
  if (call.reduction == Reduction::kMax) text += ", max";
  if (call.ragged) text += ", ragged";
  if (!call.more_bytes.empty()) {
    const int64_t first = std::accumulate(call.more_bytes.begin(), call.more_bytes.end(), record.bytes, std::minus<>());
    text += ", in buffers of " + std::to_string(first);
    for (const int64_t bytes : call.more_bytes) text += " + " + std::to_string(bytes);
  }
  return text + ")";
}

}  // namespace

LocalMeeting::LocalMeeting(LocalState& state, LocalGroup& group, const Call& call)
    : state_(state),
      group_(group),
      call_(call),
      world_rank_(call.group.members()[static_cast<size_t>(call.group.rank())]),
      rank_(call.group.rank()),
      parity_(static_cast<int>(call.records.front().sequence % 2)) {}

void LocalMeeting::ring_others() {
  for (const int member : group_.members)
    if (member != world_rank_) state_.ring(member);
}

void LocalMeeting::arrive() {
  group_.lines[rank_].arrivals.fetch_add(1);
  ring_others();
}

Missing LocalMeeting::missing_at(uint64_t arrivals) const {
  for (int j = 0; j < size(); ++j)
    if (group_.lines[j].arrivals.load() < arrivals)
      return {.rank = group_.members[j], .call = &call_.records.front(), .entered = arrivals > entry_};
  return {};
}

void LocalMeeting::enter() {
  // A peer may still look at the previous collective's entry if that had no meeting point after the first (barrier); it
  // cannot be two behind.
  group_.lines[rank_].published[parity_] = {
      .record = call_.records.front(),
      .reduction = call_.reduction,
      .root = call_.root,
      .ragged = !call_.send_counts.empty(),
      .call = &call_,
  };
  for (const InOut& buffer : call_.more)
    group_.lines[rank_].published[parity_].more_bytes.push_back(buffer.input.bytes);
  entry_ = group_.lines[rank_].arrivals.load() + 1;
  arrive();
  state_.wait(world_rank_, [this] { return missing_at(entry_); });
  state_.throw_if_aborted(world_rank_);
  compare();
}

void LocalMeeting::meet() {
  arrive();
  const uint64_t here = group_.lines[rank_].arrivals.load();
  state_.wait(world_rank_, [&] { return missing_at(here); });
}

void LocalMeeting::leave_early() {
  group_.lines[rank_].left.store(true);
  ring_others();
  if (entry_ == 0 || missing_at(entry_).rank >= 0) return;
  if (call_.kind == CollectiveKind::kBarrier) return;
  const uint64_t last = entry_ + (call_.kind == CollectiveKind::kAllReduce ? 2 : 1);
  state_.wait_through_abort(world_rank_, [&]() -> Missing {
    for (int j = 0; j < size(); ++j) {
      const LocalGroup::Member& line = group_.lines[j];
      if (line.arrivals.load() < last && !line.left.load())
        return {.rank = group_.members[j], .call = &call_.records.front()};
    }
    return {};
  });
}

// Names the first member whose call is not that of most members.
void LocalMeeting::compare() const {
  const auto num_like = [this](int j) {
    int count = 0;
    for (int k = 0; k < size(); ++k) count += same_call(of(j), of(k)) ? 1 : 0;
    return count;
  };
  if (std::all_of(group_.lines.begin(), group_.lines.end(),
                  [&](const auto& line) { return same_call(of(rank_), line.published[parity_]); }))
    return;
  int usual = 0;
  for (int j = 1; j < size(); ++j)
    if (num_like(j) > num_like(usual)) usual = j;
  int odd = 0;
  while (same_call(of(odd), of(usual))) ++odd;
  state_.fail(world_rank_, "rank " + std::to_string(group_.members[odd]) + " entered " + describe(of(odd)) +
                               ", but rank " + std::to_string(group_.members[usual]) + " entered " +
                               describe(of(usual)));
}

}  // namespace fivefold
