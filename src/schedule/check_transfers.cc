#include "schedule/check_transfers.h"

#include <map>

#include "schedule/transfers.h"

namespace fivefold {
namespace {

// A maximal run of joined transfers, in positions [begin, end) of a rank's list.
struct Batch {
  int begin = 0, end = 0;
  int unmatched = 0;
};

// The other end of a transfer.
struct End {
  int rank = -1, position = -1, batch = -1;
};

std::string where(int rank, int position) {
  return "schedule rank " + std::to_string(rank) + " position " + std::to_string(position);
}

// The transfers of all ranks, executed under the rule that a rank issues a batch when the one before it is complete.
// Computations need no thought: what they wait for stands before them in the list of their own rank.
class Rendezvous {
 public:
  explicit Rendezvous(const Schedule& schedule)
      : schedule_(schedule),
        batches_(schedule.ranks.size()),
        current_(schedule.ranks.size(), 0),
        posted_(schedule.ranks.size(), false),
        sends_(num_messages(schedule)),
        receives_(num_messages(schedule)) {
    for (int rank = 0; rank < schedule.num_stages; ++rank) collect(rank);
  }

  // The k-th message from one rank to another must be the k-th that is received.
  Status check_order() const {
    std::map<std::pair<int, int>, std::vector<int>> sent;  // (from, to) -> positions, in the order of the list
    for_each_transfer([&](int rank, int position, const ScheduleAction& action) {
      if (is_send(action.op)) sent[{rank, action.peer}].push_back(position);
    });
    std::map<std::pair<int, int>, size_t> received;
    Status status = Ok{};
    for_each_transfer([&](int rank, int position, const ScheduleAction& action) {
      if (is_send(action.op) || !status.ok()) return;
      const std::pair<int, int> pair{action.peer, rank};
      const int other = sent[pair][received[pair]++];
      const ScheduleAction& send = at(action.peer, other);
      if (message_index(schedule_, action.peer, send) != message_index(schedule_, rank, action))
        status = Error{where(rank, position),
                       to_string(action) + " meets " + to_string(send) + " of rank " + std::to_string(action.peer) +
                           " position " + std::to_string(other),
                       "receive in the order of the sends"};
    });
    return status;
  }

  Status execute() {
    std::vector<int> entered;  // ranks that have come to a new batch
    for (int rank = 0; rank < schedule_.num_stages; ++rank) entered.push_back(rank);
    while (!entered.empty()) {
      const int rank = entered.back();
      entered.pop_back();
      if (finished(rank)) continue;
      posted_[static_cast<size_t>(rank)] = true;
      const Batch batch = head(rank);
      for (int position = batch.begin; position < batch.end; ++position) {
        // When the other end comes to it later, it finds this one.
        const End other = other_end(rank, position);
        if (!is_posted(other)) continue;
        complete_one(rank, entered);
        complete_one(other.rank, entered);
      }
    }
    for (int rank = 0; rank < schedule_.num_stages; ++rank)
      if (!finished(rank)) return stuck(rank);
    return Ok{};
  }

 private:
  const ScheduleAction& at(int rank, int position) const {
    return schedule_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(position)];
  }
  template <typename Visit>
  void for_each_transfer(Visit visit) const {
    for (int rank = 0; rank < schedule_.num_stages; ++rank)
      for (const Batch& batch : batches_[static_cast<size_t>(rank)])
        for (int position = batch.begin; position < batch.end; ++position) visit(rank, position, at(rank, position));
  }

  void collect(int rank) {
    const std::vector<ScheduleAction>& actions = schedule_.ranks[static_cast<size_t>(rank)];
    std::vector<Batch>& batches = batches_[static_cast<size_t>(rank)];
    for (int position = 0; position < static_cast<int>(actions.size()); ++position) {
      const ScheduleAction& action = actions[static_cast<size_t>(position)];
      if (!is_transfer(action.op)) continue;
      if (!action.joined) batches.push_back({position, position, 0});
      batches.back().end = position + 1;
      ++batches.back().unmatched;
      std::vector<End>& ends = is_send(action.op) ? sends_ : receives_;
      ends[message_index(schedule_, rank, action)] = {rank, position, static_cast<int>(batches.size()) - 1};
    }
  }

  bool finished(int rank) const {
    return current_[static_cast<size_t>(rank)] == static_cast<int>(batches_[static_cast<size_t>(rank)].size());
  }
  Batch& head(int rank) {
    return batches_[static_cast<size_t>(rank)][static_cast<size_t>(current_[static_cast<size_t>(rank)])];
  }
  bool is_posted(const End& end) const {
    return posted_[static_cast<size_t>(end.rank)] && current_[static_cast<size_t>(end.rank)] == end.batch;
  }
  const End& other_end(int rank, int position) const {
    const ScheduleAction& action = at(rank, position);
    return (is_send(action.op) ? receives_ : sends_)[message_index(schedule_, rank, action)];
  }

  void complete_one(int rank, std::vector<int>& entered) {
    if (--head(rank).unmatched > 0) return;
    ++current_[static_cast<size_t>(rank)];
    posted_[static_cast<size_t>(rank)] = false;
    entered.push_back(rank);
  }

  Error stuck(int rank) {
    const Batch& batch = head(rank);
    int position = batch.begin;
    while (is_posted(other_end(rank, position))) ++position;
    const int other = at(rank, position).peer, reached = head(other).begin;
    return {where(rank, position),
            to_string(at(rank, position)) + " waits for ever: rank " + std::to_string(other) + " waits at position " +
                std::to_string(reached) + " in " + to_string(at(other, reached)),
            "join transfers that have to pass each other"};
  }

  const Schedule& schedule_;
  std::vector<std::vector<Batch>> batches_;  // per rank
  std::vector<int> current_;                 // per rank: the batch it waits in
  std::vector<bool> posted_;                 // per rank: it has issued that batch
  std::vector<End> sends_, receives_;        // per message
};

}  // namespace

Status check_transfers(const Schedule& schedule) {
  Rendezvous rendezvous(schedule);
  FIVEFOLD_TRY(rendezvous.check_order());
  return rendezvous.execute();
}

}  // namespace fivefold
