#include "comm/local_state.h"

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "comm/comm_error.h"

namespace fivefold {
namespace {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

std::string list(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (const int rank : ranks) parts.push_back(std::to_string(rank));
  std::string text = "{";
  text += join(parts, ", ");
  return text += "}";
}

// The call that `missing` should have made for `call` of `waiting` to go on.
CallRecord expected_call(const CallRecord& call, int waiting) {
  CallRecord expected = call;
  if (call.kind == CollectiveKind::kSend) expected.kind = CollectiveKind::kRecv;
  if (call.kind == CollectiveKind::kRecv) expected.kind = CollectiveKind::kSend;
  if (expected.kind != call.kind) expected.peer = waiting;
  return expected;
}

}  // namespace

// Spinning only pays when the peer runs at the same time. 2000 pauses are 20 to 80 us, a few times what sleeping and
// waking costs.
LocalState::LocalState(int n, const LocalOptions& options)
    : options_(options),
      spins_(static_cast<unsigned>(n) <= std::thread::hardware_concurrency() ? 2000 : 0),
      ranks_(static_cast<size_t>(n)),
      links_(options.simulate ? std::make_unique<LinkSimulation>(*options.simulate, n) : nullptr) {
  for (Rank& rank : ranks_) rank.recorder = std::make_shared<FlightRecorder>(options.recorded_calls);
  watchdog_ = std::thread([this] { watch(); });
}

LocalState::~LocalState() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_watching_.notify_all();
  watchdog_.join();
}

int64_t LocalState::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<LocalGroup> LocalState::group(GroupKind kind, int index, const std::vector<int>& members, int rank) {
  std::vector<int> existing;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<LocalGroup>& group = groups_[{kind, index}];
    if (!group) group = std::make_shared<LocalGroup>(members);
    if (group->members == members) return group;
    existing = group->members;
  }
  fail(rank, rank_name(rank) + " makes " + std::string(to_string(kind)) + "[" + std::to_string(index) +
                 "] of the ranks " + list(members) + ", but another rank made it of " + list(existing));
}

void LocalState::ring(int rank) {
  ranks_[rank].doorbell.fetch_add(1);
  ranks_[rank].doorbell.notify_all();
}

bool LocalState::declare(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = std::move(failure);
    aborted_.store(true);
  }
  for (int r = 0; r < size(); ++r) ring(r);
  if (links_) links_->interrupt();
  return true;
}

void LocalState::throw_if_aborted(int rank) const {
  if (!aborted()) return;
  const Failure first = *failure();
  if (first.rank == rank) {
    if (first.is_comm_error) throw CommError(first.message);
    throw Aborted(first.message);
  }
  throw Aborted("aborted because " + rank_name(first.rank) + " failed" +
                (first.where.empty() ? "" : " " + first.where) + ": " + first.message);
}

void LocalState::fail(int rank, const std::string& message) {
  declare({rank, message, /*is_comm_error=*/true, /*where=*/""});
  throw_if_aborted(rank);
  FIVEFOLD_CHECK(false, "a failed world is aborted");
}

void LocalState::abort(int rank, const std::string& reason) {
  if (aborted()) return;
  declare({rank, reason, /*is_comm_error=*/false, whereabouts(rank)});
}

void LocalState::end(int rank) {
  ranks_[rank].ended.store(true);
  for (int r = 0; r < size(); ++r) ring(r);
}

void LocalState::wait_for_abort(int rank) {
  Rank& self = ranks_[rank];
  while (true) {
    const uint32_t heard = self.doorbell.load();
    throw_if_aborted(rank);
    self.doorbell.wait(heard);
  }
}

void LocalState::wait_for_links(int rank, int64_t transfer) {
  ranks_[rank].on_links.store(true);
  const bool complete = links_->wait(transfer);
  ranks_[rank].on_links.store(false);
  if (!complete) throw_if_aborted(rank);
}

