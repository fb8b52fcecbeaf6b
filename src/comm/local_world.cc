#include "comm/local_world.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "comm/comm_error.h"
#include "comm/local_communicator.h"

namespace fivefold {
namespace {

constexpr int kRunFailed = 4;  // exit code; product documentation, "Exit codes"

std::shared_ptr<LocalState> make_state(int n, const LocalOptions& options) {
  FIVEFOLD_CHECK(n >= 1 && options.timeout_s > 0);
  return std::make_shared<LocalState>(n, options);
}

RankError first_error(const LocalState& state, const std::vector<std::exception_ptr>& errors) {
  const LocalState::Failure first = *state.failure();
  std::string message = first.message;
  if (!first.where.empty() && state.size() > 1)
    message += "\nrank " + std::to_string(first.rank) + " was " + first.where;
  return RankError(first.rank, message, errors[static_cast<size_t>(first.rank)]);
}

// Counts the ranks that are still running.
class Finish {
 public:
  explicit Finish(int n) : num_running_(n) {}

  void one() {
    const std::lock_guard lock(mutex_);
    if (--num_running_ == 0) done_.notify_all();
  }

  // Waits for all; but after an abort only for options.exit_grace_s, then ends the process.
  void wait(const LocalState& state) {
    constexpr auto kPoll = std::chrono::milliseconds(100);
    std::unique_lock lock(mutex_);
    const auto finished = [this] { return num_running_ == 0; };
    while (!done_.wait_for(lock, kPoll, finished) && !state.aborted()) continue;
    const std::chrono::duration<double> grace(state.options().exit_grace_s);
    if (done_.wait_for(lock, grace, finished)) return;
    const std::vector<std::exception_ptr> unknown(static_cast<size_t>(state.size()));
    std::fprintf(stderr, "fivefold: %s\n%d rank(s) did not end within %s after that; ending the process\n",
                 first_error(state, unknown).what(), num_running_, format_seconds(grace.count()).c_str());
    std::fflush(stderr);
    std::_Exit(kRunFailed);
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  int num_running_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> LocalWorld::create(int n, const LocalOptions& options) {
  return LocalCommunicator::create_all(make_state(n, options));
}

void run_ranks(int n, const LocalOptions& options,
               const std::function<void(int rank, Communicator& communicator)>& fn) {
  const std::shared_ptr<LocalState> state = make_state(n, options);
  std::vector<std::unique_ptr<Communicator>> communicators = LocalCommunicator::create_all(state);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n));
  Finish finish(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Communicator>& communicator = communicators[static_cast<size_t>(rank)];
      try {
        fn(rank, *communicator);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        state->abort(rank, error_text(std::current_exception()));
      }
      communicator.reset();
      finish.one();
    });
  }
  finish.wait(*state);
  for (std::thread& thread : threads) thread.join();
  if (state->aborted()) throw first_error(*state, errors);
}

}  // namespace fivefold
