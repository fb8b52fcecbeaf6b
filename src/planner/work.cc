#include "planner/work.h"

#include <algorithm>
#include <numeric>

#include "spec/model_count.h"

namespace fivefold {
namespace {

// DoRA's product that is made again, with the adapter's part, and its sum with the output's gradient.
void magnitude_gradient(const Operation& op, const ParameterEntry& weight, int64_t tokens, int64_t element,
                        OperationWork& work) {
  work.gemms.push_back({tokens, weight.rows(), weight.cols()});
  work.gemms.push_back({tokens, op.adapter.width(), weight.cols()});
  for (const LowRankAdapter::Piece& piece : op.adapter.pieces)
    work.gemms.push_back({tokens, piece.rows, op.adapter.rank});
  work.bytes += 3 * static_cast<double>(tokens * weight.rows() * element);
}

class WorkCounter {
 public:
  WorkCounter(const ModelSpec& model, const Unit& unit, const UnitOperations& operations, const WorkShape& shape)
      : model_(model), unit_(unit), operations_(operations), shape_(shape), element_(dtype_bytes(shape.compute)) {}

  OperationWork work(const Operation& op, Pass pass) const {
    const bool backward = pass == Pass::kBackward;
    OperationWork work;
    switch (op.kind) {
      case OperationKind::kLinear:
        return linear(op, backward);
      case OperationKind::kAttention:
        return attention(op, backward);
      case OperationKind::kLoss:
        return loss(op, backward);
      case OperationKind::kBlock:
        return block(op, backward);
      case OperationKind::kEmbedding:
        // Forward: a row read, a row written. Backward: the gradient and the rows' gradients read and written; of an
        // untied table every row is written, most of them with zeros.
        work.bytes = slot_bytes(op.output) * (backward ? 3 : 2);
        if (backward && !model_.tied_embeddings)
          work.bytes += static_cast<double>(unit_.parameters[static_cast<size_t>(op.weight)].numel() * element_);
        return work;
      case OperationKind::kNorm:
        // Forward: read, write. Backward: input and gradient read twice (sums, then values), stream read and written;
        // the head's norm has no slot of its own for the output.
        work.bytes = slot_bytes(op.input) * (backward ? 6 : 2);
        return work;
      case OperationKind::kQkNorm:
        work.bytes = slot_bytes(op.extra[0]) * (backward ? 4 : 3);
        return work;
      case OperationKind::kRope:
        work.bytes = 2 * slot_bytes(op.input);
        return work;
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
        // Forward: input read, product written. Backward: both read and written, gradients and values in exchange.
        work.bytes = (slot_bytes(op.input) + slot_bytes(op.output)) * (backward ? 2 : 1);
        return work;
      case OperationKind::kAddNorm:
        work.bytes = slot_bytes(op.output) * (backward ? 6 : 3);
        return work;
    }
    FIVEFOLD_CHECK(false);
  }

 private:
  double slot_bytes(int slot) const {
    const Slot& s = operations_.slots[static_cast<size_t>(slot)];
    const int64_t tokens = s.per_feature ? 1 : s.split_by_tp ? shape_.tokens : shape_.tokens / shape_.sequence_parts;
    return static_cast<double>(tokens) * static_cast<double>(s.width) * static_cast<double>(s.fp32 ? 4 : element_);
  }

  OperationWork linear(const Operation& op, bool backward) const {
    const ParameterEntry& weight = unit_.parameters[static_cast<size_t>(op.weight)];
    const int64_t t = shape_.tokens, out = weight.rows(), in = weight.cols();
    OperationWork work;
    if (backward) {
      work.gemms = {{t, in, out}};
      if (op.trains) work.gemms.push_back({out, in, t});
    } else {
      work.gemms = {{t, out, in}};
    }
    if (op.residual >= 0 && !backward) work.bytes = 2 * slot_bytes(op.output);
    if (op.bias >= 0) work.bytes += slot_bytes(op.output);
    // Codes read, the weight written, then read by the product.
    if (op.four_bit) work.bytes += static_cast<double>(op.weight_numel) * (0.53 + static_cast<double>(element_));
    if (op.adapter.exists()) low_rank(op, in, backward, work);
    if (op.adapter.scales()) scaling(op, weight, backward, work);
    return work;
  }

