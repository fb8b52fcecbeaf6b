// BenchCase: a Llama-like or GPT-2-like model of a shape, trained on random tokens in a layout.
#pragma once

#include <string>
#include <vector>

#include "engine/engine_api.h"
#include "spec/inventory.h"

namespace fivefold::bench {

struct BenchCase {
  int64_t hidden = 512, layers = 8, heads = 8, kv_heads = 4, ffn = 1408, vocab = 8192;
  int64_t sequence = 512, micro = 4, accumulation = 1;
  int dp = 1, threads = 1, zero = 0;
  bool bf16 = false;
  bool gpt2 = false;            // LayerNorm, learned positions, biases, GELU, tied; kv_heads is heads
  int64_t recompute_every = 0;  // 0: none
  int64_t documents = 1;        // packed in a row, of equal length

  std::string name() const;
};

// The case with KEY=VALUE settings of its fields, for instance "hidden=512" and "bf16=1".
// Errors: unknown key, value that is not a number.
Result<BenchCase> parse_case(const std::vector<std::string>& settings);

// `updates` steps with an optimizer update, nothing gathered. Dies when the configuration is not valid.
ProbeRequest probe_request(const BenchCase& bench, int updates);

}  // namespace fivefold::bench
