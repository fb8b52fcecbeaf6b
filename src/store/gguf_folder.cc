#include "store/gguf_folder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/progress.h"
#include "store/file_io.h"
#include "store/gguf_model.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

void write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.sync();
  file.close();
}

void add_special_tokens(const GgufTokenizer& tokenizer, Json& json) {
  for (const auto& [key, id] :
       {std::pair{"bos_token_id", tokenizer.bos}, {"eos_token_id", tokenizer.eos}, {"pad_token_id", tokenizer.pad}})
    if (id) json[key] = *id;
}

void write_weights(const GgufFile& file, const std::vector<GgufWeight>& weights, DType dtype, HubWriter& writer) {
  int64_t total_bytes = 0, done_bytes = 0;
  for (const GgufWeight& weight : weights) total_bytes += weight.hub.bytes();
  Progress progress("writing tensors", total_bytes);
  for (const GgufWeight& weight : weights) {
    for_each_portion(file, weight, [&](std::span<const float> values) {
      const std::vector<std::byte> bytes = encode_values(values, dtype);
      writer.write(weight.hub.name, bytes);
      progress.update(done_bytes += static_cast<int64_t>(bytes.size()));
    });
  }
  writer.finish();
}

}  // namespace

Result<GgufConversion> write_gguf_as_hub_folder(const GgufFile& file, const std::filesystem::path& folder, DType dtype,
                                                const HubWriterOptions& options) {
  FIVEFOLD_ASSIGN(ModelSpec model, read_gguf_model(file));
  FIVEFOLD_ASSIGN(GgufTokenizer tokenizer, read_gguf_tokenizer(file));
  if (tokenizer.vocab_size > model.vocab)
    return Error{file.place("tokenizer.ggml.tokens"),
                 fmt::format("has {} tokens, the model's vocabulary {}", tokenizer.vocab_size, model.vocab), ""};
  FIVEFOLD_ASSIGN(const std::vector<GgufWeight> weights, gguf_weights(file, model, dtype));

  std::vector<TensorDeclaration> declarations;
  for (const GgufWeight& weight : weights) declarations.push_back(weight.hub);
  HubWriter writer(folder, std::move(declarations), options);
  write_weights(file, weights, dtype, writer);
  Json config = Json::parse(write_model_config(model)), generation = Json::object();
  config["torch_dtype"] = dtype == DType::kBFloat16 ? "bfloat16" : "float32";
  add_special_tokens(tokenizer, config);
  add_special_tokens(tokenizer, generation);
  write_text(folder / "config.json", config.dump(2) + "\n");
  write_text(folder / "generation_config.json", generation.dump(2) + "\n");
  write_text(folder / "tokenizer.json", tokenizer.tokenizer_json);
  write_text(folder / "tokenizer_config.json", tokenizer.tokenizer_config_json);
  sync_folder(folder);
  return GgufConversion{std::move(model), std::move(tokenizer)};
}

}  // namespace fivefold
