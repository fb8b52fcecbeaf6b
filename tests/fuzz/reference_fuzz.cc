// A folder for `check --reference`: batch.json, expected.json and grads.safetensors, cut at NUL bytes.
#include "cli/reference.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

constexpr std::string_view kModel =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 31, "max_position_embeddings": 64})";

void check_batch(GlobalBatch batch) {
  pad_rows(batch, 4);
  const auto tokens = static_cast<size_t>(batch.rows * batch.sequence);
  FIVEFOLD_CHECK(batch.rows > 0 && batch.sequence > 0 && batch.rows % 4 == 0);
  FIVEFOLD_CHECK(batch.input_ids.size() == tokens && batch.targets.size() == tokens);
  FIVEFOLD_CHECK(batch.positions.size() == tokens);
  for (const int32_t id : batch.input_ids) FIVEFOLD_CHECK(id >= 0 && id < 31);
  for (const int32_t id : batch.targets) FIVEFOLD_CHECK(id >= -100 && id < 31, std::to_string(id));
  for (const int32_t position : batch.positions) FIVEFOLD_CHECK(position >= 0 && position < batch.sequence);
  FIVEFOLD_CHECK(batch.document_lengths.size() == static_cast<size_t>(batch.rows));
  for (const auto& lengths : batch.document_lengths) {
    int64_t sum = 0;
    for (const int32_t length : lengths) sum += length;
    FIVEFOLD_CHECK(sum == batch.sequence);
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  static const fuzz::ScratchFolder folder;
  folder.write("config.json", fuzz::kModel);
  const auto files = fuzz::parts(fuzz::as_text(data, size), 3);
  folder.write("batch.json", files[0]);
  folder.write("expected.json", files[1]);
  if (files[2].empty())
    std::filesystem::remove(folder.path() / "grads.safetensors");
  else
    folder.write("grads.safetensors", files[2]);
  const auto reference = read_reference(folder.path());
  if (reference.ok())
    fuzz::check_batch(reference->batch);
  else
    fuzz::check_error(reference.error());
  return 0;
}
