// Scripts and configuration files of other frameworks: the first byte says which importer, the rest is the text. What
// is read without errors is a configuration that can be written and read again.
#include <array>

#include "exporters/imported_run.h"
#include "fuzz/fuzz_target.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold::fuzz {
namespace {

struct Source {
  ForeignTarget target;
  const char* name;
};
constexpr auto kSources = std::to_array<Source>({{ForeignTarget::kMegatron, "run.sh"},
                                                 {ForeignTarget::kTorchtitan, "run.py"},
                                                 {ForeignTarget::kTorchtitan, "run.toml"},
                                                 {ForeignTarget::kDeepspeed, "ds.json"},
                                                 {ForeignTarget::kAccelerate, "run.yaml"},
                                                 {ForeignTarget::kTrl, "run.sh"},
                                                 {ForeignTarget::kAxolotl, "run.yaml"}});

void check_import(const Source& source, const std::string& text) {
  // A model and ranks, so that a short text gets past the first questions.
  const ImportOptions options{.model = "llama-3.2-1b", .gpus = 8};
  const Imported imported = import_run(source.target, text, source.name, options);
  for (const Error& error : imported.errors) check_error(error);
  if (!imported.errors.empty()) return;
  const std::string written = to_toml(imported.config);
  const LoadedConfig again = parse_config(written, "again");
  FIVEFOLD_CHECK(again.errors.empty(), to_string(again.errors) + written);
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold::fuzz;
  if (size == 0) return 0;
  check_import(kSources[data[0] % kSources.size()], std::string(as_text(data + 1, size - 1)));
  return 0;
}
