// Decoder: a model that reads a sequence from left to right: weights, the keys and values of the tokens so far, and one
// forward pass over what is appended. It runs the operation lists of spec/operations.h, as UnitRun does for training,
// but keeps nothing for a backward: every layer works in the same buffers.
//
// Several tokens at once go through matrix products and the attention tiles of training; one token goes through
// kernels/row_product.h and kernels/decode_attention.h. Both write keys (after qk-norm and RoPE) and values to the same
// cache, so a sequence may be cut between them anywhere. Single process, no parallelism but threads. One thread per
// object; that thread holds a RankThread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/generate/parameter_source.h"
#include "engine/layers/primitives.h"
#include "engine/layers/rope_tables.h"
#include "spec/model.h"
#include "spec/operations.h"

namespace fivefold {

struct DecoderOptions {
  DType compute = DType::kBFloat16;  // of weights, cache and activations: fp32 or bf16
  int64_t positions = 0;             // the longest sequence, at most the model's
  int64_t chunk = 512;               // tokens of one forward pass at most
  int threads = 1;
};

class Decoder {
 public:
  // Allocates weights and cache. REQUIRES: the engine runs the model; it and the inventory outlive the decoder.
  Decoder(const ModelSpec& model, const Inventory& inventory, const DecoderOptions& options);

  // Fills every parameter. Errors: those of the source.
  Status load(ParameterSource& source);

  // Appends tokens (at least one) to the sequence and returns the logits that follow the last of them, fp32 [vocab],
  // valid until the next call. REQUIRES: ids of the vocabulary; length() + tokens.size() <= positions.
  std::span<const float> append(std::span<const int32_t> tokens);

  // Tokens of the sequence so far.
  int64_t length() const { return length_; }

 private:
  // What a forward pass over a number of tokens works in.
  struct Rows {
    int64_t count = 0;
    at::Tensor ids, positions;      // int32 [count]
    at::Tensor stream[2];           // [count, hidden]: a layer reads one and writes the other
    std::vector<at::Tensor> slots;  // of a layer, by slot; all layers use them in turn
  };

  Rows make_rows(int64_t count) const;
  void forward(Rows& rows, std::span<const int32_t> tokens);
  void execute(const Operation& op, int64_t layer, Rows& rows);
  void linear(const Operation& op, int unit, const at::Tensor& x, const at::Tensor& residual, at::Tensor& out);
  void row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& residual,
                  at::Tensor& out);
  void attend(int64_t layer, const at::Tensor& qkv, at::Tensor& out, at::Tensor& lse);
  void compute_logits(const at::Tensor& last);
  at::Tensor& slot(int index, int64_t layer, Rows& rows) const;
  ops::NormTensors norm_tensors(const Operation& op, int64_t layer, Rows& rows) const;
  const at::Tensor& weight(int unit, int parameter) const {
    return weights_[static_cast<size_t>(unit)][static_cast<size_t>(parameter)];
  }
  at::Tensor optional_weight(int unit, int parameter) const {
    return parameter < 0 ? at::Tensor() : weight(unit, parameter);
  }
  int unit_of(int64_t layer) const { return static_cast<int>(layer) + 1; }  // units: embedding, layers, head
  const UnitOperations& operations(int unit) const { return operations_[static_cast<size_t>(unit)]; }

  const ModelSpec& model_;
  const Inventory& inventory_;
  DecoderOptions options_;
  std::vector<UnitOperations> operations_;        // by unit
  std::vector<std::vector<at::Tensor>> weights_;  // by unit and parameter: views of one buffer a unit
  std::vector<RopeTables> rope_;                  // by layer
  std::vector<at::Tensor> cache_;                 // by layer: [positions, 2 KV heads x head size], keys before values
  Rows row_;                                      // of one token
  at::Tensor normed_, logits_;                    // of the last token: [1, hidden]; fp32 [1, vocab]
  at::Tensor scratch_;                            // of the kernels for one token, fp32
  int64_t length_ = 0;
};

}  // namespace fivefold
