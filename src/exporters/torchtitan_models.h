// Which of torchtitan's model flavours is which model. Facts of torchtitan 0.3.0's registries.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fivefold {

struct TorchtitanModel {
  std::string_view name;            // fivefold's
  std::string_view module, flavor;  // torchtitan.models.MODULE, model_registry("FLAVOR")
  bool exact = true;                // false: the same sizes with another RoPE
};

const TorchtitanModel* find_torchtitan_model(std::string_view name);
// The one of a module and flavour; null: not known.
const TorchtitanModel* find_torchtitan_flavor(std::string_view module, std::string_view flavor);
// Names that have a flavour, for hints.
std::string known_torchtitan_models();

}  // namespace fivefold
