// What DoRA and dropout add to a linear with an adapter (Notes [DoRA] and [Adapter dropout] in spec/adapter.h).
#include "base/philox.h"
#include "engine/layers/unit_run.h"
#include "kernels/column_scale.h"
#include "kernels/dropout.h"

namespace fivefold {
namespace {

// numbers / lengths, and 0 where a row has none. fp32.
at::Tensor over_lengths(const at::Tensor& numbers, const at::Tensor& lengths) {
  return at::where(lengths.gt(0), numbers / lengths, at::zeros_like(lengths));
}

}  // namespace

void UnitRun::measure_rows(const Operation& op) {
  at::Tensor& lengths = slot(op.adapter.row_lengths);
  ops::row_squares(adapter_weights(op), linear_weight(op), lengths);
  if (op.cut == LinearCut::kRow) context_.tensor->all_reduce(lengths, Purpose::kScales);
  lengths.sqrt_();
}

std::vector<std::pair<int, at::Tensor>> UnitRun::row_lengths() {
  std::vector<std::pair<int, at::Tensor>> all;
  for (const Operation& op : operations_.operations) {
    if (!op.adapter.scales()) continue;
    allocate_slot(op.adapter.row_lengths);
    measure_rows(op);
    all.emplace_back(op.adapter.magnitude, std::move(slot(op.adapter.row_lengths)));
  }
  return all;
}

at::Tensor UnitRun::column_factors(const Operation& op) {
  const at::Tensor& lengths = slot(op.adapter.row_lengths);
  const int64_t width = buffers_.unit().parameters[static_cast<size_t>(op.weight)].rows();
  const at::Tensor factors = allocate(Account::kWorkspace, {width}, DType::kFloat32).fill_(1);
  for (const LowRankAdapter::Piece& piece : op.adapter.pieces) {
    const at::Tensor magnitude = weight(op.adapter.magnitude).narrow(0, piece.b_row, piece.rows).to(at::kFloat);
    factors.narrow(0, piece.output_row, piece.rows)
        .copy_(over_lengths(magnitude, lengths.narrow(0, piece.b_row, piece.rows)));
  }
  return factors;
}

void UnitRun::scale_columns(const Operation& op, const at::Tensor& x, const at::Tensor& bias,
                            const at::Tensor& residual, const at::Tensor& y) {
  const at::Tensor factors = column_factors(op);
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    kernels::scale_columns(kernels::ColumnScale<T>{.x = elements<T>(x),
                                                   .factors = elements<float>(factors),
                                                   .bias = elements<T>(bias),
                                                   .residual = elements<T>(residual),
                                                   .y = elements<T>(y),
                                                   .rows = x.size(0),
                                                   .cols = x.size(1),
                                                   .num_threads = context_.threads});
  });
}

at::Tensor UnitRun::scaled_buffer(const Operation& op) const {
  if (!op.adapter.scales()) return {};
  return allocate(Account::kActivations, {microbatch_.tokens, slot_spec(op.output).width}, context_.compute);
}

const at::Tensor& UnitRun::scaled_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& buffer) {
  if (!buffer.defined()) return dout;
  scale_columns(op, dout, at::Tensor(), at::Tensor(), buffer);
  return buffer;
}

void UnitRun::magnitude_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& input,
                                 at::Tensor& buffer, bool accumulate) {
  if (!buffer.defined()) return;
  adapted_product(op, input, at::Tensor(), at::Tensor(), buffer);
  const at::Tensor& lengths = slot(op.adapter.row_lengths);
  const at::Tensor inverse = over_lengths(at::ones_like(lengths), lengths);
  const at::Tensor gradient = buffers_.weight_grad(op.adapter.magnitude);
  for (const LowRankAdapter::Piece& piece : op.adapter.pieces) {
    const at::Tensor scratch =
        allocate(Account::kWorkspace, {kernels::column_dot_scratch_bytes(dout.size(0), piece.rows)}, DType::kUint8);
    visit_dtype(dout, [&]<class T>(std::type_identity<T>) {
      kernels::column_dot(
          kernels::ColumnDot<T>{.a = elements<T>(dout) + piece.output_row,
                                .b = elements<T>(buffer) + piece.output_row,
                                .rows = dout.size(0),
                                .cols = piece.rows,
                                .stride = dout.size(1),
                                .factors = elements<float>(inverse) + piece.b_row,
                                .target = grad_target(gradient.narrow(0, piece.b_row, piece.rows), accumulate),
                                .scratch = scratch.data_ptr(),
                                .num_threads = context_.threads});
    });
  }
}

bool UnitRun::drops(const Operation& op) const { return op.adapter.dropout > 0 && !microbatch_.token_numbers.empty(); }

void UnitRun::drop(const Operation& op, const at::Tensor& from, const at::Tensor& to, kernels::Accumulate mode) const {
  const std::string& name = buffers_.unit().parameters[static_cast<size_t>(op.weight)].name;
  const kernels::DropoutMask mask{.seed = context_.seed,
                                  .stream = random_stream(name + ".dropout"),
                                  .tokens = microbatch_.token_numbers.data(),
                                  .width = op.adapter.whole_in,
                                  .first_column = op.adapter.first_input,
                                  .probability = op.adapter.dropout};
  visit_dtype(from, [&]<class T>(std::type_identity<T>) {
    kernels::dropout(elements<T>(from), mask, from.size(0), from.size(1), elements<T>(to), mode, context_.threads);
  });
}

at::Tensor UnitRun::adapter_input(const Operation& op, const at::Tensor& input) const {
  if (!drops(op)) return input;
  at::Tensor dropped = allocate(Account::kActivations, input.sizes(), context_.compute);
  drop(op, input, dropped, kernels::Accumulate::kOverwrite);
  return dropped;
}

void UnitRun::add_adapter_input_gradient(const Operation& op, const at::Tensor& du, at::Tensor& dinput) const {
  if (!du.defined()) return;
  if (!drops(op)) return ops::low_rank_input_grad(adapter_weights(op), du, dinput);
  at::Tensor part = allocate(Account::kActivations, dinput.sizes(), context_.compute);
  ops::low_rank_input_part(adapter_weights(op), du, part);
  drop(op, part, dinput, kernels::Accumulate::kAdd);
}

}  // namespace fivefold
