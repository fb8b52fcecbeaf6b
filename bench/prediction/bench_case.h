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
  int tp = 1;
  bool sp = false;
  int cp = 1;
  CpKind cp_kind = CpKind::kRing;
  int pp = 1, vpp = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int shard_size = 0;
  int prefetch = 1;
  std::string simulate;  // a cluster or hardware file whose links the ranks imitate

  std::string name() const;
};

// The case with KEY=VALUE settings of its fields, for instance "hidden=512", "bf16=1" and "schedule=zbv".
// Errors: unknown key, value that is not a number or name of the field.
Result<BenchCase> parse_case(const std::vector<std::string>& settings);

RunConfig run_config(const BenchCase& bench);

// `updates` steps with an optimizer update, nothing gathered, on the simulated network of the case. Dies when the
// configuration is not valid or there is no such network.
ProbeRequest probe_request(const BenchCase& bench, int updates);

}  // namespace fivefold::bench
