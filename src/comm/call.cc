#include "comm/call.h"

#include "base/integer.h"

namespace fivefold {

int64_t collective_bytes_sent(const Call& call) {
  const int64_t n = call.group.size();
  const int64_t element_bytes = dtype_bytes(call.input.dtype);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) * div_ceil(call.input.count(), n) * element_bytes;
    case CollectiveKind::kReduceScatter:
      return (n - 1) * call.output.count() * element_bytes;
    case CollectiveKind::kAllGather:
      return (n - 1) * call.input.bytes;
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
