// Communicator: the collectives of one rank, one object per rank. Torch-free: a call takes raw buffers and an opaque
// stream. This is the interface of every transport; it says nothing about how bytes travel. `local` (ranks are threads
// of one process) is in comm/local_world.h.
//
// Calls of one rank execute one at a time in the order they were made, whatever their group. All members of a group
// make the same calls on it in the same order; a call that differs in operation, size, dtype or purpose aborts the
// world with an error that names both sides. Sums are taken in rank order 0..n-1, in fp32 for fp32, bf16 and fp16, in
// fp64 for fp64, exactly (modulo 2^32 or 2^64) for integers, and are rounded once at the end: the same bits from run to
// run.
//
// Thread-safety: any thread may call; the order of calls is then the callers' business. A Communicator outlives its
// Works' execution: its destructor finishes what was asked for (or what an abort leaves of it).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/call_log.h"
#include "comm/comm_counters.h"
#include "comm/comm_error.h"
#include "comm/flight_recorder.h"
#include "spec/enums.h"

namespace fivefold {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

// A queue of device work, for instance a cudaStream_t. Null: the host.
struct Stream {
  void* handle = nullptr;
};

// A piece of memory that the caller owns and keeps alive and untouched until the call is complete.
struct Buffer {
  void* pointer = nullptr;
  int64_t bytes = 0;
  DType dtype = DType::kFloat32;
  Device device{};

  int64_t count() const;  // elements. REQUIRES: the dtype's size divides bytes.
};

// An ordered set of ranks that communicate. A light handle, made by Communicator::create_group, valid as long as it.
class Group {
 public:
  // `transport` is what the transport keeps for this group, for instance its own communicator.
  // REQUIRES: distinct members, world_rank among them.
  Group(GroupKind kind, int index, std::vector<int> members, int world_rank, std::shared_ptr<void> transport);

  GroupKind kind() const { return kind_; }
  int index() const { return index_; }  // which group of its kind: 1 in "tp[1]"
  int size() const { return static_cast<int>(members_->size()); }
  int rank() const { return rank_; }                             // this rank's position in the group
  const std::vector<int>& members() const { return *members_; }  // world ranks in group order
  std::string name() const;                                      // "tp[1]"
  void* transport() const { return transport_.get(); }

 private:
  GroupKind kind_;
  int index_;
  int rank_;
  std::shared_ptr<const std::vector<int>> members_;
  std::shared_ptr<void> transport_;
};

// State of one call, implemented by each transport.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool wait_host(double timeout_s) = 0;
  virtual void wait_on(Stream stream) = 0;
  virtual bool done() const = 0;
};

// Handle to one call. Copies share it; dropping it neither waits nor cancels. Thread-safe.
class Work {
 public:
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  Work() = default;  // a call that is complete
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // Blocks the calling thread until the call is complete or `timeout_s` have passed; returns whether it is complete.
  // Errors: rethrows the call's CommError or Aborted.
  bool wait_host(double timeout_s = kForever) const { return !state_ || state_->wait_host(timeout_s); }
  // Makes what is enqueued on `stream` from now on start after the call. With the null stream: wait_host().
  void wait_on(Stream stream) const {
    if (state_) state_->wait_on(stream);
  }
  // Complete, with success or with an error.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<WorkState> state_;
};

enum class Reduction : uint8_t { kSum, kMax };
// What reduce_scatter does with its output: overwrite it, or combine it with the reduced chunk by the same reduction.
enum class Output : uint8_t { kOverwrite, kAccumulate };
// kSync: the call returns when it is complete and throws its error. kAsync: it returns at once; the rank's comm thread
// executes it.
enum class Mode : uint8_t { kSync, kAsync };

struct CallOptions {
  Mode mode = Mode::kSync;
  // Device transports: the call starts after what is on this stream now.
  Stream stream{};
  // Held until the call no longer touches the buffers. Pass the owners of the buffers of an async call whose caller may
  // be unwound by an exception while it is in flight.
  std::shared_ptr<const void> keep_alive{};
};

// What a rank hands over to a collective and what it gets, of one of the buffers of a joined call.
struct InOut {
  Buffer input, output;
};

// One part of a batch: a send or a receive.
struct PeerTransfer {
  CollectiveKind kind;  // kSend or kRecv
  Buffer buffer{};
  int peer = 0;                      // position in the group
  std::optional<Purpose> purpose{};  // none: the batch's
};

