// The model's tensors among those of a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "spec/hub_layout.h"
#include "spec/inventory.h"
#include "store/gguf_model.h"

namespace fivefold {
namespace {

// The file's name of a Hub tensor: by the longest ending that the table has.
struct NamePair {
  std::string_view hub, gguf;
};
constexpr NamePair kLlamaLayerNames[] = {
    {"input_layernorm.", "attn_norm."},    {"post_attention_layernorm.", "ffn_norm."},
    {"self_attn.q_proj.", "attn_q."},      {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},      {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."}, {"self_attn.k_norm.", "attn_k_norm."},
    {"mlp.gate_proj.", "ffn_gate."},       {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};
constexpr NamePair kGpt2LayerNames[] = {
    {"ln_1.", "attn_norm."},          {"ln_2.", "ffn_norm."},   {"attn.c_attn.", "attn_qkv."},
    {"attn.c_proj.", "attn_output."}, {"mlp.c_fc.", "ffn_up."}, {"mlp.c_proj.", "ffn_down."},
};
constexpr NamePair kOutsideNames[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"transformer.wte.", "token_embd."},
    {"transformer.wpe.", "position_embd."},
    {"transformer.ln_f.", "output_norm."},
};

std::string gguf_name(const std::string& hub, const Unit& unit, bool gpt2) {
  const std::span<const NamePair> names = unit.kind != UnitKind::kLayer ? std::span<const NamePair>(kOutsideNames)
                                          : gpt2                        ? std::span<const NamePair>(kGpt2LayerNames)
                                                                        : std::span<const NamePair>(kLlamaLayerNames);
  for (const NamePair& pair : names) {
    const size_t at = hub.rfind(pair.hub);
    if (at == std::string::npos || hub.find('.', at + pair.hub.size()) != std::string::npos) continue;
    const std::string own = std::string(pair.gguf) + hub.substr(at + pair.hub.size());
    return unit.kind == UnitKind::kLayer ? fmt::format("blk.{}.{}", unit.layer, own) : own;
  }
  FIVEFOLD_CHECK(false, hub);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(std::to_string(dim));
  return "[" + join(dims, ", ") + "]";
}

// The file's row of row `row` on the Hub.
int64_t file_row(int64_t row, int64_t paired_head) {
  if (paired_head == 0) return row;
  const int64_t in_head = row % paired_head, half = paired_head / 2;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

}  // namespace

Result<std::vector<GgufWeight>> gguf_weights(const GgufFile& file, const ModelSpec& model, DType dtype) {
  const bool gpt2 = model.naming == "gpt2", pairs = model.architecture == "LlamaForCausalLM";
  const int64_t head_dim = model.layers.front().mixer.head_dim;
  std::vector<GgufWeight> weights;
  std::vector<const GgufTensor*> used;
  const Inventory inventory = build_inventory(model);
  for (const Unit& unit : inventory.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      for (const HubPart& part : entry.parts) {
        const std::string name = gguf_name(part.name, unit, gpt2);
        GgufWeight weight{{part.name, dtype, hub_shape(entry, part)}, file.find(name)};
        if (weight.tensor == nullptr) return Error{file.place(name), "no such tensor", "the model has it"};
        weight.transposed = part.transposed && weight.hub.shape.size() == 2;
        std::vector<int64_t> wanted = weight.hub.shape;
        if (weight.transposed) std::swap(wanted[0], wanted[1]);
        if (weight.tensor->shape != wanted)
          return Error{file.place(name),
                       fmt::format("has the shape {}, not {}", shape_text(weight.tensor->shape), shape_text(wanted)),
                       "metadata and tensors contradict each other"};
        if (pairs &&
            (part.name.find(".q_proj.") != std::string::npos || part.name.find(".k_proj.") != std::string::npos))
          weight.paired_head = head_dim;
        used.push_back(weight.tensor);
        weights.push_back(std::move(weight));
      }
    }
  }
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) used.push_back(factors);
  std::ranges::sort(used);
  for (const GgufTensor& tensor : file.tensors())
    if (!std::ranges::binary_search(used, &tensor))
      return Error{file.place(tensor.name), "has no place in this model", ""};
  return weights;
}

void for_each_portion(const GgufFile& file, const GgufWeight& weight,
                      const std::function<void(std::span<const float>)>& write) {
  constexpr int64_t kPortionValues = 1 << 20;
  const GgufTensor& tensor = *weight.tensor;
  // A vector is as many rows of one value, so that its order may change too.
  const bool vector = tensor.shape.size() == 1;
  const int64_t columns = vector ? 1 : tensor.shape.back(), rows = tensor.numel() / columns;
  std::vector<float> whole;
  if (vector || weight.transposed) {
    whole.resize(static_cast<size_t>(tensor.numel()));
    file.read_rows(tensor, 0, tensor.numel() / tensor.shape.back(), whole);
  }
  if (weight.transposed) {
    std::vector<float> turned(whole.size());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        turned[static_cast<size_t>(c * rows + r)] = whole[static_cast<size_t>(r * columns + c)];
    return write(turned);
  }
  std::vector<float> portion;
  const int64_t step = std::max<int64_t>(1, kPortionValues / columns);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    portion.resize(static_cast<size_t>(count * columns));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = file_row(begin + i, weight.paired_head);
      const std::span<float> out =
          std::span(portion).subspan(static_cast<size_t>(i * columns), static_cast<size_t>(columns));
      if (vector)
        out[0] = whole[static_cast<size_t>(row)];
      else
        file.read_rows(tensor, row, 1, out);
    }
    write(portion);
  }
}

}  // namespace fivefold
