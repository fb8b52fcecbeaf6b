// Primitives: each operation's forward, input gradient and weight gradient on tensors whose memory the caller chose.
// They dispatch on the element type to a kernel, or to ATen for matrix products; none allocates anything but workspace.
// Tensors are contiguous; T tokens, widths as named. `threads` is the rank's.
#pragma once

#include <span>

#include "engine/tensors.h"
#include "spec/model.h"

namespace fivefold::ops {

// out [T, n] = x [T, k] weight [n, k]^T (+ bias [n]) (+ residual [T, n]). Undefined bias or residual: none.
void linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                    at::Tensor& out);
// dx [T, k] = dy [T, n] weight [n, k]. dx may not be dy.
void linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx);
// dweight [n, k] (+)= dy [T, n]^T x [T, k].
void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight, bool accumulate);
// dbias [n] (+)= sum over tokens of dy.
void bias_grad(const at::Tensor& dy, const at::Tensor& dbias, bool accumulate, int threads);

struct NormTensors {
  const NormSpec* spec = nullptr;
  at::Tensor weight, bias;  // bias of LayerNorm, where it has one
  at::Tensor rstd, mean;    // fp32 [T]; mean of LayerNorm
};
enum class NormStatistics : uint8_t { kCompute, kReuse };
// y = norm(x); computes the statistics, or reuses those of an earlier forward.
void norm_forward(const at::Tensor& x, const NormTensors& norm, NormStatistics statistics, at::Tensor& y, int threads);
enum class StreamGradient : uint8_t { kAdd, kOverwrite };
// dx (+)= gradient of x given dy; gradients of weight and bias. dx may be dy under kOverwrite.
void norm_backward(const at::Tensor& x, const NormTensors& norm, const at::Tensor& dy, StreamGradient mode,
                   at::Tensor& dx, const at::Tensor& dweight, const at::Tensor& dbias, bool accumulate, int threads);

struct HeadGeometry {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};
void qk_norm_forward(at::Tensor& qkv, const HeadGeometry& heads, double eps, const at::Tensor& q_weight,
                     const at::Tensor& k_weight, at::Tensor& copy, at::Tensor& rstd, int threads);
void qk_norm_backward(at::Tensor& dqkv, const HeadGeometry& heads, const at::Tensor& q_weight,
                      const at::Tensor& k_weight, const at::Tensor& copy, const at::Tensor& rstd,
                      const at::Tensor& dq_weight, const at::Tensor& dk_weight, bool accumulate, int threads);

enum class RopeTurn : uint8_t { kForward, kBackward };
// In place on the query and key heads. Tables fp32 [positions, rotary_dim / 2]; positions int32 [T].
void rope(at::Tensor& qkv, const HeadGeometry& heads, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& positions, RopeTurn turn, int threads);

void attention_forward(const at::Tensor& qkv, const HeadGeometry& heads, std::span<const int32_t> cu_seqlens,
                       at::Tensor& out, at::Tensor& lse, int threads);
void attention_backward(const at::Tensor& qkv, const HeadGeometry& heads, std::span<const int32_t> cu_seqlens,
                        const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout, at::Tensor& dqkv,
                        int threads);

// act [T, f] = silu(gate) up of gate_up [T, 2f].
void gated_activation_forward(const at::Tensor& gate_up, at::Tensor& act, int threads);
// gate_up becomes its gradient, dact the product act.
void gated_activation_backward(at::Tensor& gate_up, at::Tensor& dact, int threads);
void activation_forward(Activation kind, const at::Tensor& x, at::Tensor& y, int threads);
// x becomes its gradient, dy the output y.
void activation_backward(Activation kind, at::Tensor& x, at::Tensor& dy, int threads);

// x += y, element by element, rounded once.
void add_in_place(at::Tensor& x, const at::Tensor& y);

// Rows of a vocabulary that `weight` holds: [first, first + weight's rows) of `whole`; 0: it holds all of them.
struct TableRows {
  int64_t first = 0, whole = 0;
};
// `positions_weight` undefined: no learned positions.
void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TableRows& table, double scale,
                       const at::Tensor& positions, const at::Tensor& positions_weight, at::Tensor& out, int threads);
void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, const TableRows& table, double scale,
                        const at::Tensor& dweight, bool accumulate, int threads);

// Losses [T'] of a chunk of logits [T', V]. With `scale` above 0 the logits become their gradient times scale.
double cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses, float scale, int threads);

// The same where logits are those of the rows `table` of the vocabulary: statistics fp64 [T', 2] of this rank, then,
// with those of all ranks [n, T', 2], losses and gradient.
void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets, const TableRows& table,
                              const at::Tensor& statistics, int threads);
double split_cross_entropy(at::Tensor& logits, const at::Tensor& targets, const TableRows& table,
                           const at::Tensor& all_statistics, at::Tensor& losses, float scale, int threads);

}  // namespace fivefold::ops
