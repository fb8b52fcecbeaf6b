#include "engine/layers/context_parallel.h"

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "engine/layers/tensor_parallel.h"
#include "engine/ops/attention.h"

namespace fivefold {
namespace {

constexpr Account kExchanged = Account::kCommBuffers;

// KV heads of each of c ranks under Ulysses: k / c, or one of those that several ranks share.
int64_t kv_heads_per_rank(int64_t num_kv_heads, int64_t degree) {
  return num_kv_heads >= degree ? div_exact(num_kv_heads, degree) : 1;
}

ops::HeadGeometry heads_per_rank(const ops::HeadGeometry& heads, int64_t degree) {
  return {div_exact(heads.num_heads, degree), kv_heads_per_rank(heads.num_kv_heads, degree), heads.head_dim};
}

// First KV head that rank `rank` of Ulysses works with.
int64_t first_kv_head(const ops::HeadGeometry& heads, int64_t degree, int64_t rank) {
  return div_floor(rank * heads.num_kv_heads, degree);
}

}  // namespace

struct ContextParallel::Call {
  const at::Tensor& qkv;
  const ops::HeadGeometry& heads;
  const ContextSegments& segments;
  int64_t tokens;
  DType compute;
  int threads;

  int64_t q_width() const { return heads.num_heads * heads.head_dim; }
  int64_t kv_width() const { return 2 * heads.num_kv_heads * heads.head_dim; }
  at::Tensor keys_and_values() const { return qkv.narrow(1, q_width(), kv_width()); }

  // Queries of this rank's packed rows, keys and values of `kv_rows` packed rows [rows, 2 k d].
  ops::AttentionLayout layout(std::span<const AttentionSegment> list, int64_t kv_rows) const {
    return {.segments = list,
            .q_rows = tokens,
            .kv_rows = kv_rows,
            .num_heads = heads.num_heads,
            .num_kv_heads = heads.num_kv_heads,
            .head_dim = heads.head_dim,
            .q_stride = heads.qkv_width(),
            .kv_stride = kv_width(),
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.head_dim)))};
  }
};

namespace {

at::Tensor scratch(int64_t bytes) { return allocate(Account::kWorkspace, {bytes}, DType::kUint8); }
std::span<std::byte> span_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void run_forward(const ops::AttentionLayout& layout, const at::Tensor& q, const at::Tensor& kv,
                 const at::Tensor& output, ops::AttentionOutput::Mode mode, at::Tensor& lse, int threads) {
  const at::Tensor work = scratch(ops::attention_forward_scratch_bytes(layout.shape(), threads));
  visit_dtype(q, [&]<class T>(std::type_identity<T>) {
    const T* keys = elements<T>(kv);
    ops::attention_forward<T>(layout, {elements<T>(q), keys, keys + layout.num_kv_heads * layout.head_dim},
                              {.data = output.data_ptr(), .type = element_type(output), .mode = mode},
                              elements<float>(lse), span_of(work));
  });
}

// Gradients of keys and values in packed rows [rows, 2 k d].
void run_backward(const ops::AttentionLayout& layout, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const ops::AttentionGradient& dq,
                  const at::Tensor& dkv, kernels::Accumulate mode, int threads) {
  const at::Tensor work = scratch(ops::attention_backward_scratch_bytes(layout.shape(), threads));
  const int64_t half = layout.num_kv_heads * layout.head_dim;
  const auto gradient = [&](int64_t first) {
    return ops::AttentionGradient{.data = static_cast<std::byte*>(dkv.data_ptr()) + first * dkv.element_size(),
                                  .type = element_type(dkv),
                                  .stride = dkv.size(1),
                                  .mode = mode};
  };
  visit_dtype(q, [&]<class T>(std::type_identity<T>) {
    const T* keys = elements<T>(kv);
    ops::attention_backward<T>(layout, {elements<T>(q), keys, keys + half}, elements<T>(out), elements<float>(lse),
                               elements<T>(dout), {dq, gradient(0), gradient(half)}, span_of(work));
  });
}

}  // namespace

void ContextParallel::forward(const at::Tensor& qkv, const ops::HeadGeometry& heads, const ContextSegments& segments,
                              at::Tensor& out, at::Tensor& lse, const Kept& kept, RebuildPart part, int threads) const {
  // qkv or out: each may be gone where Ulysses does not touch it.
  const at::Tensor& rows = part == RebuildPart::kAfterExchange ? out : qkv;
  const Call call{qkv, heads, segments, rows.size(0), dtype_of(rows), threads};
  switch (kind_) {
    case CpKind::kRing:
      return forward_ring(call, out, lse);
    case CpKind::kAllGather:
      return forward_gathered(call, out, lse);
    case CpKind::kUlysses:
      if (part != RebuildPart::kAfterExchange) exchange_ulysses(call, kept);
      if (part != RebuildPart::kExchange) forward_ulysses(call, out, lse, kept);
      return;
  }
}

