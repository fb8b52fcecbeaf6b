#include "spec/tape_exchanges.h"

namespace fivefold {
namespace {

class Exchanges {
 public:
  void allocate(int64_t bytes) { events_.push_back({true, Owner::kThisUnit, next(), Account::kCommBuffers, bytes}); }
  void release_last() { events_.push_back({false, Owner::kThisUnit, kExchangeId + --live_, Account::kCommBuffers, 0}); }
  void release_all() {
    while (live_ > 0) release_last();
  }
  std::vector<TapeEvent> finish() {
    release_all();
    return std::move(events_);
  }

 private:
  int next() { return kExchangeId + live_++; }

  int live_ = 0;
  std::vector<TapeEvent> events_;
};

// Of one rank's rows.
struct Widths {
  Widths(const UnitOperations& operations, const Operation& attention)
      : q(of(operations, attention.output)), kv(of(operations, attention.input) - q) {
    if (attention.extra.size() > 1) heads = of(operations, attention.extra[1]);
  }
  static int64_t of(const UnitOperations& operations, int slot) {
    return operations.slots[static_cast<size_t>(slot)].width;
  }

  int64_t q, kv;
  int64_t heads = 0;  // of what Ulysses keeps
};

}  // namespace

std::vector<TapeEvent> forward_exchanges(const UnitOperations& operations, const Operation& attention,
                                         const TapeShape& shape, RebuildPart part) {
  const int64_t c = shape.context.degree, element = dtype_bytes(shape.compute), t = shape.tokens;
  if (c == 1) return {};
  const Widths width(operations, attention);
  Exchanges exchanges;
  switch (shape.context.kind) {
    case CpKind::kRing:
      exchanges.allocate(t * width.q * 4);
      for (int i = 0; i < 2; ++i) exchanges.allocate(t * width.kv * element);
      break;
    case CpKind::kAllGather:
      exchanges.allocate(c * t * width.kv * element);
      break;
    case CpKind::kUlysses:
      if (part != RebuildPart::kAfterExchange) exchanges.allocate(t * width.heads * element);
      exchanges.release_all();
      if (part != RebuildPart::kExchange) exchanges.allocate(t * width.q * element);
      break;
  }
  return exchanges.finish();
}

std::vector<TapeEvent> backward_exchanges(const UnitOperations& operations, const Operation& attention,
                                          const TapeShape& shape) {
  const int64_t c = shape.context.degree, element = dtype_bytes(shape.compute), t = shape.tokens;
  if (c == 1) return {};
  const Widths width(operations, attention);
  Exchanges exchanges;
  switch (shape.context.kind) {
    case CpKind::kRing:
      exchanges.allocate(t * width.q * 4);
      for (int i = 0; i < 2; ++i) exchanges.allocate(t * width.kv * element);
      for (int i = 0; i < 3; ++i) exchanges.allocate(t * width.kv * 4);
      break;
    case CpKind::kAllGather:
      for (int i = 0; i < 2; ++i) exchanges.allocate(c * t * width.kv * element);
      break;
    case CpKind::kUlysses:
      exchanges.allocate(t * width.q * element);
      exchanges.allocate(t * width.q * element);
      exchanges.release_last();
      for (int i = 0; i < 2; ++i) exchanges.allocate(t * width.heads * element);
      break;
  }
  return exchanges.finish();
}

}  // namespace fivefold
