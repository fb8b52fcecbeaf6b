// A GGUF file: header, then what it says of a model and of a tokenizer, and the values of its tensors.
#include <cstring>

#include "fuzz/fuzz_target.h"
#include "store/gguf.h"
#include "store/gguf_model.h"
#include "store/gguf_tokenizer.h"

namespace fivefold::fuzz {
namespace {

// Every value under its key, by every accessor: the type's own gives a value or says why not.
void check_metadata(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    FIVEFOLD_CHECK(file.has(key) && value.count >= 0);
    file.integer(key).ok();
    file.number(key).ok();
    file.boolean(key).ok();
    file.text(key).ok();
    file.texts(key).ok();
    file.integers(key).ok();
  }
}

void check_tensors(const GgufFile& file) {
  int64_t bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    FIVEFOLD_CHECK(file.find(tensor.name) == &tensor);
    bytes += static_cast<int64_t>(file.bytes(tensor).size());
    const int64_t rows = tensor.numel() / tensor.shape.back();
    std::vector<float> row(static_cast<size_t>(tensor.shape.back()));
    file.read_rows(tensor, rows - 1, 1, row);
  }
  FIVEFOLD_CHECK(bytes <= 1 << 20);  // no byte belongs to two tensors
}

void check_model(const GgufFile& file) {
  const auto model = read_gguf_model(file);
  if (!model.ok()) return check_error(model.error());
  const std::string text = write_model_config(*model);
  const auto again = parse_model_config(text, "config.json");
  FIVEFOLD_CHECK(again.ok(), again.error().message());
  if (model->layers.size() > 100) return;  // a file of a few bytes names a million layers without holding them
  const auto weights = gguf_weights(file, *model, DType::kFloat32);
  if (!weights.ok()) return check_error(weights.error());
  for (const GgufWeight& weight : *weights) {
    int64_t written = 0;
    for_each_portion(file, weight,
                     [&](std::span<const float> values) { written += static_cast<int64_t>(values.size()); });
    FIVEFOLD_CHECK(4 * written == weight.hub.bytes(), weight.hub.name);
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto file = GgufFile::of_bytes(std::as_bytes(std::span(data, size)), "f.gguf");
  if (!file.ok()) {
    fuzz::check_error(file.error());
    return 0;
  }
  fuzz::check_metadata(*file);
  fuzz::check_tensors(*file);
  fuzz::check_model(*file);
  const auto tokenizer = read_gguf_tokenizer(*file);
  if (!tokenizer.ok()) fuzz::check_error(tokenizer.error());
  return 0;
}
