// Sends and receives of `local`. A send is posted to the channel of its pair of ranks; the receiver takes it from
// there, copies the bytes out of the sender's buffer or its staging, and reports back.
#include <algorithm>
#include <cstring>

#include "comm/comm_error.h"
#include "comm/local_communicator.h"

namespace fivefold {

// One batch while it executes.
class LocalCommunicator::Exchange {
 public:
  Exchange(LocalCommunicator& self, const Call& call)
      : self_(self), state_(*self.state_), group_(*static_cast<LocalGroup*>(call.group.transport())), call_(call) {}

  void run() {
    for (size_t i = 0; i < call_.transfers.size(); ++i) {
      if (call_.transfers[i].kind == CollectiveKind::kSend) {
        post(i);
      } else {
        receives_.push_back(i);
      }
    }
    while (!receives_.empty()) {
      state_.wait(self_.rank(), [this] { return missing_send(); });
      receive_what_is_there();
    }
    state_.wait(self_.rank(), [this] { return missing_receive(); });
    // All of the batch is under way at the same time.
    for (const Sent& sent : sends_) note_transfer(*sent.post);
    for (const int64_t transfer : transfers_) state_.wait_for_links(self_.rank(), transfer);
  }

  // For a rank that got an exception, after the world was aborted: returns once no peer uses this rank's buffers.
  void retract();

 private:
  Channel& outgoing(size_t i) { return group_.channel(call_.group.rank(), call_.transfers[i].peer); }
  Channel& incoming(size_t i) { return group_.channel(call_.transfers[i].peer, call_.group.rank()); }

  void post(size_t i);
  void receive_what_is_there();
  std::shared_ptr<PostedSend> take(size_t i);
  void receive(size_t i);
  void start_transfer(PostedSend& sent, int from, int to) {
    if (state_.links() != nullptr)
      sent.transfer = state_.links()->start_send(from, to, static_cast<double>(sent.record.bytes));
  }
  void note_transfer(const PostedSend& sent) {
    if (state_.links() != nullptr) transfers_.push_back(sent.transfer);
  }
  Missing missing_send();
  Missing missing_receive();

