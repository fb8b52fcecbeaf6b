// PyTorch's CSV form of a schedule.
#include "fuzz/schedule_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto schedule = read_schedule_csv(fuzz::as_text(data, size), "file");
  if (schedule.ok())
    fuzz::check_accepted(*schedule);
  else
    fuzz::check_error(schedule.error());
  return 0;
}
