// adapter_config.json, and adapter_model.safetensors behind a NUL -> an adapter's settings and modules.
#include "fuzz/fuzz_target.h"
#include "store/peft_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto files = fuzz::parts(fuzz::as_text(data, size), 2);
  const auto config = parse_peft_config(files[0], "adapter_config.json");
  if (!config.ok()) {
    fuzz::check_error(config.error());
    return 0;
  }
  const std::string written = write_peft_config(*config);
  const auto again = parse_peft_config(written, "adapter_config.json");
  FIVEFOLD_CHECK(again.ok(), written);
  FIVEFOLD_CHECK(*again == *config, written);
  FIVEFOLD_CHECK(config->scale() > 0, written);

  const auto header = parse_safetensors(std::as_bytes(std::span(files[1])), "adapter_model.safetensors");
  if (!header.ok()) return 0;
  const auto modules = peft_modules(*config, header->tensors, "adapter_model.safetensors");
  if (!modules.ok()) {
    fuzz::check_error(modules.error());
    return 0;
  }
  // The modules' tensors are all that the file holds.
  FIVEFOLD_CHECK(modules->size() * (config->dora ? 3 : 2) == header->tensors.size());
  int64_t elements = 0;
  for (const PeftModule& module : *modules) {
    FIVEFOLD_CHECK(module.out > 0 && module.in > 0 && config->targets_module(module.name), module.name);
    const auto name = parse_peft_tensor_name(peft_tensor_name(module.name, PeftTensor::kB));
    FIVEFOLD_CHECK(name && name->module == module.name && name->tensor == PeftTensor::kB, module.name);
    elements += config->rank * (module.in + module.out) + (config->dora ? module.out : 0);
  }
  for (const TensorInfo& tensor : header->tensors) elements -= tensor.bytes() / dtype_bytes(tensor.dtype);
  FIVEFOLD_CHECK(elements == 0);
  return 0;
}