  LocalCommunicator& self_;
  LocalState& state_;
  LocalGroup& group_;
  const Call& call_;
  std::vector<size_t> receives_;  // transfers that are to come, in program order
  struct Sent {
    size_t transfer;
    std::shared_ptr<PostedSend> post;
  };
  std::vector<Sent> sends_;         // those that use this rank's buffers
  std::vector<int64_t> transfers_;  // simulated ones that this rank takes part in
};

void LocalCommunicator::Exchange::post(size_t i) {
  const Buffer& buffer = call_.transfers[i].buffer;
  const auto sent = std::make_shared<PostedSend>();
  sent->record = call_.records[i];
  sent->data = static_cast<const std::byte*>(buffer.pointer);
  if (state_.options().send_mode == SendMode::kBuffered) {
    std::shared_ptr<CommCounters> counters = self_.shared_counters();
    const int64_t bytes = buffer.bytes;
    std::byte* const staging = new std::byte[static_cast<size_t>(bytes)];
    counters->add_staging(bytes);
    sent->staging = std::shared_ptr<std::byte[]>(staging, [counters, bytes](std::byte* memory) {
      delete[] memory;
      counters->add_staging(-bytes);
    });
    if (bytes > 0) std::memcpy(staging, buffer.pointer, static_cast<size_t>(bytes));
    sent->data = staging;
    // A buffered send is on its way at once, one that waits for its receive only with that.
    start_transfer(*sent, self_.rank(), call_.records[i].peer);
    note_transfer(*sent);
  } else {
    sends_.push_back({i, sent});
  }
  Channel& channel = outgoing(i);
  {
    const std::lock_guard lock(channel.mutex);
    channel.posted.push_back(sent);
    channel.num_posted.fetch_add(1);
  }
  state_.ring(call_.records[i].peer);
}

Missing LocalCommunicator::Exchange::missing_send() {
  for (const size_t i : receives_)
    if (incoming(i).num_posted.load() > 0) return {};
  return {.rank = call_.records[receives_.front()].peer, .call = &call_.records[receives_.front()]};
}

Missing LocalCommunicator::Exchange::missing_receive() {
  for (const Sent& sent : sends_)
    if (!sent.post->done.load())
      return {.rank = call_.records[sent.transfer].peer,
              .call = &call_.records[sent.transfer],
              .entered = sent.post->taken.load()};
  return {};
}

void LocalCommunicator::Exchange::receive_what_is_there() {
  std::vector<size_t> pending;
  for (const size_t i : receives_) {
    // A peer's next send belongs to the first receive from it.
    const bool in_turn = std::none_of(pending.begin(), pending.end(),
                                      [&](size_t j) { return call_.transfers[j].peer == call_.transfers[i].peer; });
    if (in_turn && incoming(i).num_posted.load() > 0) {
      receive(i);
    } else {
      pending.push_back(i);
    }
  }
  receives_ = std::move(pending);
}

// The next send for receive number i, off its channel: its sender waits from now on until it is done.
std::shared_ptr<PostedSend> LocalCommunicator::Exchange::take(size_t i) {
  const CallRecord& mine = call_.records[i];
  Channel& channel = incoming(i);
  std::shared_ptr<PostedSend> sent;
  {
    const std::lock_guard lock(channel.mutex);
    if (channel.posted.empty()) state_.throw_if_aborted(self_.rank());  // an aborted sender has taken it back
    FIVEFOLD_CHECK(!channel.posted.empty());
    sent = channel.posted.front();
    if (sent->record.bytes == mine.bytes && sent->record.dtype == mine.dtype && sent->record.purpose == mine.purpose) {
      if (state_.options().send_mode == SendMode::kRendezvous) start_transfer(*sent, mine.peer, self_.rank());
      note_transfer(*sent);
      sent->taken.store(true);
      channel.posted.pop_front();
      channel.num_posted.fetch_sub(1);
      return sent;
    }
  }
  const auto describe = [](const CallRecord& record) {
    return record.name() + " (" + std::to_string(record.bytes) + " bytes of " + std::string(to_string(record.dtype)) +
           ", " + std::string(to_string(record.purpose)) + ")";
  };
  state_.fail(self_.rank(), "rank " + std::to_string(self_.rank()) + " entered " + describe(mine) + ", but rank " +
                                std::to_string(mine.peer) + " entered " + describe(sent->record));
}

void LocalCommunicator::Exchange::receive(size_t i) {
  const Buffer& buffer = call_.transfers[i].buffer;
  const std::shared_ptr<PostedSend> sent = take(i);
  const auto finish = [&] {
    sent->staging.reset();
    sent->done.store(true);
    state_.ring(call_.records[i].peer);
  };
  try {
    self_.run_hook({HookPoint::kBeforeData, self_.rank(), call_.records[i]});
  } catch (...) {
    finish();
    throw;
  }
  if (buffer.bytes > 0) std::memcpy(buffer.pointer, sent->data, static_cast<size_t>(buffer.bytes));
  finish();
  self_.run_hook({HookPoint::kAfterData, self_.rank(), call_.records[i], bytes_of(buffer)});
}

void LocalCommunicator::Exchange::retract() {
  for (const Sent& sent : sends_) {
    Channel& channel = outgoing(sent.transfer);
    const std::lock_guard lock(channel.mutex);
    const auto posted = std::find(channel.posted.begin(), channel.posted.end(), sent.post);
    if (posted == channel.posted.end()) continue;
    channel.posted.erase(posted);
    channel.num_posted.fetch_sub(1);
    sent.post->done.store(true);
  }
  state_.wait_through_abort(self_.rank(), [this] { return missing_receive(); });
}

void LocalCommunicator::execute_exchange(const Call& call) {
  Exchange exchange(*this, call);
  try {
    exchange.run();
  } catch (...) {
    state_->abort(rank(), error_text(std::current_exception()));
    exchange.retract();
    throw;
  }
}

}  // namespace fivefold
