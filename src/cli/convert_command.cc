// fivefold convert: weights of a fivefold checkpoint to a Hub folder.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common_options.h"
#include "spec/hub_layout.h"
#include "spec/run_config_io.h"
#include "store/checkpoint_reader.h"
#include "store/hub_writer.h"

namespace fivefold {
namespace {

struct ConvertOptions {
  CommonOptions common;
  std::string from, to;
  std::string dtype = "bf16";
  double max_shard_gb = 5;
};

// Rounds to nearest even, as the engine's working weights are.
std::vector<std::byte> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  if (dtype == DType::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    const bool nan = values[i] != values[i];
    const auto half = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    std::memcpy(bytes.data() + 2 * i, &half, sizeof half);
  }
  return bytes;
}

// The model that a checkpoint belongs to: its own configuration says which.
Result<ModelSpec> model_of(const CheckpointReader& reader) {
  const LoadedConfig loaded = parse_config(reader.run().configuration, reader.folder().string() + " (configuration)");
  if (!loaded.errors.empty()) return loaded.errors.front();
  // A run keeps its model's config.json beside its checkpoints.
  const std::filesystem::path beside = reader.folder().parent_path().parent_path() / "config.json";
  if (std::filesystem::exists(beside)) return read_model_config(beside);
  return load_model(loaded.config.model);
}

std::vector<TensorDeclaration> declarations(const Inventory& inventory, DType dtype) {
  std::vector<TensorDeclaration> tensors;
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts) tensors.push_back({part.name, dtype, hub_shape(entry, part)});
  return tensors;
}

Status write_weights(CheckpointReader& reader, const Inventory& inventory, DType dtype, HubWriter& writer) {
  std::vector<float> packed;
  for (const Unit& unit : inventory.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      packed.resize(static_cast<size_t>(entry.numel()));
      FIVEFOLD_TRY(reader.read({"master", entry.name}, DType::kFloat32, 0, entry.numel(),
                               std::as_writable_bytes(std::span(packed))));
      for (const HubPart& part : entry.parts) writer.write(part.name, encode(hub_values(entry, part, packed), dtype));
    }
  }
  writer.finish();
  return Ok{};
}

Status convert(const ConvertOptions& options) {
  if (options.dtype != "bf16" && options.dtype != "fp32")
    return Error{"--dtype", "is \"" + options.dtype + "\"", name_hint(options.dtype, {"bf16", "fp32"})};
  const DType dtype = options.dtype == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  // A run's directory stands for its checkpoints.
  std::filesystem::path from = options.from;
  if (std::filesystem::is_directory(from / "checkpoints")) from /= "checkpoints";
  FIVEFOLD_ASSIGN(CheckpointReader reader, CheckpointReader::open(from));
  if (!reader.fallback_reason().empty()) print_note({"", reader.fallback_reason(), ""});
  FIVEFOLD_ASSIGN(const ModelSpec model, model_of(reader));
  const Inventory inventory = build_inventory(model);
  HubWriterOptions writer_options;
  writer_options.max_shard_bytes = static_cast<int64_t>(options.max_shard_gb * 1e9);
  if (writer_options.max_shard_bytes <= 0) return Error{"--max-shard-gb", "is not above 0", "leave it out: 5"};
  HubWriter writer(options.to, declarations(inventory, dtype), writer_options);
  FIVEFOLD_TRY(write_weights(reader, inventory, dtype, writer));
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(write_model_config(model));
  config["torch_dtype"] = dtype == DType::kBFloat16 ? "bfloat16" : "float32";
  std::ofstream file(std::filesystem::path(options.to) / "config.json");
  file << config.dump(2) << "\n";
  file.close();
  if (!file) return Error{options.to + "/config.json", "cannot be written", ""};
  print(fmt::format("step {} of {} -> {}: {} parameters in {}\n", reader.run().step, options.from, options.to,
                    format_count(inventory.num_parameters()), options.dtype));
  return Ok{};
}

ExitCode run_convert(const ConvertOptions& options) {
  apply_common_options(options.common);
  const Status status = convert(options);
  if (status.ok()) return ExitCode::kDone;
  print_errors({status.error()});
  return ExitCode::kBadInput;
}

}  // namespace

RunCommand add_convert_command(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  app.add_option("from", options->from, "checkpoint, folder of checkpoints, or run directory")
      ->required()
      ->option_text("FROM");
  app.add_option("to", options->to, "folder to write config.json and model.safetensors to")
      ->required()
      ->option_text("TO");
  app.add_option("--dtype", options->dtype, "bf16 (default) or fp32")->option_text("DTYPE");
  app.add_option("--max-shard-gb", options->max_shard_gb, "size of a file, in 1e9 bytes")->option_text("GB");
  app.add_flag("--quiet", options->common.quiet, "print errors only");
  return [options] { return run_convert(*options); };
}

}  // namespace fivefold
