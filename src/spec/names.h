// Hub tensor names: from a unit and a role ("attention_norm.weight", "q.weight", ...) to the name on disk. One table
// per naming convention; families that share names share a table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "spec/model.h"

namespace fivefold {

enum class UnitKind : uint8_t;

class HubNames {
 public:
  HubNames(std::string layer_prefix, std::map<std::string, std::string> layer,
           std::map<std::string, std::string> outside, bool transposed_linears)
      : layer_prefix_(std::move(layer_prefix)),
        layer_(std::move(layer)),
        outside_(std::move(outside)),
        transposed_linears_(transposed_linears) {}

  // Name on disk of `role` in a unit. A role without an entry keeps its own name under the layer's prefix.
  std::string hub_name(UnitKind kind, int64_t layer, const std::string& role) const;
  // True when matrices of layers are stored [in, out] (GPT-2's Conv1D).
  bool transposed(UnitKind kind, const std::string& suffix) const;

 private:
  std::string layer_prefix_;
  std::map<std::string, std::string> layer_, outside_;
  bool transposed_linears_;
};

// REQUIRES: a known naming ("llama", "gpt2"); a ModelSpec from a parser always has one.
const HubNames& hub_names(const std::string& naming);

// Some files leave the model's prefix out ("wte.weight" for "transformer.wte.weight"): the names under which a tensor
// may be found, the usual one first.
std::vector<std::string> hub_name_variants(const std::string& name);

}  // namespace fivefold
