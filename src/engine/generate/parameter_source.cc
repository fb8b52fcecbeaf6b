#include "engine/generate/parameter_source.h"

#include <fmt/format.h>

#include <utility>

#include "engine/weights.h"
#include "store/checkpoint_reader.h"

namespace fivefold {
namespace {

class HubSource final : public ParameterSource {
 public:
  explicit HubSource(HubFolder folder) : folder_(std::move(folder)) {}
  Status read(const ParameterEntry& entry, std::span<float> packed) override {
    return read_hub_parameter(folder_, entry, packed);
  }

 private:
  HubFolder folder_;
};

class CheckpointSource final : public ParameterSource {
 public:
  explicit CheckpointSource(CheckpointReader reader) : reader_(std::move(reader)) {}
  Status read(const ParameterEntry& entry, std::span<float> packed) override {
    return reader_.read_floats({"master", entry.name}, 0, entry.whole_numel(), packed);
  }
  Status check(const Inventory& inventory) const {
    const std::string where = reader_.folder().string();
    for (const Unit& unit : inventory.units) {
      for (const ParameterEntry& entry : unit.parameters) {
        const auto found = reader_.tensors().find({"master", entry.name});
        if (found == reader_.tensors().end())
          return Error{where, "has no tensor " + entry.name, "use the model that the run trained"};
        if (found->second.numel() != entry.whole_numel())
          return Error{where,
                       fmt::format("{} has {} elements, the model needs {}", entry.name, found->second.numel(),
                                   entry.whole_numel()),
                       "use the model that the run trained"};
      }
    }
    return Ok{};
  }

 private:
  CheckpointReader reader_;
};

}  // namespace

Result<std::unique_ptr<ParameterSource>> open_parameters(const std::filesystem::path& path,
                                                         const Inventory& inventory) {
  if (std::filesystem::exists(path / kHubModelFile) || std::filesystem::exists(path / kHubIndexFile)) {
    FIVEFOLD_ASSIGN(HubFolder folder, HubFolder::open(path));
    FIVEFOLD_TRY(check_hub_weights(folder, inventory));
    return std::unique_ptr<ParameterSource>(std::make_unique<HubSource>(std::move(folder)));
  }
  FIVEFOLD_ASSIGN(CheckpointReader reader, CheckpointReader::open(path, Verify::kFiles));
  auto source = std::make_unique<CheckpointSource>(std::move(reader));
  FIVEFOLD_TRY(source->check(inventory));
  return std::unique_ptr<ParameterSource>(std::move(source));
}

}  // namespace fivefold
