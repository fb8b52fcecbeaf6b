// Runs a reference case under a layout through the engine library, for tests. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "cli/reference.h"
#include "engine/engine_api.h"
#include "spec/run_config_io.h"

namespace fivefold::testing {

// The folder of reference cases: FIVEFOLD_SHARED/oracles, or ../shared/oracles beside the source tree.
std::filesystem::path oracle_folder();

struct Layout {
  int dp = 1, zero = 0, shard_size = 0;
  int micro = 1;         // rows per microbatch and rank
  int accumulation = 1;  // microbatches per step, at least; more where the batch has more rows
  int recompute_every = 0;
  std::string compute = "fp32";
  std::string grads = "auto";
  int tp = 1;
  bool sp = false;
  int pp = 1, vpp = 1;
  std::string schedule = "1f1b";
  int cp = 1;
  std::string cp_kind = "ring";
  std::string stages = "even";
  std::string reduce = "microbatch";
  int bucket_layers = 1;
  std::string drop;  // of selective recompute: "attention.qkv,mlp.gate_up"
  std::string name() const;
};

// A request for `layout` on the reference's batch (rows without valid tokens appended), fp32 AdamW defaults off: the
// optimizer is given as --set settings.
ProbeRequest probe_request(const Reference& reference, const Layout& layout, const std::vector<std::string>& settings);

// ||a - b|| / ||b||, in fp64.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace fivefold::testing
