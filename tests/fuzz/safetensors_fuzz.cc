// A safetensors file's header.
#include "fuzz/fuzz_target.h"
#include "store/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto header = parse_safetensors(std::as_bytes(std::span(data, size)), "model.safetensors");
  if (!header.ok()) {
    fuzz::check_error(header.error());
    return 0;
  }
  // The tensors' bytes are the data section, each once.
  int64_t end = 0;
  for (const TensorInfo& tensor : header->tensors) {
    FIVEFOLD_CHECK(tensor.begin == end && tensor.end - tensor.begin == tensor.bytes(), tensor.name);
    end = tensor.end;
  }
  FIVEFOLD_CHECK(header->data_begin + end == static_cast<int64_t>(size));
  return 0;
}
