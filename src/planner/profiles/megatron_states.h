// Internal to src/planner/profiles: weights, gradients and optimizer of a stage of a Megatron-LM pipeline. Plain data,
// pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/profiles/framework_run.h"
#include "planner/profiles/megatron_parts.h"
#include "spec/inventory.h"

namespace fivefold {

// Parameters of a rank.
struct MegatronParameters {
  int64_t dense = 0, expert = 0;
  int64_t dense_linear = 0, expert_linear = 0;  // of them weights of linears of layers
  int64_t largest_unit = 0;                     // of a layer
  int64_t tables = 0;                           // token table and output matrix
  int64_t adapter = 0;
};

class MegatronStates {
 public:
  MegatronStates(const FrameworkRun& run, const Inventory& inventory, int64_t stage,
                 const std::vector<MegatronChunk>& chunks);

  // What lies there between two steps.
  std::vector<ProfileLine> lines() const;
  // fp32 copies of gradients that were added up in two bytes: the optimizer steps on them. Empty: there are none.
  std::vector<ProfileLine> gradient_copies() const;
  std::vector<ProfileLine> gathered() const;
  // What the caching allocator holds beside the tensors, whose bytes are `tensors`; `block`: the largest activation's.
  std::vector<ProfileLine> reserved(int64_t tensors, int64_t block) const;

  int64_t table() const;  // of token table or output matrix
  int64_t padded_vocabulary() const { return vocabulary_; }
  bool has_prediction() const;                     // modules of multi-token prediction are here
  std::vector<int64_t> prediction_layers() const;  // layers of the model that one of them is like

 private:
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == run_.pp - 1; }
  bool cuts_vocabulary() const { return run_.vocabulary_stages != VocabularyStages::kLast && run_.pp > 1; }
  int64_t gradient_bytes() const;
  int64_t replicas(int64_t ranks) const;
  int64_t dense_replicas() const { return replicas(run_.dp * run_.cp); }
  int64_t expert_replicas() const;
  int64_t numel(const ParameterEntry& entry) const;
  const Unit& layer_unit(int64_t layer) const { return inventory_.units[static_cast<size_t>(layer) + 1]; }
  void count(const Unit& unit, int64_t times = 1);
  void count_ends();
  void count_adapter(const Unit& unit);
  ProfileLine optimizer() const;
  void add_fp8_copies(std::vector<ProfileLine>& lines) const;
  void add_dummies(std::vector<ProfileLine>& lines) const;
  int64_t sharded(int64_t dense, int64_t expert) const;

  const FrameworkRun& run_;
  const Inventory& inventory_;
  int64_t stage_, vocabulary_;
  const std::vector<MegatronChunk>& chunks_;
  MegatronParameters n_;
};

}  // namespace fivefold
