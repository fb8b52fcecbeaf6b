#include "spec/names.h"

#include "spec/inventory.h"

namespace fivefold {
namespace {

const HubNames& llama_names() {
  static const HubNames names("model.layers.",
                              {{"attention_norm.weight", "input_layernorm.weight"},
                               {"attention_norm.bias", "input_layernorm.bias"},
                               {"attention_post_norm.weight", "post_attention_layernorm.weight"},
                               {"mlp_norm.weight", "post_attention_layernorm.weight"},
                               {"mlp_norm.bias", "post_attention_layernorm.bias"},
                               {"mlp_post_norm.weight", "post_feedforward_layernorm.weight"},
                               {"q.weight", "self_attn.q_proj.weight"},
                               {"k.weight", "self_attn.k_proj.weight"},
                               {"v.weight", "self_attn.v_proj.weight"},
                               {"q.bias", "self_attn.q_proj.bias"},
                               {"k.bias", "self_attn.k_proj.bias"},
                               {"v.bias", "self_attn.v_proj.bias"},
                               {"q_norm.weight", "self_attn.q_norm.weight"},
                               {"k_norm.weight", "self_attn.k_norm.weight"},
                               {"sinks", "self_attn.sinks"},
                               {"out.weight", "self_attn.o_proj.weight"},
                               {"out.bias", "self_attn.o_proj.bias"},
                               {"gate.weight", "mlp.gate_proj.weight"},
                               {"up.weight", "mlp.up_proj.weight"},
                               {"down.weight", "mlp.down_proj.weight"},
                               {"gate.bias", "mlp.gate_proj.bias"},
                               {"up.bias", "mlp.up_proj.bias"},
                               {"down.bias", "mlp.down_proj.bias"}},
                              {{"tokens.weight", "model.embed_tokens.weight"},
                               {"norm.weight", "model.norm.weight"},
                               {"norm.bias", "model.norm.bias"},
                               {"output.weight", "lm_head.weight"},
                               {"output.bias", "lm_head.bias"}},
                              false);
  return names;
}

const HubNames& gpt2_names() {
  static const HubNames names("transformer.h.",
                              {{"attention_norm.weight", "ln_1.weight"},
                               {"attention_norm.bias", "ln_1.bias"},
                               {"mlp_norm.weight", "ln_2.weight"},
                               {"mlp_norm.bias", "ln_2.bias"},
                               {"q.weight", "attn.c_attn.weight"},
                               {"k.weight", "attn.c_attn.weight"},
                               {"v.weight", "attn.c_attn.weight"},
                               {"q.bias", "attn.c_attn.bias"},
                               {"k.bias", "attn.c_attn.bias"},
                               {"v.bias", "attn.c_attn.bias"},
                               {"out.weight", "attn.c_proj.weight"},
                               {"out.bias", "attn.c_proj.bias"},
                               {"up.weight", "mlp.c_fc.weight"},
                               {"up.bias", "mlp.c_fc.bias"},
                               {"down.weight", "mlp.c_proj.weight"},
                               {"down.bias", "mlp.c_proj.bias"}},
                              {{"tokens.weight", "transformer.wte.weight"},
                               {"positions.weight", "transformer.wpe.weight"},
                               {"norm.weight", "transformer.ln_f.weight"},
                               {"norm.bias", "transformer.ln_f.bias"},
                               {"output.weight", "lm_head.weight"}},
                              true);
  return names;
}

}  // namespace

std::string HubNames::hub_name(UnitKind kind, int64_t layer, const std::string& role) const {
  const auto& table = kind == UnitKind::kLayer ? layer_ : outside_;
  const auto found = table.find(role);
  const std::string& name = found == table.end() ? role : found->second;
  return kind == UnitKind::kLayer ? layer_prefix_ + std::to_string(layer) + "." + name : name;
}

bool HubNames::transposed(UnitKind kind, const std::string& suffix) const {
  return transposed_linears_ && kind == UnitKind::kLayer && suffix.ends_with(".weight");
}

const HubNames& hub_names(const std::string& naming) {
  if (naming == "gpt2") return gpt2_names();
  FIVEFOLD_CHECK(naming == "llama", "unknown naming " + naming);
  return llama_names();
}

std::vector<std::string> hub_name_variants(const std::string& name) {
  for (const char* prefix : {"transformer.", "model."}) {
    const std::string text(prefix);
    if (name.starts_with(text)) return {name, name.substr(text.size())};
  }
  return {name};
}

}  // namespace fivefold
