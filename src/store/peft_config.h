// PeftConfig: what adapter_config.json of a PEFT folder says of a low-rank adapter, as far as it has a meaning here.
// What is read, what is refused and why: docs/formats/peft.md. Plain data; the functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct PeftConfig {
  int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;          // of the adapter's input, in training
  bool rank_stabilized = false;  // rsLoRA
  bool dora = false;
  bool fan_in_fan_out = false;       // the base stores its matrices [in, out] (GPT-2); A and B are as always
  std::vector<std::string> targets;  // ends of module names, sorted; or "all-linear" alone
  std::string base_model;            // name or path; may be empty

  // What B A is multiplied by: alpha / rank, or alpha / sqrt(rank) with rank_stabilized.
  double scale() const;
  // Whether the module ("model.layers.0.self_attn.q_proj") is one that `targets` names: equal to an entry, or ending in
  // "." and an entry. True of every module with "all-linear".
  bool targets_module(std::string_view module) const;

  bool operator==(const PeftConfig&) const = default;
};

// Errors name `where` and the key: not a JSON object; another kind of adapter than LoRA; a setting that changes what
// the tensors mean and that is not implemented (other ranks or scales for single modules, trained biases or whole
// modules, initialisations that change the base, ...), known or not: a key without a meaning here must be null, false
// or empty.
Result<PeftConfig> parse_peft_config(std::string_view text, const std::string& where);

// The file as PEFT 0.21 reads and writes it. `parse_peft_config` of it gives `config` back.
std::string write_peft_config(const PeftConfig& config);

}  // namespace fivefold