void ContextParallel::backward(const at::Tensor& qkv, const ops::HeadGeometry& heads, const ContextSegments& segments,
                               const at::Tensor& out, const at::Tensor& lse, const Kept& kept, const at::Tensor& dout,
                               at::Tensor& dqkv, int threads) const {
  const Call call{qkv, heads, segments, dqkv.size(0), dtype_of(dqkv), threads};
  switch (kind_) {
    case CpKind::kRing:
      return backward_ring(call, out, lse, dout, dqkv);
    case CpKind::kAllGather:
      return backward_gathered(call, out, lse, dout, dqkv);
    case CpKind::kUlysses:
      return backward_ulysses(call, lse, kept, dout, dqkv);
  }
}

Work ContextParallel::pass_on(const std::vector<Passed>& passed) const {
  const int next = (rank() + 1) % degree(), before = (rank() + degree() - 1) % degree();
  std::vector<PeerTransfer> transfers;
  for (const auto& [from, to, purpose] : passed) {
    transfers.push_back(
        {.kind = CollectiveKind::kSend, .buffer = as_buffer(from, dtype_of(from)), .peer = next, .purpose = purpose});
    transfers.push_back(
        {.kind = CollectiveKind::kRecv, .buffer = as_buffer(to, dtype_of(to)), .peer = before, .purpose = purpose});
  }
  return communicator_.batch_send_recv(group_, transfers, passed.front().purpose,
                                       {.mode = Mode::kAsync, .stream = {}, .keep_alive = {}});
}

void ContextParallel::share_largest(std::vector<float>& numbers) const {
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(float));
  communicator_.all_reduce(group_, {numbers.data(), bytes, DType::kFloat32, {}}, Reduction::kMax, Purpose::kScales);
}

void ContextParallel::exchange(const at::Tensor& from, const at::Tensor& to, Purpose purpose) const {
  communicator_.all_to_all(group_, as_buffer(from, dtype_of(from)), as_buffer(to, dtype_of(to)), purpose);
}

void ContextParallel::forward_ring(const Call& call, at::Tensor& out, at::Tensor& lse) const {
  const at::Tensor sum = allocate(kExchanged, {call.tokens, call.q_width()}, DType::kFloat32);
  at::Tensor blocks[2];
  for (at::Tensor& block : blocks) block = allocate(kExchanged, {call.tokens, call.kv_width()}, call.compute);
  blocks[0].copy_(call.keys_and_values());
  for (int step = 0; step < degree(); ++step) {
    const at::Tensor &block = blocks[step % 2], &next = blocks[(step + 1) % 2];
    PendingWork passing;
    if (step + 1 < degree()) passing = PendingWork(pass_on({{block, next, Purpose::kActivations}}));
    const int owner = (rank() + degree() - step) % degree();
    run_forward(call.layout(call.segments.ring[static_cast<size_t>(owner)], call.tokens), call.qkv, block, sum,
                step == 0 ? ops::AttentionOutput::Mode::kOverwrite : ops::AttentionOutput::Mode::kMerge, lse,
                call.threads);
    passing.wait();
  }
  out.copy_(sum);
}

