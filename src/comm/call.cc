#include "comm/call.h"

#include "base/integer.h"

namespace fivefold {

int64_t Call::input_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < num_buffers(); ++i) bytes += buffer(i).input.bytes;
  return bytes;
}

int64_t Call::output_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < num_buffers(); ++i) bytes += buffer(i).output.bytes;
  return bytes;
}

int64_t collective_bytes_sent(const Call& call) {
  const int64_t n = call.group.size();
  const int64_t element_bytes = dtype_bytes(call.input.dtype);
  switch (call.kind) {
    case CollectiveKind::kAllReduce: {
      int64_t elements = 0;
      for (size_t i = 0; i < call.num_buffers(); ++i) elements += div_ceil(call.buffer(i).input.count(), n);
      return 2 * (n - 1) * elements * element_bytes;
    }
    case CollectiveKind::kReduceScatter:
      return (n - 1) * div_exact(call.input_bytes(), n);
    case CollectiveKind::kAllGather:
      return (n - 1) * call.input_bytes();
    case CollectiveKind::kAllToAll:
      if (call.send_counts.empty()) return (n - 1) * div_exact(call.input.bytes, n);
      return call.input.bytes - call.send_counts[call.group.rank()] * element_bytes;
    case CollectiveKind::kBroadcast:
      return n > 1 && call.group.rank() == call.root ? call.input.bytes : 0;
    case CollectiveKind::kBarrier:
      return 0;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      break;
  }
  FIVEFOLD_CHECK(false, "transfers are counted one by one");
}

}  // namespace fivefold