void HookedCall::wait_for_abort() const { world->wait_for_abort(rank); }

std::optional<LocalState::Failure> LocalState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void LocalState::note_wait(int rank, int64_t since_ns, const Missing& missing) {
  const std::lock_guard lock(ranks_[rank].mutex);
  ranks_[rank].wait = Wait{since_ns, missing.rank, *missing.call, missing.entered};
}

void LocalState::clear_wait(int rank) {
  const std::lock_guard lock(ranks_[rank].mutex);
  ranks_[rank].wait.reset();
}

std::optional<LocalState::Wait> LocalState::wait_of(int rank) {
  const std::lock_guard lock(ranks_[rank].mutex);
  return ranks_[rank].wait;
}

std::string LocalState::whereabouts(int rank) {
  if (const auto wait = wait_of(rank)) {
    return "in " + wait->call.name() + ", waiting for " + rank_name(wait->missing);
  }
  const auto head = ranks_[rank].recorder->head();
  if (head && ranks_[rank].on_links.load()) return "in " + head->name() + ", on the simulated network";
  if (head && head->state == CallState::kExecuting) return "in " + head->name() + ", waiting for no rank";
  return std::string(ranks_[rank].ended.load() ? "at its end" : "outside any call") +
         (head ? ", after " + head->name() : ", and has made none");
}

void LocalState::fail_lost_peer(int rank, const Missing& missing) {
  const CallRecord expected = expected_call(*missing.call, rank);
  clear_wait(rank);
  fail(rank, rank_name(missing.rank) + (missing.entered ? " never finished " : " never entered ") + expected.name() +
                 "; it is " + whereabouts(missing.rank) + " (" + rank_name(rank) + " was waiting for it)");
}

// Follows who waits for whom from a rank that has waited too long, to the rank that does not wait itself or back to a
// rank seen before (a deadlock).
LocalState::Failure LocalState::diagnose(int rank, Wait wait) {
  std::vector<int> chain = {rank};
  std::string message;
  while (true) {
    const auto next = wait_of(wait.missing);
    if (!next) {
      message = rank_name(wait.missing) + (wait.entered ? " never finished " : " never entered ") +
                expected_call(wait.call, rank).name() + "; it is " + whereabouts(wait.missing);
      break;
    }
    const auto seen = std::find(chain.begin(), chain.end(), wait.missing);
    if (seen != chain.end()) {
      message = "deadlock: ";
      for (auto r = seen; r != chain.end(); ++r) {
        if (r != seen) message += "; ";
        message += rank_name(*r) + " is " + whereabouts(*r);
      }
      break;
    }
    rank = wait.missing;
    wait = *next;
    chain.push_back(rank);
  }
  message += "\ntimeout after " + format_seconds(options_.timeout_s);
  for (int r = 0; r < size(); ++r) message += "\n  " + rank_name(r) + " is " + whereabouts(r);
  return {rank, message, /*is_comm_error=*/true, /*where=*/""};
}

void LocalState::watch() {
  const auto timeout = std::chrono::duration<double>(options_.timeout_s);
  const auto period = std::min(timeout / 8, std::chrono::duration<double>(1));
  std::unique_lock lock(mutex_);
  while (!stop_watching_.wait_for(lock, period, [this] { return stopped_; })) {
    if (failure_) continue;
    lock.unlock();
    const int64_t now = now_ns();
    // Who waits for a rank whose call is long on the simulated network does not wait for a dead one.
    const bool links_are_quiet = !links_ || links_->idle_seconds() >= options_.timeout_s;
    for (int r = 0; links_are_quiet && r < size(); ++r) {
      const auto wait = wait_of(r);
      if (!wait || static_cast<double>(now - wait->since_ns) * 1e-9 < options_.timeout_s) continue;
      declare(diagnose(r, *wait));
      break;
    }
    lock.lock();
  }
}

}  // namespace fivefold