// While a step computes, the next block comes in, and so does the sum of the others' gradients of the present one.
void ContextParallel::backward_ring(const Call& call, const at::Tensor& out, const at::Tensor& lse,
                                    const at::Tensor& dout, at::Tensor& dqkv) const {
  const at::Tensor dq = allocate(kExchanged, {call.tokens, call.q_width()}, DType::kFloat32);
  at::Tensor blocks[2], gradients[3];  // of the gradients the last one is what comes in
  for (at::Tensor& block : blocks) block = allocate(kExchanged, {call.tokens, call.kv_width()}, call.compute);
  for (at::Tensor& block : gradients) block = allocate(kExchanged, {call.tokens, call.kv_width()}, DType::kFloat32);
  blocks[0].copy_(call.keys_and_values());
  for (int step = 0; step < degree(); ++step) {
    const at::Tensor &block = blocks[step % 2], &gradient = gradients[step % 2];
    std::vector<Passed> passed;
    if (step + 1 < degree()) passed.push_back({block, blocks[(step + 1) % 2], Purpose::kActivations});
    if (step > 0) passed.push_back({gradients[(step + 1) % 2], gradients[2], Purpose::kActivationGradients});
    PendingWork passing(pass_on(passed));
    const int owner = (rank() + degree() - step) % degree();
    run_backward(call.layout(call.segments.ring[static_cast<size_t>(owner)], call.tokens), call.qkv, block, out, lse,
                 dout,
                 {.data = dq.data_ptr(),
                  .type = kernels::ElementType::kFloat32,
                  .stride = call.q_width(),
                  .mode = step == 0 ? kernels::Accumulate::kOverwrite : kernels::Accumulate::kAdd},
                 gradient, kernels::Accumulate::kOverwrite, call.threads);
    passing.wait();
    if (step > 0) gradient.add_(gradients[2]);
  }
  // After the last step the sum goes home to its block's owner.
  pass_on({{gradients[(degree() - 1) % 2], gradients[2], Purpose::kActivationGradients}}).wait_host();
  dqkv.narrow(1, 0, call.q_width()).copy_(dq);
  dqkv.narrow(1, call.q_width(), call.kv_width()).copy_(gradients[2]);
}

void ContextParallel::forward_gathered(const Call& call, at::Tensor& out, at::Tensor& lse) const {
  const int64_t rows = call.tokens * degree();
  const at::Tensor all = allocate(kExchanged, {rows, call.kv_width()}, call.compute);
  at::Tensor own = all.narrow(0, call.tokens * rank(), call.tokens);
  own.copy_(call.keys_and_values());
  communicator_.all_gather(group_, as_buffer(own, call.compute), as_buffer(all, call.compute), Purpose::kActivations);
  ops::AttentionLayout layout = call.layout(call.segments.gathered, rows);
  layout.kv_chunks = call.segments.chunks;
  layout.kv_chunk_rows = call.segments.chunk_rows;
  run_forward(layout, call.qkv, all, out, ops::AttentionOutput::Mode::kOverwrite, lse, call.threads);
}

void ContextParallel::backward_gathered(const Call& call, const at::Tensor& out, const at::Tensor& lse,
                                        const at::Tensor& dout, at::Tensor& dqkv) const {
  const int64_t rows = call.tokens * degree();
  const at::Tensor all = allocate(kExchanged, {rows, call.kv_width()}, call.compute);
  at::Tensor own = all.narrow(0, call.tokens * rank(), call.tokens);
  own.copy_(call.keys_and_values());
  communicator_.all_gather(group_, as_buffer(own, call.compute), as_buffer(all, call.compute), Purpose::kActivations);
  const at::Tensor gradient = allocate(kExchanged, {rows, call.kv_width()}, call.compute);
  ops::AttentionLayout layout = call.layout(call.segments.gathered, rows);
  layout.kv_chunks = call.segments.chunks;
  layout.kv_chunk_rows = call.segments.chunk_rows;
  run_backward(layout, call.qkv, all, out, lse, dout,
               {.data = dqkv.data_ptr(), .type = element_type(dqkv), .stride = dqkv.size(1)}, gradient,
               kernels::Accumulate::kOverwrite, call.threads);
  const at::Tensor own_gradient = gradient.narrow(0, call.tokens * rank(), call.tokens);
  communicator_.reduce_scatter(group_, as_buffer(gradient, call.compute), as_buffer(own_gradient, call.compute),
                               Reduction::kSum, Purpose::kActivationGradients);
  dqkv.narrow(1, call.q_width(), call.kv_width()).copy_(own_gradient);
}

namespace {

// Rows of all tokens, packed q, k and v of one rank's heads: self-attention over the whole sequence, in rank order.
ops::AttentionLayout heads_layout(const ops::HeadGeometry& heads, const ContextSegments& segments, int64_t rows) {
  return {.segments = segments.all,
          .q_rows = rows,
          .kv_rows = rows,
          .num_heads = heads.num_heads,
          .num_kv_heads = heads.num_kv_heads,
          .head_dim = heads.head_dim,
          .q_stride = heads.qkv_width(),
          .kv_stride = heads.qkv_width(),
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.head_dim))),
          .kv_chunks = segments.chunks,
          .kv_chunk_rows = segments.chunk_rows};
}

}  // namespace

