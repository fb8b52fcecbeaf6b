#include "engine/moment_buffer.h"

#include <cstring>

#include "base/integer.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fivefold {
namespace {

static_assert(kStateBlock == kernels::kOptimizerStateBlock);

enum Part : size_t { kCodes, kScales, kSmall };

}  // namespace

MomentBuffer::MomentBuffer(const Unit& unit, const ShardingPolicy& policy, int shard, Account account)
    : unit_(&unit),
      policy_(policy),
      // The second moment is a mean of squares.
      map_(account == Account::kMoment2 ? kernels::DynamicMapKind::kUnsigned : kernels::DynamicMapKind::kSigned),
      shard_(shard) {
  for (const StateBuffer& buffer : state_buffers(unit, policy, OptimizerStates::kMoment1And2)) {
    if (buffer.account != account) continue;
    tensors_.push_back(allocate(account, {buffer.elements}, buffer.dtype));
    if (buffer.elements > 0) std::memset(tensors_.back().data_ptr(), 0, tensors_.back().nbytes());
  }
  if (policy.moments == OptimizerStateKind::k8Bit) places_ = moment_places(unit, policy.shards, shard);
}

OptimizerStateKind MomentBuffer::kind(int index) const {
  if (policy_.moments != OptimizerStateKind::k8Bit) return policy_.moments;
  return places_[static_cast<size_t>(index)].in_8bit ? OptimizerStateKind::k8Bit : OptimizerStateKind::kFp32;
}

ShardRange MomentBuffer::range(int index) const {
  return shard_range(*unit_, unit_->parameters[static_cast<size_t>(index)], policy_.shards, shard_);
}

float* MomentBuffer::fp32(int index) const {
  FIVEFOLD_CHECK(kind(index) == OptimizerStateKind::kFp32);
  if (places_.empty()) return elements<float>(tensors_[0]) + range(index).shard_offset;
  return elements<float>(tensors_[kSmall]) + places_[static_cast<size_t>(index)].offset;
}

kernels::BFloat16* MomentBuffer::bf16(int index) const {
  FIVEFOLD_CHECK(kind(index) == OptimizerStateKind::kBf16);
  return elements<kernels::BFloat16>(tensors_[0]) + range(index).shard_offset;
}

uint8_t* MomentBuffer::codes(int index) const {
  FIVEFOLD_CHECK(kind(index) == OptimizerStateKind::k8Bit);
  return elements<uint8_t>(tensors_[kCodes]) + places_[static_cast<size_t>(index)].offset;
}

float* MomentBuffer::scales(int index) const {
  FIVEFOLD_CHECK(kind(index) == OptimizerStateKind::k8Bit);
  return elements<float>(tensors_[kScales]) + div_exact(places_[static_cast<size_t>(index)].offset, kStateBlock);
}

void MomentBuffer::read(int index, int64_t begin, std::span<float> out) const {
  const auto n = static_cast<int64_t>(out.size());
  const ShardRange own = range(index);
  FIVEFOLD_CHECK(0 <= begin && begin + n <= own.end - own.begin);
  if (n == 0) return;
  switch (kind(index)) {
    case OptimizerStateKind::kFp32:
      std::memcpy(out.data(), fp32(index) + begin, out.size_bytes());
      return;
    case OptimizerStateKind::kBf16:
      kernels::convert(bf16(index) + begin, out.data(), n, 1);
      return;
    case OptimizerStateKind::k8Bit:
      break;
  }
  const uint8_t* from = codes(index);
  const float* scale = scales(index);
  for (int64_t done = 0; done < n;) {
    const int64_t at = begin + done, block = div_floor(at, kStateBlock);
    const int64_t count = std::min(n - done, (block + 1) * kStateBlock - at);
    kernels::dynamic_dequantise(map_, from + at, scale + block, count, kStateBlock, out.data() + done, 1);
    done += count;
  }
}

void MomentBuffer::write(int index, int64_t begin, std::span<const float> values) {
  const auto n = static_cast<int64_t>(values.size());
  const ShardRange own = range(index);
  FIVEFOLD_CHECK(begin % kStateBlock == 0 && begin + n <= own.end - own.begin);
  FIVEFOLD_CHECK(n % kStateBlock == 0 || begin + n == own.end - own.begin);
  if (n == 0) return;
  switch (kind(index)) {
    case OptimizerStateKind::kFp32:
      std::memcpy(fp32(index) + begin, values.data(), values.size_bytes());
      return;
    case OptimizerStateKind::kBf16:
      kernels::convert(values.data(), bf16(index) + begin, n, 1);
      return;
    case OptimizerStateKind::k8Bit:
      kernels::dynamic_quantise(map_, values.data(), n, kStateBlock, codes(index) + begin,
                                scales(index) + div_exact(begin, kStateBlock), 1);
      return;
  }
}

std::vector<float> MomentBuffer::values() const {
  std::vector<float> all(static_cast<size_t>(unit_->shard_numel(policy_.shards)));
  for (size_t p = 0; p < unit_->parameters.size(); ++p) {
    if (!unit_->parameters[p].trained()) continue;
    const ShardRange own = range(static_cast<int>(p));
    const auto count = static_cast<size_t>(own.end - own.begin);
    read(static_cast<int>(p), 0, std::span(all).subspan(static_cast<size_t>(own.shard_offset), count));
  }
  return all;
}

}  // namespace fivefold