struct Call;  // comm/call.h: one validated call, for transports

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  const Group& world() const { return world_; }  // all ranks, "world[0]"

  // The group of `members` (world ranks in group order, this rank among them). Every member calls this with the same
  // arguments; others do not take part. `index` tells groups of one kind apart; (kind, index) identifies the group: a
  // second call returns the same one. Does not block in `local`.
  // Errors: CommError when another rank gave this (kind, index) other members.
  virtual Group create_group(GroupKind kind, int index, const std::vector<int>& members) = 0;

  // Every rank's `data` becomes the element-wise reduction over all of them. Any count.
  // REQUIRES: dtype can be reduced (not uint8 or fp8). Bytes sent: 2 (n-1) ceil(count / n) dtype bytes.
  Work all_reduce(const Group& group, const Buffer& data, Reduction reduction, Purpose purpose,
                  const CallOptions& options = {});

  // `input` is n equal chunks; `output` becomes the reduction of everybody's chunk number rank(), or is combined with
  // it. `output` has the input's dtype, or fp32 for a bf16 or fp16 input (then nothing is rounded). It is either apart
  // from `input` or exactly this rank's chunk of it; in the latter case the rest of `input` is left as it was.
  // REQUIRES: n * chunk = input count; dtype can be reduced. Bytes sent: (n-1) chunk bytes.
  Work reduce_scatter(const Group& group, const Buffer& input, const Buffer& output, Reduction reduction,
                      Purpose purpose, const CallOptions& options = {}, Output mode = Output::kOverwrite);

  // `output` becomes everybody's `input` in group order. `input` is either apart from `output` or exactly this rank's
  // chunk of it. REQUIRES: output bytes = n * input bytes, equal dtypes. Bytes sent: (n-1) input bytes.
  Work all_gather(const Group& group, const Buffer& input, const Buffer& output, Purpose purpose,
                  const CallOptions& options = {});

  // Joined calls: the same for several buffers of one dtype in one call, which meets, waits, is counted and travels
  // once. Each buffer ends with the bits that a call of its own would give it. Nothing happens without buffers.
  Work all_reduce(const Group& group, const std::vector<Buffer>& data, Reduction reduction, Purpose purpose,
                  const CallOptions& options = {});
  Work reduce_scatter(const Group& group, const std::vector<InOut>& buffers, Reduction reduction, Purpose purpose,
                      const CallOptions& options = {}, Output mode = Output::kOverwrite);
  Work all_gather(const Group& group, const std::vector<InOut>& buffers, Purpose purpose,
                  const CallOptions& options = {});

  // Chunk j of `input` becomes chunk rank() of rank j's `output`. REQUIRES: equal sizes, n chunks, buffers apart.
  // Bytes sent: (n-1) chunk bytes.
  Work all_to_all(const Group& group, const Buffer& input, const Buffer& output, Purpose purpose,
                  const CallOptions& options = {});

  // Ragged: send_counts[j] elements go to rank j, recv_counts[j] come from it; both buffers are packed in group order.
  // REQUIRES: counts sum up to the buffers' counts, buffers apart. Bytes sent: those for other ranks.
  // Errors: CommError when a rank expects another count than its peer sends.
  Work all_to_all(const Group& group, const Buffer& input, const std::vector<int64_t>& send_counts,
                  const Buffer& output, const std::vector<int64_t>& recv_counts, Purpose purpose,
                  const CallOptions& options = {});

  // Everybody's `data` becomes that of `root` (position in the group). Bytes sent: all of it by the root, if n > 1.
  Work broadcast(const Group& group, const Buffer& data, int root, Purpose purpose, const CallOptions& options = {});

  // Point to point; the k-th send from a to b matches the k-th recv at b from a. Whether a send waits for its receive
  // (rendezvous) is the transport's setting: correct programs do not depend on it. REQUIRES: peer is another rank.
  // Bytes sent: those of the buffer by the sender.
  Work send(const Group& group, const Buffer& data, int peer, Purpose purpose, const CallOptions& options = {});
  Work recv(const Group& group, const Buffer& data, int peer, Purpose purpose, const CallOptions& options = {});
  // All transfers at once, in no order except per peer and direction: matching batches never deadlock.
  Work batch_send_recv(const Group& group, const std::vector<PeerTransfer>& transfers, Purpose purpose,
                       const CallOptions& options = {});

  // Returns when every member has called it.
  Work barrier(const Group& group, Purpose purpose, const CallOptions& options = {});

  // Ends all calls of all ranks, present and future, with Aborted. The first abort or fault wins. Does not block.
  virtual void abort(const std::string& reason) = 0;

  // Calls and bytes of the calls that this rank made, seconds of those that are over, and its last calls.
  CommCounters& counters() { return *counters_; }
  const FlightRecorder& flight_recorder() const { return *recorder_; }
  // When this rank's calls ran; off at first.
  CallLog& call_log() { return *log_; }

 protected:
  // The transport shares both: they may outlive the communicator, for peers that still report about it.
  Communicator(Group world, std::shared_ptr<CommCounters> counters, std::shared_ptr<FlightRecorder> recorder);

  const std::shared_ptr<CommCounters>& shared_counters() const { return counters_; }
  FlightRecorder& recorder() { return *recorder_; }
  const std::shared_ptr<CallLog>& shared_call_log() const { return log_; }

 private:
  // Executes or enqueues a call whose arguments are consistent in themselves.
  virtual Work submit(Call call) = 0;

  Group world_;
  std::shared_ptr<CommCounters> counters_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<CallLog> log_ = std::make_shared<CallLog>();
};

}  // namespace fivefold
