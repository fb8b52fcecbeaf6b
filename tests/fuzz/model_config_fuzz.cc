// A Hub config.json -> ModelSpec; then its counts, its inventory and what validation says to it.
#include "fuzz/fuzz_target.h"
#include "spec/inventory.h"
#include "spec/model.h"
#include "spec/model_count.h"
#include "spec/run_config.h"
#include "spec/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto model = parse_model_config(std::string(fuzz::as_text(data, size)), "config.json");
  if (!model.ok()) {
    fuzz::check_error(model.error());
    return 0;
  }
  const std::string written = write_model_config(*model);
  const auto again = parse_model_config(written, "config.json");
  FIVEFOLD_CHECK(again.ok(), written);
  FIVEFOLD_CHECK(*again == *model, written);

  const int64_t parameters = count_parameters(*model), active = count_active_parameters(*model);
  FIVEFOLD_CHECK(0 < active && active <= parameters, written);
  FIVEFOLD_CHECK(0 < count_embedding_parameters(*model) && count_embedding_parameters(*model) <= parameters, written);
  FIVEFOLD_CHECK(build_inventory(*model).num_parameters() == parameters, written);
  for (const Error& error : validate_layout(*model, RunConfig{})) fuzz::check_error(error);
  for (const Error& error : validate_engine(*model, RunConfig{})) fuzz::check_error(error);
  return 0;
}
