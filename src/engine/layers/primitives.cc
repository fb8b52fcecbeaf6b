#include "engine/layers/primitives.h"

#include <cmath>

#include "engine/ops/attention.h"
#include "engine/ops/matrix_product.h"
#include "kernels/activation.h"
#include "kernels/column_sum.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/rope.h"

namespace fivefold::ops {
namespace {

at::Tensor scratch(int64_t bytes) { return allocate(Account::kWorkspace, {bytes}, DType::kUint8); }

std::span<std::byte> span_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Self-attention of packed documents, over rows of q, k and v together.
AttentionLayout packed_layout(const HeadGeometry& heads, std::span<const AttentionSegment> documents, int64_t rows) {
  return {.segments = documents,
          .q_rows = rows,
          .kv_rows = rows,
          .num_heads = heads.num_heads,
          .num_kv_heads = heads.num_kv_heads,
          .head_dim = heads.head_dim,
          .q_stride = heads.qkv_width(),
          .kv_stride = heads.qkv_width(),
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.head_dim)))};
}

kernels::Activation kernel_activation(Activation kind) {
  switch (kind) {
    case Activation::kSilu:
      return kernels::Activation::kSilu;
    case Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case Activation::kGelu:
      return kernels::Activation::kGeluErf;
    case Activation::kReluSquared:
      return kernels::Activation::kSquaredRelu;
    case Activation::kGptOssSwiglu:
      break;
  }
  FIVEFOLD_CHECK(false, "the validation rules let an activation through that no kernel has");
}

}  // namespace

void linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                    at::Tensor& out) {
  const at::Tensor& start = residual.defined() ? residual : bias;
  matrix_product(x, weight.t(), start, out);
  if (residual.defined() && bias.defined()) at::add_out(out, out, bias);
}

void linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx) {
  matrix_product(dy, weight, at::Tensor(), dx);
}

void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dweight, bool accumulate) {
  matrix_product(dy.t(), x, accumulate ? dweight : at::Tensor(), dweight);
}

void bias_grad(const at::Tensor& dy, const at::Tensor& dbias, bool accumulate, int threads) {
  const int64_t rows = dy.size(0), cols = dy.size(1);
  const at::Tensor partial = scratch(kernels::column_sum_scratch_bytes(rows, cols));
  visit_dtype(dy, [&]<class T>(std::type_identity<T>) {
    kernels::column_sum(elements<T>(dy), rows, cols, grad_target(dbias, accumulate), partial.data_ptr(), threads);
  });
}

void norm_forward(const at::Tensor& x, const NormTensors& norm, NormStatistics statistics, at::Tensor& y, int threads) {
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    const kernels::NormForward<T> args{
        .x = elements<T>(x),
        .weight = elements<T>(norm.weight),
        .bias = elements<T>(norm.bias),
        .y = elements<T>(y),
        .mean = elements<float>(norm.mean),
        .rstd = elements<float>(norm.rstd),
        .rows = x.size(0),
        .cols = x.size(1),
        .eps = static_cast<float>(norm.spec->eps),
        .weight_kind = norm.spec->weight_plus_one ? kernels::NormWeight::kPlusOne : kernels::NormWeight::kPlain,
        .num_threads = threads};
    const bool rms = norm.spec->kind == NormKind::kRms;
    if (statistics == NormStatistics::kCompute) {
      rms ? kernels::rms_norm_forward(args) : kernels::layer_norm_forward(args);
    } else {
      rms ? kernels::rms_norm_reemit(args) : kernels::layer_norm_reemit(args);
    }
  });
}

void norm_backward(const at::Tensor& x, const NormTensors& norm, const at::Tensor& dy, StreamGradient mode,
                   at::Tensor& dx, const at::Tensor& dweight, const at::Tensor& dbias, bool accumulate, int threads) {
  const bool rms = norm.spec->kind == NormKind::kRms;
  const int64_t rows = x.size(0), cols = x.size(1);
  const at::Tensor partial = scratch(rms ? kernels::rms_norm_backward_scratch_bytes(rows, cols)
                                         : kernels::layer_norm_backward_scratch_bytes(rows, cols));
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    kernels::NormBackward<T> args{
        .x = elements<T>(x),
        .weight = elements<T>(norm.weight),
        .mean = elements<float>(norm.mean),
        .rstd = elements<float>(norm.rstd),
        .dy = elements<T>(dy),
        .dx = elements<T>(dx),
        .dx_mode = mode == StreamGradient::kAdd ? kernels::Accumulate::kAdd : kernels::Accumulate::kOverwrite,
        .weight_grad = grad_target(dweight, accumulate),
        .scratch = partial.data_ptr(),
        .rows = rows,
        .cols = cols,
        .weight_kind = norm.spec->weight_plus_one ? kernels::NormWeight::kPlusOne : kernels::NormWeight::kPlain,
        .num_threads = threads};
    if (dbias.defined()) args.bias_grad = grad_target(dbias, accumulate);
    rms ? kernels::rms_norm_backward(args) : kernels::layer_norm_backward(args);
  });
}

