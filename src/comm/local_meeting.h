// LocalMeeting: one rank's presence in one collective of a `local` group: publish, meet, look at the others, leave.
// Internal to comm/local_*. See Note [Leaving after an abort] in comm/local_state.h.
#pragma once

#include "comm/local_group.h"
#include "comm/local_state.h"

namespace fivefold {

class LocalMeeting {
 public:
  // `call` has been accepted (numbered) and outlives the meeting.
  LocalMeeting(LocalState& state, LocalGroup& group, const Call& call);

  // Shows this rank's call and waits for everybody's. Errors: CommError when they differ.
  void enter();
  // Waits until everybody has come here. The last meeting point before the buffers may be reused is a meet() too.
  void meet();
  // For a rank that got an exception, after the world was aborted: returns once no peer uses this rank's buffers.
  void leave_early();

  const PublishedCall& of(int member) const { return group_.lines[member].published[parity_]; }
  int size() const { return group_.size(); }
  int rank() const { return rank_; }  // in the group

 private:
  void arrive();
  void ring_others();
  Missing missing_at(uint64_t arrivals) const;  // REQUIRES: arrivals >= entry_, this rank has entered
  void compare() const;

  LocalState& state_;
  LocalGroup& group_;
  const Call& call_;
  const int world_rank_;
  const int rank_;
  const int parity_;
  uint64_t entry_ = 0;  // arrivals of a member that has entered; 0: this rank has not
};

}  // namespace fivefold
