// fivefold convert: weights of a fivefold checkpoint, or a GGUF file, to a Hub folder; adapters to PEFT's format and
// into their base (convert_adapter.h).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common_options.h"
#include "cli/convert_adapter.h"
#include "cli/weights_folder.h"
#include "spec/adapter.h"
#include "spec/hub_layout.h"
#include "spec/run_config_io.h"
#include "store/checkpoint_reader.h"
#include "store/gguf_folder.h"
#include "store/hub_writer.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

struct ConvertOptions {
  CommonOptions common;
  std::string from, to;
  std::string dtype;  // empty: bf16 for checkpoints, fp32 for GGUF and adapters, the base's own types for a merge
  bool merge = false;
  std::string base, merge_into = "original";
  double max_shard_gb = 5;
};

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
      FIVEFOLD_TRY(reader.read_floats({"master", entry.name}, 0, entry.numel(), packed));
      for (const HubPart& part : entry.parts)
        writer.write(part.name, encode_values(hub_values(entry, part, packed), dtype));
    }
  }
  writer.finish();
  return Ok{};
}

Result<DType> parse_weight_type(const std::string& name, DType fallback) {
  if (name.empty()) return fallback;
  if (name == "bf16") return DType::kBFloat16;
  if (name == "fp32") return DType::kFloat32;
  return Error{"--dtype", "is \"" + name + "\"", name_hint(name, {"bf16", "fp32"})};
}

Result<HubWriterOptions> writer_options(const ConvertOptions& options) {
  HubWriterOptions writer;
  writer.max_shard_bytes = static_cast<int64_t>(options.max_shard_gb * 1e9);
  if (writer.max_shard_bytes <= 0) return Error{"--max-shard-gb", "is not above 0", "leave it out: 5"};
  return writer;
}

Status convert_gguf(const ConvertOptions& options) {
  FIVEFOLD_ASSIGN(const DType dtype, parse_weight_type(options.dtype, DType::kFloat32));
  FIVEFOLD_ASSIGN(const HubWriterOptions writer, writer_options(options));
  FIVEFOLD_ASSIGN(const GgufFile file, GgufFile::open(options.from));
  FIVEFOLD_ASSIGN(const GgufConversion done, write_gguf_as_hub_folder(file, options.to, dtype, writer));
  print(fmt::format("{} -> {}: {} parameters in {}, {} tokens (pre-tokenizer {}), {} chat template\n", options.from,
                    options.to, format_count(build_inventory(done.model).num_parameters()), to_string(dtype),
                    format_count(done.tokenizer.vocab_size), done.tokenizer.pre,
                    done.tokenizer.chat_template.empty() ? "no" : "with its"));
  return Ok{};
}

// A checkpoint with the run that it belongs to: its own configuration says which.
struct OpenCheckpoint {
  CheckpointReader reader;
  RunConfig config;
  ModelSpec model;  // as the run trains it
};

Result<OpenCheckpoint> open_checkpoint(std::filesystem::path from) {
  // A run's directory stands for its checkpoints.
  if (std::filesystem::is_directory(from / "checkpoints")) from /= "checkpoints";
  FIVEFOLD_ASSIGN(CheckpointReader reader, CheckpointReader::open(from));
  if (!reader.fallback_reason().empty()) print_note({"", reader.fallback_reason(), ""});
  FIVEFOLD_ASSIGN(ModelSpec model, model_of(reader));
  const LoadedConfig loaded = parse_config(reader.run().configuration, reader.folder().string() + " (configuration)");
  if (!loaded.errors.empty()) return loaded.errors.front();
  return OpenCheckpoint{std::move(reader), loaded.config, with_method(std::move(model), loaded.config.method)};
}

