// CommunicationTimes: what a planned step spends in collectives, by group and purpose, and how much of it is hidden:
// the twin of the `calls` of a run record. Pure, one thread per object.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "spec/enums.h"

namespace fivefold {

struct CommunicationTime {
  GroupKind group = GroupKind::kWorld;
  Purpose purpose = Purpose::kControl;
  double seconds = 0;  // of the calls that end in a step, from their start on the links
  double exposed = 0;  // of them: the rank does not compute but waits, for whatever call

  double hidden() const { return seconds - exposed; }
};

// Sums up the calls and the waits of one rank's timeline.
class CommunicationTally {
 public:
  // A call that runs beside computation. REQUIRES: calls in order of their begin, none before the one before it ended.
  void flight(GroupKind group, Purpose purpose, double begin_s, double end_s);
  // The rank stands still. REQUIRES: in order, apart.
  void wait(double begin_s, double end_s);
  // A call within a computation, of which the caller knows what is exposed.
  void within(GroupKind group, Purpose purpose, double seconds, double exposed);
  // Forgets what ended before `now_s`.
  void restart(double now_s);

  // Of the calls that ended until `now_s`, by group and purpose.
  std::vector<CommunicationTime> times(double now_s) const;

 private:
  using Key = std::pair<GroupKind, Purpose>;
  struct Interval {
    Key key;
    double begin_s, end_s;
  };

  std::vector<Interval> flights_, waits_;
  std::map<Key, CommunicationTime> sums_;
};

}  // namespace fivefold
