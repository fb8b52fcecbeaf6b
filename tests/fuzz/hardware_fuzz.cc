// A hardware file -> HardwareSpec.
#include "fuzz/fuzz_target.h"
#include "spec/hardware.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto hardware = parse_hardware(std::string(fuzz::as_text(data, size)), "machine.toml");
  if (!hardware.ok()) {
    fuzz::check_error(hardware.error());
    return 0;
  }
  const std::string written = write_hardware(*hardware);
  const auto again = parse_hardware(written, "machine.toml");
  FIVEFOLD_CHECK(again.ok(), written);
  HardwareSpec expected = *hardware;
  expected.gpu.clear();  // the device is written out in full
  FIVEFOLD_CHECK(*again == expected, written);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat8E4M3}) {
    FIVEFOLD_CHECK(library_bytes(hardware->device, dtype) >= 0, written);
    FIVEFOLD_CHECK(matrix_rate(hardware->device.peak_flops_per_s, dtype) >= 0, written);
  }
  return 0;
}