  // DoRA. Forward measures the rows, W + scale B A in fp32, and scales the output; backward scales its gradient, makes
  // the product again and takes the two tensors' sums.
  void scaling(const Operation& op, const ParameterEntry& weight, bool backward, OperationWork& work) const {
    const double output = static_cast<double>(shape_.tokens * weight.rows() * element_);
    if (backward) {
      magnitude_gradient(op, weight, shape_.tokens, element_, work);
      work.bytes += 2 * output;
      return;
    }
    work.bytes += 2 * output + static_cast<double>(op.weight_numel) * (static_cast<double>(element_) + 3 * 4);
    for (const LowRankAdapter::Piece& piece : op.adapter.pieces)
      work.gemms.push_back({piece.rows, weight.cols(), op.adapter.rank});
  }

  // Forward u = x A^T and y += u B^T, which passes over y; backward also u's gradient, the input's, and those of A and
  // B.
  void low_rank(const Operation& op, int64_t in, bool backward, OperationWork& work) const {
    const int64_t t = shape_.tokens, width = op.adapter.width();
    const auto token = static_cast<double>(t * element_);
    work.gemms.push_back({t, width, in});
    int64_t out = 0;
    for (const LowRankAdapter::Piece& piece : op.adapter.pieces) {
      work.gemms.push_back({t, piece.rows, op.adapter.rank});
      if (backward) work.gemms.push_back({piece.rows, op.adapter.rank, t});
      out += piece.rows;
    }
    work.bytes += token * static_cast<double>(backward ? 2 * in : 2 * out);
    // The dropped input written and read, and backward its gradient too.
    if (op.adapter.dropout > 0) work.bytes += token * static_cast<double>((backward ? 5 : 3) * in);
    if (!backward) return;
    work.gemms.push_back({width, in, t});
    work.gemms.push_back({t, in, width});
  }

  // Two products forward, five backward (scores are computed again), each a d wide over the pairs that the mask leaves.
  OperationWork attention(const Operation& op, bool backward) const {
    const MixerSpec& mixer = model_.layers[static_cast<size_t>(unit_.layer)].mixer;
    const auto s = static_cast<double>(shape_.sequence);
    const double window = mixer.window > 0 ? std::min<double>(s, static_cast<double>(mixer.window)) : s;
    const double pairs = static_cast<double>(shape_.tokens) * window * (1 - window / (2 * s));
    OperationWork work;
    work.flops = (backward ? 5 : 2) * 2.0 * pairs * static_cast<double>(mixer.num_heads * mixer.head_dim);
    work.bytes = (slot_bytes(op.input) + slot_bytes(op.output)) * (backward ? 2 : 1);
    return work;
  }

  // Logits forward; backward the gradients of input and matrix. Cross-entropy reads and writes the logits.
  OperationWork loss(const Operation& op, bool backward) const {
    const int64_t t = shape_.tokens, h = model_.hidden;
    const int64_t v = operations_.slots[static_cast<size_t>(op.output)].width;
    OperationWork work;
    work.gemms = {{t, v, h}};
    work.bytes = slot_bytes(op.output);
    if (backward) {
      work.gemms.push_back({t, h, v});
      if (!model_.adapter) work.gemms.push_back({v, h, t});
      work.bytes *= 3;
    }
    return work;
  }

  // The unit's matrices that no other operation names; of experts those that a token is sent to.
  OperationWork block(const Operation& op, bool backward) const {
    const LayerSpec& layer = model_.layers[static_cast<size_t>(unit_.layer)];
    const bool moe = op.name == "moe";
    double elements = 0;
    for (int i = 0; i < static_cast<int>(unit_.parameters.size()); ++i) {
      const ParameterEntry& parameter = unit_.parameters[static_cast<size_t>(i)];
      const bool named = std::any_of(operations_.operations.begin(), operations_.operations.end(),
                                     [i](const Operation& other) { return other.weight == i || other.weight2 == i; });
      const bool of_moe = parameter.expert || parameter.name.find("router") != std::string::npos ||
                          parameter.name.find("shared") != std::string::npos;
      if (named || parameter.decay != DecayClass::kMatrix || of_moe != moe) continue;
      double share = 1;
      if (parameter.expert)
        share = static_cast<double>(layer.mlp.experts_per_token) / static_cast<double>(layer.mlp.num_experts);
      elements += share * static_cast<double>(parameter.numel());
    }
    OperationWork work;
    work.flops = (backward ? 4 : 2) * static_cast<double>(shape_.tokens) * elements;
    work.bytes = 2 * slot_bytes(op.output);
    return work;
  }

