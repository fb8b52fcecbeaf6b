#include "cli/convert_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "base/text.h"
#include "cli/output.h"
#include "spec/inventory.h"
#include "spec/names.h"
#include "store/file_io.h"
#include "store/peft_method.h"
#include "store/peft_writer.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

// Metadata of adapter_model.safetensors: with what base an adapter of this program was trained.
constexpr const char* kTrainedWith = "fivefold.base";
constexpr const char* kNf4 = "nf4";
constexpr const char* kNf4Double = "nf4, double quantisation";

struct AdapterSource {
  std::string name;  // for people
  AdapterValues values;
  std::string trained_with;  // kNf4, kNf4Double, or nothing that is known
};

Result<MergeBase> parse_merge_base(const std::string& text) {
  if (text == "original") return MergeBase::kOriginal;
  if (text == "quantised") return MergeBase::kQuantised;
  return Error{"--merge-into", "is \"" + text + "\"", name_hint(text, {"original", "quantised"})};
}

// The folder that --base names, or the adapter does.
Result<std::filesystem::path> base_folder(const ConvertAdapterOptions& options, const std::string& named) {
  std::error_code ignored;
  if (!options.base.empty()) return std::filesystem::path(options.base);
  if (!named.empty() && std::filesystem::is_directory(named, ignored)) return std::filesystem::path(named);
  return Error{"--base",
               named.empty() ? "is missing: the adapter does not say what its base is"
                             : "is missing: the adapter's base \"" + named + "\" is no folder here",
               "the folder with the base's config.json and model.safetensors"};
}

std::string last_part(const std::string& path) {
  std::filesystem::path trimmed(path);
  if (!trimmed.has_filename()) trimmed = trimmed.parent_path();
  return trimmed.filename().string();
}

// What a model needs beside its weights: configuration and tokenizer.
bool is_companion(const std::string& name) {
  static const std::set<std::string> kNames = {"config.json",
                                               "generation_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "vocab.txt",
                                               "merges.txt",
                                               "chat_template.jinja",
                                               "chat_template.json"};
  return kNames.contains(name) || name.starts_with("tokenizer");
}

Status write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{path.string(), "cannot be written", ""};
  return Ok{};
}

// Copies them; config.json says the type in which the weights are now. Returns their names.
Result<std::vector<std::string>> copy_companions(const std::filesystem::path& from, const std::filesystem::path& to,
                                                 std::optional<DType> dtype) {
  std::vector<std::filesystem::path> paths = list_folder(from);
  std::ranges::sort(paths);
  std::vector<std::string> names;
  for (const std::filesystem::path& path : paths) {
    if (!is_companion(path.filename().string()) || !std::filesystem::is_regular_file(path)) continue;
    FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
    std::string text(file.text());
    if (dtype && path.filename() == "config.json") {
      nlohmann::ordered_json config = nlohmann::ordered_json::parse(text);
      config[config.contains("dtype") ? "dtype" : "torch_dtype"] = *dtype == DType::kBFloat16 ? "bfloat16" : "float32";
      text = config.dump(2) + "\n";
    }
    FIVEFOLD_TRY(write_text(to / path.filename(), text));
    names.push_back(path.filename().string());
  }
  return names;
}

// A run's adapter tensors as PEFT names them.
struct AdapterPart {
  const ParameterEntry* entry = nullptr;
  const HubPart* part = nullptr;
};
std::map<std::string, AdapterPart> adapter_parts(const Inventory& inventory) {
  std::map<std::string, AdapterPart> parts;
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      if (entry.adapter)
        for (const HubPart& part : entry.parts) parts[part.name] = {&entry, &part};
  return parts;
}

// One of them: its rows of the packed master weight.
Result<std::vector<float>> read_part(CheckpointReader& reader, const AdapterPart& tensor) {
  const int64_t width = tensor.entry->whole_cols(), begin = tensor.part->row_begin * width;
  std::vector<float> values(static_cast<size_t>(tensor.part->rows * width));
  FIVEFOLD_TRY(
      reader.read_floats({"master", tensor.entry->name}, begin, begin + static_cast<int64_t>(values.size()), values));
  return values;
}

// What a run's adapter is an adapter of.
std::string base_of(const RunConfig& config) {
  return config.model.weights != "random" ? config.model.weights : config.model.name;
}

std::string trained_with(const MethodConfig& method) {
  if (method.kind != MethodKind::kQlora) return "";
  return method.double_quantization ? kNf4Double : kNf4;
}

double percent(double part, double whole) { return whole > 0 ? 100.0 * part / whole : 0.0; }

// Which base the adapter was trained with, which one it was merged into, and what the difference is.
std::string base_text(const MergeReport& report, MergeBase base, bool trained_in_4_bits) {
  const bool quantised = base == MergeBase::kQuantised;
  std::string text = quantised ? "merged into the base after NF4 and back (--merge-into quantised)"
                               : "merged into the original weights (--merge-into original)";
  if (report.four_bit_norm <= 0) return text + "\n";
  text += fmt::format(": NF4 is off by {:.2f} % of the norm of the matrices in 4 bits\n",
                      percent(report.quantisation_error, report.four_bit_norm));
  if (trained_in_4_bits && !quantised)
    text +=
        "the adapter was trained with the base in NF4: what was merged differs from the run by that much;\n"
        "--merge-into quantised gives the weights that the run computed with\n";
  text += fmt::format("quantised to NF4 again, the result would lose {:.2f} %\n",
                      percent(report.requantisation_error, report.four_bit_norm));
  return text;
}

