#include "comm/call_queue.h"

#include <chrono>
#include <exception>

namespace fivefold {

// Completion of one call, for threads of the host.
class HostWork final : public WorkState {
 public:
  explicit HostWork(std::shared_ptr<CallLog> log) : log_(std::move(log)) {}

  bool wait_host(double timeout_s) override {
    std::unique_lock lock(mutex_);
    const auto complete = [this] { return done_; };
    if (!done_) {
      const CallLog::Wait wait(*log_);
      if (timeout_s == Work::kForever) {
        changed_.wait(lock, complete);
      } else if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), complete)) {
        return false;
      }
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

  void wait_on(Stream stream) override {
    FIVEFOLD_CHECK(stream.handle == nullptr, "a host transport knows only the null stream");
    wait_host(Work::kForever);
  }

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void complete(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }

 private:
  const std::shared_ptr<CallLog> log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

CallQueue::CallQueue(std::function<bool(Call&)> accept, std::function<void(Call&)> execute,
                     std::shared_ptr<CallLog> log)
    : accept_(std::move(accept)), execute_(std::move(execute)), log_(std::move(log)), thread_([this] { run(); }) {}

CallQueue::~CallQueue() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Work CallQueue::submit(Call call) {
  std::unique_lock lock(mutex_);
  if (!accept_(call)) return Work();
  const bool sync = call.options.mode == Mode::kSync;
  if (!sync || executing_ || !entries_.empty()) {
    const auto work = std::make_shared<HostWork>(log_);
    entries_.push_back({std::move(call), work});
    lock.unlock();
    changed_.notify_all();
    if (sync) work->wait_host(Work::kForever);
    return Work(work);
  }

  executing_ = true;
  lock.unlock();
  std::exception_ptr error;
  {
    const CallLog::Wait wait(*log_);
    try {
      execute_(call);
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  executing_ = false;
  const bool more = !entries_.empty();
  lock.unlock();
  if (more) changed_.notify_all();
  if (error) std::rethrow_exception(error);
  return Work();
}

void CallQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !executing_ && (closed_ || !entries_.empty()); });
    if (entries_.empty()) return;
    executing_ = true;
    std::exception_ptr error;
    std::shared_ptr<HostWork> work;
    {
      Entry entry = std::move(entries_.front());
      entries_.pop_front();
      lock.unlock();
      try {
        execute_(entry.call);
      } catch (...) {
        error = std::current_exception();
      }
      work = std::move(entry.work);
    }  // what the call kept alive is released before anybody learns that it is complete
    lock.lock();
    executing_ = false;
    lock.unlock();
    work->complete(std::move(error));
    lock.lock();
  }
}

}  // namespace fivefold
