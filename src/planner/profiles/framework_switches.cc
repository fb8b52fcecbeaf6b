#include "planner/profiles/framework_switches.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <variant>

#include "base/text.h"

namespace fivefold {
namespace {

// A switch whose values have names.
struct NamedSwitch {
  uint8_t* value;
  bool* assumed;
  std::span<const std::string_view> names;
};
// Names joined by '+', as many of `names` as are meant; none: assumed.
struct ListSwitch {
  std::vector<std::string>* value;
  std::span<const std::string_view> names;
};
using SwitchRef = std::variant<Switch<bool>*, Switch<int>*, Switch<int64_t>*, Switch<double>*, NamedSwitch, ListSwitch>;

template <class Enum>
NamedSwitch named(Switch<Enum>& it, std::span<const std::string_view> names) {
  return {reinterpret_cast<uint8_t*>(&it.value), &it.assumed, names};
}

constexpr std::string_view kCrossEntropyNames[] = {"unfused",         "native_fused", "te",      "eager",   "in_place",
                                                   "in_place_upcast", "eager_half",   "chunked", "compiled"};
constexpr std::string_view kAttentionNames[] = {"flash", "unfused"};
constexpr std::string_view kFrozenNames[] = {"none", "bf16", "nf4", "nf4_double", "int4", "int8"};
constexpr std::string_view kVocabularyNames[] = {"last", "one_more", "two_more", "interlaced"};
constexpr std::string_view kCodeNames[] = {"transformers", "litgpt"};
constexpr std::string_view kAdapterNames[] = {"lora",      "output", "scale",     "weight_update",
                                              "transform", "prompt", "full_scale"};

constexpr std::string_view kFigureNames[] = {"allocated", "reserved"};
constexpr std::string_view kRecipeNames[] = {"tensorwise", "blockwise", "mxfp8", "nvfp4"};
constexpr std::string_view kRecomputedNames[] = {"core_attn", "layernorm", "mla_up_proj",    "mlp",
                                                 "moe_act",   "moe",       "shared_experts", "gdn_norm_out"};
constexpr std::string_view kOffloadedNames[] = {"attn_norm", "qkv_linear", "core_attn", "attn_proj",
                                                "mlp_norm",  "expert_fc1", "moe_act"};

constexpr unsigned bit(Framework f) { return 1U << static_cast<unsigned>(f); }
constexpr unsigned kMegatron = bit(Framework::kMegatron), kFsdp2 = bit(Framework::kFsdp2), kHf = bit(Framework::kHf),
                   kDeepspeed = bit(Framework::kDeepspeed), kNanotron = bit(Framework::kNanotron),
                   kAll = kMegatron | kFsdp2 | kHf | kDeepspeed | kNanotron;

struct Key {
  std::string_view name;
  unsigned frameworks;
  SwitchRef (*of)(FrameworkRun&);
};

#define NAMED(field, names) [](FrameworkRun& r) -> SwitchRef { return named(r.field, names); }
#define PLAIN(field) [](FrameworkRun& r) -> SwitchRef { return &r.field; }
#define LIST(field, names) [](FrameworkRun& r) -> SwitchRef { return ListSwitch{&r.field, names}; }
constexpr Key kKeys[] = {
    {"cross_entropy", kAll, NAMED(cross_entropy, kCrossEntropyNames)},
    {"attention", kAll, NAMED(attention, kAttentionNames)},
    {"dropout", kMegatron | kDeepspeed | kNanotron, PLAIN(dropout)},
    {"expert_imbalance", kMegatron | kFsdp2, PLAIN(expert_imbalance)},
    {"gathers_for_experts", kMegatron, PLAIN(gathers_for_experts)},
    {"keeps_gathered_inputs", kFsdp2 | kNanotron, PLAIN(keeps_gathered_inputs)},
    {"dummy_weight_gradients", kMegatron, PLAIN(dummy_weight_gradients)},
    {"optimizer_on_host", kAll, PLAIN(optimizer_on_host)},
    {"activations_on_host", kAll, PLAIN(activations_on_host)},
    {"tuned_kernels", kMegatron, PLAIN(tuned_kernels)},
    {"vocabulary_stages", kMegatron, NAMED(vocabulary_stages, kVocabularyNames)},
    {"figure", kMegatron, NAMED(megatron.figure, kFigureNames)},
    {"deterministic", kMegatron, PLAIN(megatron.deterministic)},
    {"flash_library", kMegatron, PLAIN(megatron.flash_library)},
    {"optimizer_instances", kMegatron, PLAIN(megatron.optimizer_instances)},
    {"chunk_group", kMegatron, PLAIN(megatron.chunk_group)},
    {"deferred_head_gradients", kMegatron, PLAIN(megatron.deferred_head_gradients)},
    {"grouped_experts", kMegatron, PLAIN(megatron.grouped_experts)},
    {"weighs_inside_experts", kMegatron, PLAIN(megatron.weighs_inside_experts)},
    {"tp_overlap", kMegatron, PLAIN(megatron.tp_overlap)},
    {"recipe", kMegatron, NAMED(megatron.recipe, kRecipeNames)},
    {"fp8_weights", kMegatron, PLAIN(megatron.fp8_weights)},
    {"muon", kMegatron, PLAIN(megatron.muon)},
    {"whole_adam", kMegatron, PLAIN(megatron.whole_adam)},
    {"fsdp", kMegatron, PLAIN(megatron.fsdp)},
    {"mtp_layers", kMegatron, PLAIN(megatron.mtp_layers)},
    {"mtp_weights", kMegatron, PLAIN(megatron.mtp_weights)},
    {"recomputed_modules", kMegatron, LIST(megatron.recomputed_modules, kRecomputedNames)},
    {"offloaded_modules", kMegatron, LIST(megatron.offloaded_modules, kOffloadedNames)},
    {"compiled", kFsdp2, PLAIN(sharding.compiled)},
    {"optimizer_in_backward", kFsdp2, PLAIN(sharding.optimizer_in_backward)},
    {"rowwise_scaling", kFsdp2, PLAIN(sharding.rowwise_scaling)},
    {"weights_on_host", kFsdp2 | kDeepspeed | kHf, PLAIN(sharding.weights_on_host)},
    {"init", kAll, NAMED(init, kModelInitNames)},
    {"reduce_bucket", kDeepspeed, PLAIN(zero_buffers.reduce_bucket)},
    {"second_bucket", kDeepspeed, PLAIN(zero_buffers.second_bucket)},
    {"live_parameters", kDeepspeed, PLAIN(zero_buffers.live_parameters)},
    {"bf16_optimizer", kDeepspeed, PLAIN(sharding.bf16_optimizer)},
    {"code", kHf, NAMED(hf.code, kCodeNames)},
    {"autocast", kHf, PLAIN(hf.autocast)},
    {"fused_norms", kHf | kFsdp2, PLAIN(hf.fused_norms)},
    {"fused_adapters", kHf, PLAIN(hf.fused_adapters)},
    {"repeats_kv", kHf, PLAIN(hf.repeats_kv)},
    {"frozen_keeps_inputs", kHf, PLAIN(hf.frozen_keeps_inputs)},
    {"adapter", kHf, NAMED(hf.adapter, kAdapterNames)},
    {"trains_embeddings", kHf, PLAIN(hf.trains_embeddings)},
    {"deepspeed", kHf, PLAIN(hf.deepspeed)},
    {"wraps_on_device", kHf, PLAIN(hf.wraps_on_device)},
    {"variable_lengths", kHf, PLAIN(hf.variable_lengths)},
    {"upcasts_frozen", kHf, PLAIN(hf.upcasts_frozen)},
    {"fp32_residual", kHf, PLAIN(hf.fp32_residual)},
};
#undef NAMED
#undef PLAIN
#undef LIST

bool has(const Key& key, const FrameworkRun& run) { return (key.frameworks & bit(run.framework)) != 0; }

struct Shown {
  std::string text;
  bool assumed;
};
struct Show {
  Shown operator()(const Switch<bool>* it) const { return {it->value ? "on" : "off", it->assumed}; }
  Shown operator()(const NamedSwitch& it) const { return {std::string(it.names[*it.value]), *it.assumed}; }
  Shown operator()(const ListSwitch& it) const {
    return {it.value->empty() ? "none" : fmt::format("{}", fmt::join(*it.value, "+")), it.value->empty()};
  }
  template <class T>
  Shown operator()(const Switch<T>* it) const {
    return {fmt::format("{}", it->value), it->assumed};
  }
};

// Sets the switch; text: what it takes, when it does not take the value.
struct Set {
  std::string_view text;

