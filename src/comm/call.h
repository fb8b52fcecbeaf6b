// Call: one collective as its rank asked for it, checked for consistency in itself. What Communicator hands to a
// transport; not for callers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace fivefold {

struct Call {
  CollectiveKind kind;  // of a batch: kRecv if it has a receive, else kSend
  Group group;
  Purpose purpose;
  Buffer input{};  // all_reduce, broadcast: the same as output. Unused by transfers and barrier.
  Buffer output{};
  std::vector<InOut> more{};  // further buffers of a joined call
  Reduction reduction = Reduction::kSum;
  Output output_mode = Output::kOverwrite;
  int root = 0;
  std::vector<int64_t> send_counts{};     // elements; empty unless a ragged all_to_all
  std::vector<int64_t> recv_counts{};     // elements; empty unless a ragged all_to_all
  std::vector<PeerTransfer> transfers{};  // sends and receives; empty for collectives
  CallOptions options{};

  // Set by the transport in program order.
  std::vector<CallRecord> records{};  // one, or one per transfer
  std::vector<int64_t> tickets{};     // of the records in the flight recorder
  bool logged = false;                // in the call log

  size_t num_buffers() const { return 1 + more.size(); }
  InOut buffer(size_t i) const { return i == 0 ? InOut{input, output} : more[i - 1]; }
  int64_t input_bytes() const;   // of all buffers
  int64_t output_bytes() const;  // of all buffers
};

// Bytes that this rank sends in a collective; docs/communication.md. REQUIRES: no transfers.
int64_t collective_bytes_sent(const Call& call);

}  // namespace fivefold