  const ModelSpec& model_;
  const Unit& unit_;
  const UnitOperations& operations_;
  const WorkShape& shape_;
  int64_t element_;
};

// Width that a layer's attention multiplies with each visible token, over scores and values.
double attention_width(const MixerSpec& mixer) {
  if (mixer.kind == MixerKind::kAttention) return static_cast<double>(mixer.num_heads * mixer.head_dim);
  if (mixer.kind == MixerKind::kLatentAttention)
    return static_cast<double>(mixer.num_heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)) /
           2;
  return 0;
}

}  // namespace

OperationWork weight_gradient_work(const Unit& unit, const Operation& op, const WorkShape& shape) {
  OperationWork work;
  const ParameterEntry& weight = unit.parameters[static_cast<size_t>(op.weight)];
  const int64_t t = shape.tokens, in = weight.cols(), width = op.adapter.width();
  if (op.trains) work.gemms.push_back({weight.rows(), in, t});
  if (!op.adapter.exists()) return work;
  work.gemms.push_back({t, width, in});
  work.gemms.push_back({width, in, t});
  for (const LowRankAdapter::Piece& piece : op.adapter.pieces) work.gemms.push_back({piece.rows, op.adapter.rank, t});
  if (op.adapter.scales()) magnitude_gradient(op, weight, t, dtype_bytes(shape.compute), work);
  return work;
}

double OperationWork::total_flops() const {
  double sum = flops;
  for (const Gemm& gemm : gemms) sum += gemm.flops();
  return sum;
}

OperationWork operation_work(const ModelSpec& model, const Unit& unit, const UnitOperations& operations, int operation,
                             Pass pass, const WorkShape& shape) {
  return WorkCounter(model, unit, operations, shape).work(operations.operations[static_cast<size_t>(operation)], pass);
}

int64_t multiplied_parameters(const ModelSpec& model) {
  int64_t count = count_active_parameters(model) - count_embedding_parameters(model);
  if (model.tied_embeddings) count += model.vocab * model.hidden;
  return count;
}

double flops_per_token(const ModelSpec& model, const Inventory& inventory) {
  const auto multiplied = static_cast<double>(multiplied_parameters(model));
  if (!model.adapter) return 6.0 * multiplied;
  return 4.0 * multiplied + 6.0 * static_cast<double>(inventory.num_trained());
}

TokenFlops model_flops_per_token(const ModelSpec& model, int64_t sequence) {
  const double matrices = 6.0 * static_cast<double>(multiplied_parameters(model));
  TokenFlops flops{.causal = matrices, .full = matrices};
  const auto s = static_cast<double>(sequence);
  for (const LayerSpec& layer : model.layers) {
    const double visible = layer.mixer.window > 0 ? std::min(s, static_cast<double>(layer.mixer.window)) : s;
    const double full = 12.0 * attention_width(layer.mixer) * visible;
    flops.full += full;
    flops.causal += full * (1 - visible / (2 * s));
  }
  return flops;
}

// A moment in 8 bits is 2.03 bytes read and written, but its step is bound by the look-up of codes: it takes as long as
// a stream of about this many bytes.
constexpr double k8BitMomentBytes = 18;

double optimizer_bytes_per_element(const ShardingPolicy& policy, OptimizerStates states) {
  const double moments = states == OptimizerStates::kMoment1And2 ? 2 : states == OptimizerStates::kMoment1 ? 1 : 0;
  const auto working = static_cast<double>(dtype_bytes(policy.compute));
  const double weights = policy.has_master() ? 8 + working : 2 * working;
  const double moment = policy.moments == OptimizerStateKind::kFp32   ? 8
                        : policy.moments == OptimizerStateKind::kBf16 ? 4
                                                                      : k8BitMomentBytes;
  return static_cast<double>(dtype_bytes(policy.grads)) + weights + moment * moments;
}