void qk_norm_forward(at::Tensor& qkv, const HeadGeometry& heads, double eps, const at::Tensor& q_weight,
                     const at::Tensor& k_weight, at::Tensor& copy, at::Tensor& rstd, int threads) {
  visit_dtype(qkv, [&]<class T>(std::type_identity<T>) {
    kernels::qk_norm_forward(kernels::QkNormForward<T>{.qkv = elements<T>(qkv),
                                                       .q_weight = elements<T>(q_weight),
                                                       .k_weight = elements<T>(k_weight),
                                                       .pre_norm = elements<T>(copy),
                                                       .rstd = elements<float>(rstd),
                                                       .rows = qkv.size(0),
                                                       .row_stride = qkv.size(1),
                                                       .num_q_heads = heads.num_heads,
                                                       .num_kv_heads = heads.num_kv_heads,
                                                       .head_dim = heads.head_dim,
                                                       .eps = static_cast<float>(eps),
                                                       .num_threads = threads});
  });
}

void qk_norm_backward(at::Tensor& dqkv, const HeadGeometry& heads, const at::Tensor& q_weight,
                      const at::Tensor& k_weight, const at::Tensor& copy, const at::Tensor& rstd,
                      const at::Tensor& dq_weight, const at::Tensor& dk_weight, bool accumulate, int threads) {
  const at::Tensor partial = scratch(kernels::qk_norm_backward_scratch_bytes(dqkv.size(0), heads.head_dim));
  visit_dtype(dqkv, [&]<class T>(std::type_identity<T>) {
    kernels::qk_norm_backward(kernels::QkNormBackward<T>{.dqkv = elements<T>(dqkv),
                                                         .q_weight = elements<T>(q_weight),
                                                         .k_weight = elements<T>(k_weight),
                                                         .pre_norm = elements<T>(copy),
                                                         .rstd = elements<float>(rstd),
                                                         .q_weight_grad = grad_target(dq_weight, accumulate),
                                                         .k_weight_grad = grad_target(dk_weight, accumulate),
                                                         .scratch = partial.data_ptr(),
                                                         .rows = dqkv.size(0),
                                                         .row_stride = dqkv.size(1),
                                                         .num_q_heads = heads.num_heads,
                                                         .num_kv_heads = heads.num_kv_heads,
                                                         .head_dim = heads.head_dim,
                                                         .num_threads = threads});
  });
}

void rope(at::Tensor& qkv, const HeadGeometry& heads, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& positions, RopeTurn turn, int threads) {
  visit_dtype(qkv, [&]<class T>(std::type_identity<T>) {
    kernels::rope(kernels::Rope<T>{
        .packed = elements<T>(qkv),
        .cos_table = elements<float>(cos),
        .sin_table = elements<float>(sin),
        .positions = elements<int32_t>(positions),
        .rows = qkv.size(0),
        .row_stride = qkv.size(1),
        .num_heads = heads.num_heads + heads.num_kv_heads,
        .head_dim = heads.head_dim,
        .rotary_dim = 2 * cos.size(1),
        .direction = turn == RopeTurn::kForward ? kernels::RopeDirection::kForward : kernels::RopeDirection::kBackward,
        .num_threads = threads});
  });
}

void attention_forward(const at::Tensor& qkv, const HeadGeometry& heads, std::span<const int32_t> cu_seqlens,
                       at::Tensor& out, at::Tensor& lse, int threads) {
  const std::vector<AttentionSegment> documents = packed_segments(cu_seqlens);
  const AttentionLayout layout = packed_layout(heads, documents, cu_seqlens.back());
  const at::Tensor work = scratch(attention_forward_scratch_bytes(layout.shape(), threads));
  visit_dtype(qkv, [&]<class T>(std::type_identity<T>) {
    attention_forward<T>(layout, packed_inputs(layout, elements<T>(qkv)),
                         {.data = out.data_ptr(), .type = element_type(out)}, elements<float>(lse), span_of(work));
  });
}

void attention_backward(const at::Tensor& qkv, const HeadGeometry& heads, std::span<const int32_t> cu_seqlens,
                        const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout, at::Tensor& dqkv,
                        int threads) {
  const std::vector<AttentionSegment> documents = packed_segments(cu_seqlens);
  const AttentionLayout layout = packed_layout(heads, documents, cu_seqlens.back());
  const at::Tensor work = scratch(attention_backward_scratch_bytes(layout.shape(), threads));
  visit_dtype(qkv, [&]<class T>(std::type_identity<T>) {
    attention_backward<T>(layout, packed_inputs(layout, elements<T>(qkv)), elements<T>(out), elements<float>(lse),
                          elements<T>(dout), packed_gradients(layout, elements<T>(dqkv)), span_of(work));
  });
}

void gated_activation_forward(const at::Tensor& gate_up, at::Tensor& act, int threads) {
  visit_dtype(gate_up, [&]<class T>(std::type_identity<T>) {
    kernels::swiglu_forward(elements<T>(gate_up), elements<T>(act), act.size(0), act.size(1), threads);
  });
}