// PEFT saves "all-linear" as the full names of all modules: their last parts say enough.
std::string adapter_text(const AdapterValues& adapter) {
  const PeftConfig& config = adapter.config;
  std::set<std::string> kinds;
  for (const PeftModule& module : adapter.modules) kinds.insert(module.name.substr(module.name.rfind('.') + 1));
  return fmt::format("{}rank {}, alpha {:g}, {} modules ({})", config.dora ? "DoRA, " : "", config.rank, config.alpha,
                     adapter.modules.size(), fmt::join(kinds, ", "));
}

Status merge(const ConvertAdapterOptions& options, const AdapterSource& source) {
  const PeftConfig& config = source.values.config;
  FIVEFOLD_ASSIGN(const MergeBase into, parse_merge_base(options.merge_into));
  FIVEFOLD_ASSIGN(const std::filesystem::path base_path, base_folder(options, config.base_model));
  std::error_code ignored;
  if (std::filesystem::equivalent(base_path, options.to, ignored))
    return Error{options.to.string(), "is the base's own folder", "merge into another one"};
  FIVEFOLD_ASSIGN(const ModelSpec model, read_model_config(base_path / "config.json"));
  FIVEFOLD_ASSIGN(const HubFolder base, HubFolder::open(base_path));
  if (!config.base_model.empty() && last_part(config.base_model) != last_part(base_path.string()))
    print_note({"", "the adapter names \"" + config.base_model + "\" as its base, not " + base_path.string(), ""});

  const bool in_4_bits = source.trained_with == kNf4 || source.trained_with == kNf4Double;
  const MergeOptions merge_options{.base = into,
                                   .measure_quantisation = in_4_bits,
                                   .double_quantization = source.trained_with != kNf4,
                                   .dtype = options.dtype,
                                   .max_shard_bytes = options.max_shard_bytes};
  FIVEFOLD_ASSIGN(const MergeReport report,
                  write_merged_weights(base, model, source.values, options.from.string(), options.to, merge_options));
  FIVEFOLD_ASSIGN(const std::vector<std::string> companions, copy_companions(base_path, options.to, options.dtype));
  print(fmt::format("read adapter {}: {}\n", source.name, adapter_text(source.values)));
  print(fmt::format("read base {}: {} tensors, {} parameters\n", base_path.string(), report.merged + report.copied,
                    format_count(report.parameters)));
  print(base_text(report, into, in_4_bits));
  print(fmt::format(
      "wrote {}: {} matrices with {:g} x B A in them (changed by {:.2f} % of their norm), {} tensors without, {}; {}\n",
      options.to.string(), report.merged, config.scale(), percent(report.change_norm, report.base_norm), report.copied,
      options.dtype ? std::string(to_string(*options.dtype)) : "types of the base", join(companions, ", ")));
  return Ok{};
}

std::string checkpoint_text(const AdapterCheckpoint& checkpoint) {
  return fmt::format("step {} of {}", checkpoint.reader.run().step, checkpoint.reader.folder().string());
}

}  // namespace

Status write_peft_folder(const ConvertAdapterOptions& options, const AdapterCheckpoint& checkpoint) {
  const Inventory inventory = build_inventory(checkpoint.model);
  const MethodConfig& method = checkpoint.config.method;
  const DType dtype = options.dtype.value_or(DType::kFloat32);
  const std::map<std::string, AdapterPart> parts = adapter_parts(inventory);
  const std::vector<TensorDeclaration> tensors = peft_tensors_of(inventory, dtype);
  const PeftConfig config = peft_config_of(method, inventory, base_of(checkpoint.config));
  std::map<std::string, std::string> notes;
  if (method.kind == MethodKind::kQlora) notes[kTrainedWith] = trained_with(method);
  PeftWriter writer(options.to, config, tensors, notes);
  int64_t parameters = 0;
  for (const TensorDeclaration& tensor : tensors) {
    FIVEFOLD_ASSIGN(const std::vector<float> values, read_part(checkpoint.reader, parts.at(tensor.name)));
    writer.write(tensor.name, encode_values(values, dtype));
    parameters += static_cast<int64_t>(values.size());
  }
  writer.finish();
  print(fmt::format("read {}\nwrote PEFT adapter {}: rank {}, alpha {:g}, {} tensors, {} parameters in {}, for {}\n",
                    checkpoint_text(checkpoint), options.to.string(), config.rank, config.alpha, tensors.size(),
                    format_count(parameters), to_string(dtype),
                    config.base_model.empty() ? "a model without a name" : config.base_model));
  return Ok{};
}

Status merge_peft_folder(const ConvertAdapterOptions& options) {
  FIVEFOLD_ASSIGN(const PeftFolder folder, PeftFolder::open(options.from));
  const auto trained_with = folder.metadata().find(kTrainedWith);
  return merge(options, {options.from.string(), adapter_values(folder),
                         trained_with == folder.metadata().end() ? "" : trained_with->second});
}

Status merge_checkpoint(const ConvertAdapterOptions& options, const AdapterCheckpoint& checkpoint) {
  const Inventory inventory = build_inventory(checkpoint.model);
  const MethodConfig& method = checkpoint.config.method;
  const std::map<std::string, AdapterPart> parts = adapter_parts(inventory);
  AdapterSource source{checkpoint_text(checkpoint),
                       {peft_config_of(method, inventory, base_of(checkpoint.config)), {}, nullptr},
                       trained_with(method)};
  std::vector<TensorInfo> tensors;
  for (TensorDeclaration& tensor : peft_tensors_of(inventory, DType::kFloat32)) tensors.push_back({std::move(tensor)});
  FIVEFOLD_ASSIGN(source.values.modules,
                  peft_modules(source.values.config, tensors, checkpoint.reader.folder().string()));
  source.values.read = [&](const PeftModule& module, PeftTensor kind) {
    return read_part(checkpoint.reader, parts.at(peft_tensor_name(module.name, kind)));
  };
  return merge(options, source);
}

}  // namespace fivefold