Status write_hub_folder(const ConvertOptions& options, OpenCheckpoint& checkpoint) {
  FIVEFOLD_ASSIGN(const DType dtype, parse_weight_type(options.dtype, DType::kBFloat16));
  FIVEFOLD_ASSIGN(const HubWriterOptions hub_options, writer_options(options));
  CheckpointReader& reader = checkpoint.reader;
  const ModelSpec& model = checkpoint.model;
  const Inventory inventory = build_inventory(model);
  HubWriter writer(options.to, declarations(inventory, dtype), hub_options);
  FIVEFOLD_TRY(write_weights(reader, inventory, dtype, writer));
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(write_model_config(model));
  config["torch_dtype"] = dtype == DType::kBFloat16 ? "bfloat16" : "float32";
  std::ofstream file(std::filesystem::path(options.to) / "config.json");
  file << config.dump(2) << "\n";
  file.close();
  if (!file) return Error{options.to + "/config.json", "cannot be written", ""};
  print(fmt::format("step {} of {} -> {}: {} parameters in {}\n", reader.run().step, options.from, options.to,
                    format_count(inventory.num_parameters()), to_string(dtype)));
  return Ok{};
}

Result<ConvertAdapterOptions> adapter_options(const ConvertOptions& options) {
  ConvertAdapterOptions adapter{
      .from = options.from, .to = options.to, .base = options.base, .merge_into = options.merge_into};
  FIVEFOLD_ASSIGN(const DType dtype, parse_weight_type(options.dtype, DType::kFloat32));
  if (!options.dtype.empty()) adapter.dtype = dtype;
  FIVEFOLD_ASSIGN(const HubWriterOptions hub_options, writer_options(options));
  adapter.max_shard_bytes = hub_options.max_shard_bytes;
  return adapter;
}

Status convert(const ConvertOptions& options) {
  if (std::filesystem::path(options.from).extension() == ".gguf") {
    if (options.merge) return Error{"--merge", options.from + " is no adapter", "leave --merge out"};
    return convert_gguf(options);
  }
  FIVEFOLD_ASSIGN(const ConvertAdapterOptions adapter, adapter_options(options));
  if (is_peft_folder(options.from)) {
    if (options.merge) return merge_peft_folder(adapter);
    return Error{options.from, "is an adapter in PEFT's format already",
                 "--merge --base FOLDER writes its base with the adapter in it"};
  }
  FIVEFOLD_ASSIGN(OpenCheckpoint checkpoint, open_checkpoint(options.from));
  if (!checkpoint.model.adapter) {
    if (options.merge) return Error{"--merge", options.from + " is of a run without an adapter", "leave --merge out"};
    return write_hub_folder(options, checkpoint);
  }
  const AdapterCheckpoint trained{checkpoint.reader, checkpoint.config, checkpoint.model};
  return options.merge ? merge_checkpoint(adapter, trained) : write_peft_folder(adapter, trained);
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
  app.add_option("from", options->from,
                 "checkpoint, folder of checkpoints, run directory, PEFT adapter, or GGUF file (.gguf)")
      ->required()
      ->option_text("FROM");
  app.add_option("to", options->to,
                 "folder to write: config.json and model.safetensors, from GGUF the tokenizer too; or a PEFT adapter")
      ->required()
      ->option_text("TO");
  app.add_option("--dtype", options->dtype,
                 "bf16 (default for checkpoints) or fp32 (default for adapters, and for GGUF: the values of its blocks "
                 "exactly); a merge keeps the base's types")
      ->option_text("DTYPE");
  app.add_flag("--merge", options->merge, "write the base with the adapter FROM in its weights");
  app.add_option("--base", options->base, "folder of the base, if not the one that the adapter names")
      ->option_text("FOLDER");
  app.add_option("--merge-into", options->merge_into, "original (default) or quantised: the base after NF4 and back")
      ->option_text("BASE");
  app.add_option("--max-shard-gb", options->max_shard_gb, "size of a file, in 1e9 bytes")->option_text("GB");
  app.add_flag("--quiet", options->common.quiet, "print errors only");
  return [options] { return run_convert(*options); };
}

}  // namespace fivefold
