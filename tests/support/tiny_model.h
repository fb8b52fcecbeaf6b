// Tiny dense models and awkward batches made in memory, and comparisons of what the engine computed on them.
// Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/reference_run.h"

namespace fivefold::testing {

// Weights are wide enough (standard deviation 0.2) that no gradient is rounding noise, key biases excepted.
enum class TinyKind {
  kLlama,      // grouped queries, untied
  kTiedQwen3,  // one KV head, qk-norm, tied, odd vocabulary
  kGpt2,       // LayerNorm, learned positions, biases, GELU, tied
};
inline constexpr TinyKind kTinyKinds[] = {TinyKind::kLlama, TinyKind::kTiedQwen3, TinyKind::kGpt2};
inline constexpr int64_t kTinySequence = 16;

std::string to_string(TinyKind kind);
ModelSpec tiny_model(TinyKind kind, int64_t num_layers = 2);
// A Llama large enough for both kinds of 8-bit optimizer states: gate_up (2 x 6144 elements) and down in 8 bits, the
// packed qkv, whose key and value tensors have 1024 elements, and the norms in fp32.
ModelSpec tiny_model_of_two_state_kinds(int64_t vocab = 128);

// One row for each entry: random ids, that many random targets at its start, the other targets ignored.
GlobalBatch ragged_batch(const ModelSpec& model, const std::vector<int64_t>& valid_tokens, uint32_t seed = 1);
// The given rows of a batch in the given order; -1 is the first row with every target ignored.
GlobalBatch select_rows(const GlobalBatch& batch, const std::vector<int64_t>& rows);

// A request with random weights from run.seed. The optimizer is plain SGD without decay and clipping unless `settings`
// say otherwise.
ProbeRequest tiny_request(const ModelSpec& model, const GlobalBatch& batch, const Layout& layout,
                          const std::vector<std::string>& settings = {});

// Through the engine library, which is loaded once.
ProbeResult probe(const ProbeRequest& request);

double norm(const std::vector<NamedTensor>& tensors);
// Largest ||a - b|| over the tensors, each in units of max(||b||, 1e-3 x the norm of all of b). REQUIRES: equal names.
double largest_difference(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b);
// Same names, shapes and bits.
bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b);

}  // namespace fivefold::testing
