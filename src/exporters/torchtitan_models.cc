#include "exporters/torchtitan_models.h"

#include <array>

namespace fivefold {
namespace {

constexpr auto kModels = std::to_array<TorchtitanModel>({
    {"llama-3.1-8b", "llama3", "8B"},
    {"llama-3.1-70b", "llama3", "70B"},
    {"llama-3.1-405b", "llama3", "405B"},
    {"llama-3.2-1b", "llama3", "1B"},
    {"llama-3.2-3b", "llama3", "3B"},
    {"llama-3-8b", "llama3", "8B", false},
    {"llama-3-70b", "llama3", "70B", false},
    {"qwen3-0.6b", "qwen3", "0.6B"},
    {"qwen3-1.7b", "qwen3", "1.7B"},
    {"qwen3-4b", "qwen3", "4B"},
    {"qwen3-8b", "qwen3", "8B"},
    {"qwen3-14b", "qwen3", "14B"},
    {"qwen3-32b", "qwen3", "32B"},
    {"qwen3-30b-a3b", "qwen3", "30B-A3B"},
    {"qwen3-235b-a22b", "qwen3", "235B-A22B"},
    {"deepseek-v2-lite", "deepseek_v3", "16B"},
    {"deepseek-v2", "deepseek_v3", "236B"},
    {"deepseek-v3", "deepseek_v3", "671B"},
    {"gpt-oss-20b", "gpt_oss", "20b"},
    {"gpt-oss-120b", "gpt_oss", "120b"},
});

}  // namespace

const TorchtitanModel* find_torchtitan_model(std::string_view name) {
  for (const TorchtitanModel& model : kModels)
    if (model.name == name) return &model;
  return nullptr;
}

const TorchtitanModel* find_torchtitan_flavor(std::string_view module, std::string_view flavor) {
  for (const TorchtitanModel& model : kModels)
    if (model.module == module && model.flavor == flavor) return &model;
  return nullptr;
}

std::string known_torchtitan_models() {
  std::string names;
  for (const TorchtitanModel& model : kModels) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

}  // namespace fivefold
