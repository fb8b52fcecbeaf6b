#include "planner/communication_times.h"

#include <algorithm>

namespace fivefold {

void CommunicationTally::flight(GroupKind group, Purpose purpose, double begin_s, double end_s) {
  if (end_s > begin_s) flights_.push_back({{group, purpose}, begin_s, end_s});
}

void CommunicationTally::wait(double begin_s, double end_s) {
  if (end_s > begin_s) waits_.push_back({{}, begin_s, end_s});
}

void CommunicationTally::within(GroupKind group, Purpose purpose, double seconds, double exposed) {
  CommunicationTime& sum = sums_[{group, purpose}];
  sum.seconds += seconds;
  sum.exposed += exposed;
}

void CommunicationTally::restart(double now_s) {
  std::erase_if(flights_, [now_s](const Interval& flight) { return flight.end_s <= now_s; });
  const double first_s = flights_.empty() ? now_s : std::min(now_s, flights_.front().begin_s);
  std::erase_if(waits_, [first_s](const Interval& wait) { return wait.end_s <= first_s; });
  sums_.clear();
}

std::vector<CommunicationTime> CommunicationTally::times(double now_s) const {
  std::map<Key, CommunicationTime> sums = sums_;
  size_t first = 0;
  for (const Interval& flight : flights_) {
    if (flight.end_s > now_s) break;
    CommunicationTime& sum = sums[flight.key];
    sum.seconds += flight.end_s - flight.begin_s;
    while (first < waits_.size() && waits_[first].end_s <= flight.begin_s) ++first;
    for (size_t i = first; i < waits_.size() && waits_[i].begin_s < flight.end_s; ++i)
      sum.exposed += std::min(flight.end_s, waits_[i].end_s) - std::max(flight.begin_s, waits_[i].begin_s);
  }
  std::vector<CommunicationTime> result;
  for (auto& [key, sum] : sums) {
    sum.group = key.first;
    sum.purpose = key.second;
    result.push_back(sum);
  }
  return result;
}

}  // namespace fivefold
