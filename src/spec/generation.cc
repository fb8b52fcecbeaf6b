#include "spec/generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "spec/run_config.h"
#include "spec/validate.h"

namespace fivefold {

GenerationBytes generation_bytes(const ModelSpec& model, const Inventory& inventory, const GenerationShape& shape) {
  const int64_t size = dtype_bytes(shape.compute);
  GenerationBytes bytes;
  for (const Unit& unit : inventory.units) bytes.params += unit.aligned_numel * size;
  for (const LayerSpec& layer : model.layers)
    bytes.kv_cache += 2 * layer.mixer.num_kv_heads * layer.mixer.head_dim * shape.positions() * size;
  return bytes;
}

std::vector<Error> validate_generation(const ModelSpec& model, const GenerationShape& shape) {
  RunConfig config;
  config.batch.sequence = 1;
  std::vector<Error> errors = validate_engine(model, config);
  if (shape.prompt == 0) errors.push_back({"--prompt", "is empty", "give at least one token"});
  if (shape.new_tokens < 1) errors.push_back({"--max-tokens", fmt::format("is {}", shape.new_tokens), "use 1 or more"});
  int64_t most = model.max_positions;
  std::string_view of = "positions of the model";
  for (const LayerSpec& layer : model.layers) {
    if (layer.mixer.window == 0 || layer.mixer.window >= most) continue;
    most = layer.mixer.window;
    of = "tokens of the model's attention window, at which the engine does not cut";
  }
  if (shape.prompt >= most)
    errors.push_back({"--prompt",
                      fmt::format("has {} tokens, which leaves no room in the {} {}", shape.prompt, most, of),
                      fmt::format("use {} tokens or fewer", most - 1)});
  else if (shape.new_tokens > most - shape.prompt)
    errors.push_back({"--max-tokens",
                      fmt::format("{} tokens after a prompt of {} are more than the {} {}", shape.new_tokens,
                                  shape.prompt, most, of),
                      fmt::format("use --max-tokens {}", most - shape.prompt)});
  return errors;
}

}  // namespace fivefold
