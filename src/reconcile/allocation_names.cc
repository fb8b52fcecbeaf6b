#include "reconcile/allocation_names.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/integer.h"
#include "base/text.h"
#include "base/units.h"
#include "spec/inventory.h"

namespace fivefold {
namespace {

// kRoundLarge of c10/cuda/CUDACachingAllocator.h.
constexpr int64_t kRounding = 2 * kMiB;

class Sizes {
 public:
  explicit Sizes(const FrameworkRun& run) : run_(run), tokens_(div_ceil(run.micro * run.sequence, run.cp)) {}

  std::vector<NamedSize> find() {
    add_logits();
    for (const LayerSpec& layer : run_.model.layers) add_layer(layer);
    add_weights();
    std::ranges::stable_sort(sizes_, std::greater(), &NamedSize::bytes);
    return std::move(sizes_);
  }

 private:
  void add(const std::string& name, int64_t width, int64_t elements, const std::string& of, bool logits = false) {
    const int64_t bytes = width * elements;
    const auto same = [&](const NamedSize& size) { return size.bytes == bytes && size.name == name; };
    if (bytes > 0 && std::ranges::none_of(sizes_, same))
      sizes_.push_back({name, bytes, std::to_string(width) + " B x " + of, logits});
  }
  // In the type of the computation and in fp32.
  void add_both(const std::string& name, int64_t elements, const std::string& of, bool logits = false) {
    add("fp32 " + name, 4, elements, of, logits);
    add(name + " in 2 bytes", 2, elements, of, logits);
  }

  void add_logits() {
    const int64_t vocabulary =
        run_.framework == Framework::kMegatron ? round_up(run_.model.vocab, 128 * run_.tp) : run_.model.vocab;
    const std::string of = format_count(tokens_) + " tokens x " + format_count(vocabulary) +
                           (run_.tp > 1 ? " / " + std::to_string(run_.tp) : "");
    add_both("logits", tokens_ * div_ceil(vocabulary, run_.tp), of, true);
  }

  void add_layer(const LayerSpec& layer) {
    const std::string tokens = format_count(tokens_) + " tokens x ";
    const int64_t sequence_parts = run_.sp ? run_.tp : 1;
    add_both("hidden state", div_ceil(tokens_ * run_.model.hidden, sequence_parts),
             tokens + format_count(run_.model.hidden));
    const int64_t ffn = layer.mlp.ffn;
    if (ffn > 0) {
      add_both("inner activation of the MLP", tokens_ * div_ceil(ffn, run_.tp), tokens + format_count(ffn));
      if (layer.mlp.kind == MlpKind::kGated)
        add("gate and up projections' output", 4, tokens_ * div_ceil(ffn, run_.tp), tokens + format_count(ffn));
    }
    if (layer.mlp.kind == MlpKind::kMoe)
      add("tokens as dispatched to experts", 2, tokens_ * layer.mlp.experts_per_token * run_.model.hidden,
          tokens + std::to_string(layer.mlp.experts_per_token) + " x " + format_count(run_.model.hidden));
    const int64_t heads = div_ceil(layer.mixer.num_heads, run_.tp);
    const int64_t length = div_ceil(run_.sequence, run_.cp);
    add_both("attention scores", run_.micro * heads * length * run_.sequence,
             std::to_string(run_.micro) + " x " + std::to_string(heads) + " heads x " + format_count(length) + " x " +
                 format_count(run_.sequence));
  }

  void add_weights() {
    const Inventory inventory = build_inventory(run_.model);
    for (const Unit& unit : inventory.units) {
      int64_t whole = 0;
      for (const ParameterEntry& entry : unit.parameters) {
        const int64_t part =
            entry.split == Split::kReplicated ? entry.whole_numel() : div_ceil(entry.whole_numel(), run_.tp);
        whole += part;
        if (entry.whole_shape.size() > 1)
          add_both("weight or its gradient", part, entry.parts.empty() ? entry.name : entry.parts[0].name);
      }
      if (unit.kind != UnitKind::kLayer) continue;
      add("a gathered layer", 2, whole, format_count(whole) + " weights");
      add("fp32 gradients of a layer", 4, whole, format_count(whole) + " weights");
    }
  }

  const FrameworkRun& run_;
  int64_t tokens_;
  std::vector<NamedSize> sizes_;
};

}  // namespace

std::vector<NamedSize> tensor_sizes(const FrameworkRun& run) { return Sizes(run).find(); }

std::vector<NamedSize> names_of_size(const FrameworkRun& run, int64_t bytes, int64_t precision) {
  std::vector<NamedSize> near = tensor_sizes(run);
  const auto distance = [bytes](const NamedSize& size) { return std::abs(size.bytes - bytes); };
  // Losses leave out the last token of a sequence: one in 1,024 at most.
  std::erase_if(near, [&](const NamedSize& size) {
    const int64_t slack =
        precision + (bytes >= 10 * kMiB ? kRounding : 512) + (size.logits ? div_floor(size.bytes, int64_t{1024}) : 0);
    return distance(size) > slack;
  });
  std::ranges::stable_sort(near, {}, distance);
  return near;
}

std::vector<NamedSize> logits_of_size(int64_t bytes, int64_t vocabulary, int64_t precision) {
  std::vector<NamedSize> sizes;
  if (bytes <= 0 || vocabulary <= 0) return sizes;
  // Sequences are multiples of 64, nearly always.
  constexpr int64_t kStep = 64;
  for (const int64_t width : {int64_t{4}, int64_t{2}}) {
    const int64_t step = width * kStep * vocabulary;
    const int64_t tokens = kStep * div_floor(bytes + precision, step);
    const int64_t nearest = tokens * vocabulary * width;
    const int64_t rounding = bytes >= 10 * kMiB ? kRounding : 512;
    if (tokens == 0 || bytes - nearest > rounding + precision) continue;
    sizes.push_back({width == 4 ? "fp32 logits" : "logits in 2 bytes", nearest,
                     std::to_string(width) + " B x " + format_count(tokens) + " tokens x " + format_count(vocabulary),
                     true});
  }
  return sizes;
}

}  // namespace fivefold
