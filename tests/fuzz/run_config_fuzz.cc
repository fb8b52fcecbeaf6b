// run.toml -> RunConfig, and KEY=VALUE settings; then what validates and resolves it.
#include <algorithm>

#include "base/text.h"
#include "fuzz/fuzz_target.h"
#include "spec/model.h"
#include "spec/run_config_io.h"
#include "spec/run_config_resolve.h"
#include "spec/validate.h"

namespace fivefold::fuzz {
namespace {

const ModelSpec& model() {
  static const ModelSpec model = *parse_model_config(
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
          "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 301, "max_position_embeddings": 512})",
      "model");
  return model;
}

// Any configuration can be written, read to an equal one, and validated; one that is legal can be resolved.
void check_config(const LoadedConfig& loaded) {
  for (const Error& error : loaded.errors) check_error(error);
  const std::string written = to_toml(loaded.config);
  const LoadedConfig again = parse_config(written, "again");
  FIVEFOLD_CHECK(again.errors.empty(), to_string(again.errors));
  FIVEFOLD_CHECK(again.config == loaded.config, written);
  for (const Error& error : validate_run(loaded.config)) check_error(error);
  for (const Error& error : validate_engine(model(), loaded.config)) check_error(error);
  const std::vector<Error> problems = validate_layout(model(), loaded.config);
  for (const Error& error : problems) check_error(error);
  if (!problems.empty()) return;
  layout_notes(model(), loaded.config);
  const auto resolved = resolve(loaded.config, model());
  FIVEFOLD_CHECK(resolved.ok(), written);
  FIVEFOLD_CHECK(resolved->num_microbatches > 0 && resolved->tokens_per_step > 0, written);
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const std::string_view text = fuzz::as_text(data, size);
  fuzz::check_config(parse_config(text, "run.toml"));
  std::vector<std::string> settings = split(text, '\n');
  settings.resize(std::min<size_t>(settings.size(), 16));
  fuzz::check_config(load_config({.set = settings}));
  return 0;
}