void ContextParallel::exchange_ulysses(const Call& call, const Kept& kept) const {
  const int64_t c = degree(), d = call.heads.head_dim;
  const ops::HeadGeometry own = heads_per_rank(call.heads, c);
  const int64_t q = own.num_heads * d, kv = own.num_kv_heads * d, keys = call.q_width(),
                values = keys + call.kv_width() / 2;
  const at::Tensor packed = allocate(kExchanged, {c, call.tokens, own.qkv_width()}, call.compute);
  for (int64_t peer = 0; peer < c; ++peer) {
    const at::Tensor to = packed.select(0, peer);
    const int64_t first = first_kv_head(call.heads, c, peer) * d;
    to.narrow(1, 0, q).copy_(call.qkv.narrow(1, peer * q, q));
    to.narrow(1, q, kv).copy_(call.qkv.narrow(1, keys + first, kv));
    to.narrow(1, q + kv, kv).copy_(call.qkv.narrow(1, values + first, kv));
  }
  exchange(packed, kept.qkv, Purpose::kActivations);
}

void ContextParallel::forward_ulysses(const Call& call, at::Tensor& out, at::Tensor& lse, const Kept& kept) const {
  const int64_t c = degree(), rows = call.tokens * c;
  const ops::HeadGeometry own = heads_per_rank(call.heads, c);
  const int64_t q = own.num_heads * own.head_dim;
  const ops::AttentionLayout layout = heads_layout(own, call.segments, rows);
  const at::Tensor work = scratch(ops::attention_forward_scratch_bytes(layout.shape(), call.threads));
  visit_dtype(kept.qkv, [&]<class T>(std::type_identity<T>) {
    ops::attention_forward<T>(layout, ops::packed_inputs(layout, elements<T>(kept.qkv)),
                              {.data = kept.out.data_ptr(), .type = element_type(kept.out)}, elements<float>(lse),
                              span_of(work));
  });
  const at::Tensor received = allocate(kExchanged, {c, call.tokens, q}, call.compute);
  exchange(kept.out, received, Purpose::kActivations);
  for (int64_t peer = 0; peer < c; ++peer) out.narrow(1, peer * q, q).copy_(received.select(0, peer));
}

void ContextParallel::backward_ulysses(const Call& call, const at::Tensor& lse, const Kept& kept,
                                       const at::Tensor& dout, at::Tensor& dqkv) const {
  const int64_t c = degree(), d = call.heads.head_dim, rows = call.tokens * c;
  const ops::HeadGeometry own = heads_per_rank(call.heads, c);
  const int64_t q = own.num_heads * d, kv = own.num_kv_heads * d, keys = call.q_width(),
                values = keys + call.kv_width() / 2;
  const at::Tensor dheads = allocate(kExchanged, {rows, q}, call.compute);
  {
    const at::Tensor packed = allocate(kExchanged, {c, call.tokens, q}, call.compute);
    for (int64_t peer = 0; peer < c; ++peer) packed.select(0, peer).copy_(dout.narrow(1, peer * q, q));
    exchange(packed, dheads, Purpose::kActivationGradients);
  }
  const at::Tensor gradient = allocate(kExchanged, {rows, own.qkv_width()}, call.compute);
  const ops::AttentionLayout layout = heads_layout(own, call.segments, rows);
  const at::Tensor work = scratch(ops::attention_backward_scratch_bytes(layout.shape(), call.threads));
  visit_dtype(kept.qkv, [&]<class T>(std::type_identity<T>) {
    ops::attention_backward<T>(layout, ops::packed_inputs(layout, elements<T>(kept.qkv)), elements<T>(kept.out),
                               elements<float>(lse), elements<T>(dheads),
                               ops::packed_gradients(layout, elements<T>(gradient)), span_of(work));
  });
  const at::Tensor received = allocate(kExchanged, {c, call.tokens, own.qkv_width()}, call.compute);
  exchange(gradient, received, Purpose::kActivationGradients);
  // Ranks that share a KV head each bring a part of its gradient, in rank order.
  for (int64_t peer = 0; peer < c; ++peer) {
    const at::Tensor from = received.select(0, peer);
    const int64_t head = first_kv_head(call.heads, c, peer), first = head * d;
    const bool adds = peer > 0 && first_kv_head(call.heads, c, peer - 1) == head;
    dqkv.narrow(1, peer * q, q).copy_(from.narrow(1, 0, q));
    for (const auto& [to, part] : {std::pair{keys + first, q}, std::pair{values + first, q + kv}}) {
      at::Tensor target = dqkv.narrow(1, to, kv);
      adds ? target.add_(from.narrow(1, part, kv)) : target.copy_(from.narrow(1, part, kv));
    }
  }
}

}  // namespace fivefold