double accumulate_bytes_per_element(const ShardingPolicy& policy) {
  return static_cast<double>(dtype_bytes(policy.compute) + 2 * dtype_bytes(policy.grads));
}

int num_recomputed_operations(const UnitOperations& operations, bool output_unused) {
  const auto is_saved = [&](int slot) {
    if (slot < 0) return false;
    const Slot& spec = operations.slots[static_cast<size_t>(slot)];
    return spec.lifetime == Lifetime::kSaved && !spec.per_feature;
  };
  int count = static_cast<int>(operations.operations.size());
  if (!output_unused) return count;
  for (; count > 0; --count) {
    const Operation& op = operations.operations[static_cast<size_t>(count) - 1];
    if (is_saved(op.output) || std::any_of(op.extra.begin(), op.extra.end(), is_saved)) break;
  }
  return count;
}

std::vector<int> rebuilt_operations(const UnitOperations& operations) {
  std::vector<int> rebuilt;
  for (const Rebuild& rebuild : operations.rebuilds)
    for (const Rebuild::Again& again : rebuild.operations) {
      const OperationKind kind = operations.operations[static_cast<size_t>(again.operation)].kind;
      if (kind != OperationKind::kNorm && again.part != RebuildPart::kExchange) rebuilt.push_back(again.operation);
    }
  return rebuilt;
}

StepFlops step_flops(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  const auto tokens = static_cast<double>(config.tokens_per_step);
  const auto sequence = static_cast<double>(config.config.batch.sequence);
  StepFlops flops;
  flops.matrices = flops_per_token(model, inventory) * tokens;
  for (const LayerSpec& layer : model.layers) {
    const MixerSpec& mixer = layer.mixer;
    const double visible = mixer.window > 0 ? std::min(sequence, static_cast<double>(mixer.window)) : sequence;
    const double full = 12.0 * attention_width(mixer) * visible * tokens;
    flops.attention_full += full;
    flops.attention_causal += full * (1 - visible / (2 * sequence));
  }
  const int every = lowering_options(config).recompute_every;
  const DroppedTensors dropped = dropped_tensors(config.config.recompute);
  const bool scales = model.adapter && model.adapter->dora;
  if (every == 0 && dropped.empty() && !scales) return flops;
  const WorkShape shape{
      .tokens = config.tokens_per_step, .sequence = config.config.batch.sequence, .compute = config.compute};
  const int num_layers = static_cast<int>(model.layers.size());
  for (int layer = 0; layer < num_layers; ++layer) {
    const Unit& unit = inventory.units[static_cast<size_t>(layer) + 1];
    const UnitOperations operations = unit_operations(model, inventory, layer + 1, {}, {}, dropped);
    for (const Operation& op : operations.operations) {
      if (!op.adapter.scales()) continue;
      OperationWork product;
      magnitude_gradient(op, unit.parameters[static_cast<size_t>(op.weight)], shape.tokens, 0, product);
      flops.recomputed_matrices += product.total_flops();
    }
    std::vector<int> again = rebuilt_operations(operations);
    if (every > 0) {
      const bool last_of_segment = layer % every == every - 1 || layer == num_layers - 1;
      again.resize(static_cast<size_t>(num_recomputed_operations(operations, last_of_segment)));
      std::iota(again.begin(), again.end(), 0);
    }
    for (const int i : again) {
      const double work = operation_work(model, unit, operations, i, Pass::kForward, shape).total_flops();
      const bool attention = operations.operations[static_cast<size_t>(i)].kind == OperationKind::kAttention;
      (attention ? flops.recomputed_attention_causal : flops.recomputed_matrices) += work;
    }
  }
  if (flops.attention_causal > 0)
    flops.recomputed_attention_full = flops.recomputed_attention_causal * flops.attention_full / flops.attention_causal;
  return flops;
}

}  // namespace fivefold