  std::string operator()(Switch<bool>* it) const {
    if (text != "on" && text != "off") return "on or off";
    it->set(text == "on");
    return "";
  }
  std::string operator()(const NamedSwitch& it) const {
    for (size_t i = 0; i < it.names.size(); ++i) {
      if (it.names[i] != text) continue;
      *it.value = static_cast<uint8_t>(i);
      *it.assumed = false;
      return "";
    }
    return fmt::format("one of {}", fmt::join(it.names, ", "));
  }
  std::string operator()(const ListSwitch& it) const {
    std::vector<std::string> list;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('+', begin), text.size());
      const std::string_view name = text.substr(begin, end - begin);
      if (std::ranges::find(it.names, name) == it.names.end())
        return fmt::format("some of {}, joined by +", fmt::join(it.names, ", "));
      list.emplace_back(name);
      begin = end + 1;
    }
    *it.value = std::move(list);
    return "";
  }
  template <class T>
  std::string operator()(Switch<T>* it) const {
    T value{};
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || !(value > 0)) return "a positive number";
    it->set(value);
    return "";
  }
};

}  // namespace

Status set_switch(FrameworkRun& run, std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string name(setting.substr(0, equals));
  const auto fail = [&](std::string problem, std::string hint) -> Status {
    return Error{"framework.switches", fmt::format("\"{}\": {}", setting, problem), std::move(hint)};
  };
  if (equals == std::string_view::npos) return fail("no NAME=VALUE", "for example cross_entropy=native_fused");
  std::vector<std::string> names;
  for (const Key& key : kKeys) {
    if (!has(key, run)) continue;
    names.emplace_back(key.name);
    if (key.name != name) continue;
    const std::string expected = std::visit(Set{setting.substr(equals + 1)}, key.of(run));
    return expected.empty() ? Status(Ok{}) : fail("not a value of this switch", "use " + expected);
  }
  return fail(fmt::format("{} has no switch of this name", to_string(run.framework)), name_hint(name, names));
}

std::vector<SwitchValue> switch_values(const FrameworkRun& run) {
  FrameworkRun copy = run;
  std::vector<SwitchValue> values;
  for (const Key& key : kKeys) {
    if (!has(key, run)) continue;
    Shown shown = std::visit(Show{}, key.of(copy));
    values.push_back({std::string(key.name), std::move(shown.text), shown.assumed});
  }
  return values;
}

std::vector<std::string> switch_settings(const FrameworkRun& run) {
  std::vector<std::string> settings;
  for (const SwitchValue& value : switch_values(run))
    if (!value.assumed) settings.push_back(value.name + "=" + value.value);
  return settings;
}

}  // namespace fivefold