void gated_activation_backward(at::Tensor& gate_up, at::Tensor& dact, int threads) {
  visit_dtype(gate_up, [&]<class T>(std::type_identity<T>) {
    kernels::swiglu_backward(elements<T>(gate_up), elements<T>(dact), dact.size(0), dact.size(1), threads);
  });
}

void activation_forward(Activation kind, const at::Tensor& x, at::Tensor& y, int threads) {
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    kernels::activation_forward(kernel_activation(kind), elements<T>(x), elements<T>(y), x.numel(), threads);
  });
}

void activation_backward(Activation kind, at::Tensor& x, at::Tensor& dy, int threads) {
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    kernels::activation_backward(kernel_activation(kind), elements<T>(x), elements<T>(dy), x.numel(), threads);
  });
}

void add_in_place(at::Tensor& x, const at::Tensor& y) { at::add_out(x, x, y); }

void embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const TableRows& table, double scale,
                       const at::Tensor& positions, const at::Tensor& positions_weight, at::Tensor& out, int threads) {
  visit_dtype(out, [&]<class T>(std::type_identity<T>) {
    kernels::embedding_forward(
        kernels::EmbeddingForward<T>{.table = elements<T>(weight),
                                     .ids = elements<int32_t>(ids),
                                     .table_rows = weight.size(0),
                                     .first_id = table.first,
                                     .whole_rows = table.whole,
                                     .position_table = elements<T>(positions_weight),
                                     .positions = elements<int32_t>(positions),
                                     .position_rows = positions_weight.defined() ? positions_weight.size(0) : 0,
                                     .out = elements<T>(out),
                                     .rows = out.size(0),
                                     .cols = out.size(1),
                                     .scale = static_cast<float>(scale),
                                     .num_threads = threads});
  });
}

void embedding_backward(const at::Tensor& ids, const at::Tensor& dout, const TableRows& table, double scale,
                        const at::Tensor& dweight, bool accumulate, int threads) {
  const at::Tensor work = scratch(kernels::embedding_backward_scratch_bytes(dout.size(0), dweight.size(0)));
  visit_dtype(dout, [&]<class T>(std::type_identity<T>) {
    kernels::embedding_backward(kernels::EmbeddingBackward<T>{.dout = elements<T>(dout),
                                                              .ids = elements<int32_t>(ids),
                                                              .table_grad = grad_target(dweight, accumulate),
                                                              .table_rows = dweight.size(0),
                                                              .first_id = table.first,
                                                              .whole_rows = table.whole,
                                                              .rows = dout.size(0),
                                                              .cols = dout.size(1),
                                                              .scale = static_cast<float>(scale),
                                                              .scratch = work.data_ptr(),
                                                              .num_threads = threads});
  });
}

namespace {

template <class T>
kernels::CrossEntropy<T> cross_entropy_args(const at::Tensor& logits, const at::Tensor& targets,
                                            const at::Tensor& losses, int threads) {
  return {.logits = elements<T>(logits),
          .targets = elements<int32_t>(targets),
          .losses = elements<float>(losses),
          .rows = logits.size(0),
          .vocab = logits.size(1),
          .row_stride = logits.size(1),
          .num_threads = threads};
}

kernels::RowStatistics* row_statistics(const at::Tensor& statistics) {
  static_assert(sizeof(kernels::RowStatistics) == 2 * sizeof(double));
  return reinterpret_cast<kernels::RowStatistics*>(elements<double>(statistics));
}

}  // namespace

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets, const TableRows& table,
                              const at::Tensor& statistics, int threads) {
  visit_dtype(logits, [&]<class T>(std::type_identity<T>) {
    kernels::cross_entropy_statistics(
        cross_entropy_args<T>(logits, targets, at::Tensor(), threads),
        {.first = table.first, .whole = table.whole, .own = row_statistics(statistics), .all = nullptr});
  });
}

double split_cross_entropy(at::Tensor& logits, const at::Tensor& targets, const TableRows& table,
                           const at::Tensor& all_statistics, at::Tensor& losses, float scale, int threads) {
  visit_dtype(logits, [&]<class T>(std::type_identity<T>) {
    const auto args = cross_entropy_args<T>(logits, targets, losses, threads);
    const kernels::SplitVocabulary split{.first = table.first,
                                         .whole = table.whole,
                                         .ranks = static_cast<int>(all_statistics.size(0)),
                                         .own = nullptr,
                                         .all = row_statistics(all_statistics)};
    scale > 0 ? kernels::split_cross_entropy_forward_backward(args, split, scale)
              : kernels::split_cross_entropy_forward(args, split);
  });
  return kernels::sum_losses(elements<float>(losses), logits.size(0));
}

double cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses, float scale, int threads) {
  visit_dtype(logits, [&]<class T>(std::type_identity<T>) {
    const auto args = cross_entropy_args<T>(logits, targets, losses, threads);
    scale > 0 ? kernels::cross_entropy_forward_backward(args, scale) : kernels::cross_entropy_forward(args);
  });
  return kernels::sum_losses(elements<float>(losses), logits.size(0));
}

}  // namespace fivefold::ops
