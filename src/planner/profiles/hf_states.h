// Internal to the hf profile: what stays between steps, and how what is trained is divided.
#pragma once

#include "planner/profiles/hf_parts.h"

namespace fivefold {

// REQUIRES: `run` outlives it.
class HfStates {
 public:
  explicit HfStates(const FrameworkRun& run) : run_(run), n_(hf_parameters(run)) {}

  const HfParameters& parameters() const { return n_; }
  bool full() const { return !run_.trains_adapter; }
  // Weights are divided: FSDP 1, or DeepSpeed's ZeRO-3.
  bool sharded() const { return run_.zero >= 3 && run_.dp > 1; }
  bool fsdp() const { return sharded() && !run_.hf.deepspeed; }
  // FSDP's CPU offload, or ZeRO-3's: shards and what is updated lie on the host.
  bool on_host() const { return sharded() && run_.sharding.weights_on_host; }
  // Weights in fp32 that operations cast: the residual stream is fp32, too.
  bool wide() const { return trains_in_fp32(run_); }
  // Of what is trained: elements, bytes of an element, ranks that share it, bytes of its gradients on a rank.
  double trained() const { return static_cast<double>(full() ? n_.all() : n_.adapter); }
  double trained_width() const;
  double trained_shards() const;
  double gradient_bytes() const { return on_host() ? 0 : trained_width() * trained() / trained_shards(); }

  std::vector<ProfileLine> lines() const;

 private:
  double shards() const { return sharded() ? static_cast<double>(hf_shards(run_)) : 1; }
  // FSDP leaves adapters whole where fused kernels reach past its modules.
  bool adapter_is_whole() const { return !full() && (!sharded() || run_.hf.fused_adapters); }
  void add_full(std::vector<ProfileLine>& lines) const;
  void add_adapter(std::vector<ProfileLine>& lines) const;
  void add_quantisation(std::vector<ProfileLine>& lines) const;

  const FrameworkRun& run_;
  HfParameters n_;
};

// Appends a line of more than no bytes.
void add_line(std::vector<ProfileLine>& to, std::string name, double bytes, std::string formula);

}  // namespace fivefold
