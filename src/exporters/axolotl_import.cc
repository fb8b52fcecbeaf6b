// axolotl's YAML, alone or named by the command that starts it: its settings under the Trainer's names for them.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "exporters/hub_import.h"

namespace fivefold {
namespace {

constexpr auto kNames = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"base_model", "model_name_or_path"},
    {"sequence_len", "max_length"},
    {"micro_batch_size", "per_device_train_batch_size"},
    {"optimizer", "optim"},
    {"lr_scheduler", "lr_scheduler_type"},
    {"peft_use_dora", "use_dora"},
    {"peft_use_rslora", "use_rslora"},
    {"sample_packing", "packing"},
    {"bnb_config_kwargs.bnb_4bit_use_double_quant", "use_bnb_nested_quant"},
});
constexpr auto kMesh = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"dp_shard_size", "parallelism_config_dp_shard_size"},
    {"dp_replicate_size", "parallelism_config_dp_replicate_size"},
    {"tensor_parallel_size", "parallelism_config_tp_size"},
    {"context_parallel_size", "parallelism_config_cp_size"},
    {"sequence_parallel_degree", "parallelism_config_cp_size"},
});

class AxolotlReader {
 public:
  AxolotlReader(ImportSheet& sheet, HubFiles files)
      : sheet_(sheet), files_(std::move(files)), given_(files_.arguments) {}

  void read() {
    files_.arguments = ForeignSettings();
    files_.program = "axolotl";
    for (const ForeignSetting& setting : given_.all()) translate(setting);
    read_adapter();
    read_precision();
    read_schedule();
    if (!has("optim")) set("optim", "adamw_torch_fused");
    if (!files_.deepspeed.empty())
      mesh("distributed_type", "DEEPSPEED");
    else if (fsdp_)
      mesh("distributed_type", "FSDP");
    if (files_.accelerate.has("parallelism_config_cp_size")) mesh("parallelism_config_cp_comm_strategy", "alltoall");
    if (!files_.ranks) count_ranks();
    read_hub_run(sheet_, std::move(files_));
  }

 private:
  bool has(std::string_view name) const { return files_.arguments.has(name); }
  void set(std::string name, nlohmann::json value) { files_.arguments.add(std::move(name), std::move(value), ""); }
  void mesh(std::string name, nlohmann::json value) { files_.accelerate.add(std::move(name), std::move(value), ""); }

  void translate(const ForeignSetting& setting) {
    if (setting.value.is_null() || setting.value == false || setting.value == nlohmann::json::object()) {
      // Off, or left blank as the examples do; what is on where nothing is said has to stay off.
      if (setting.name == "gradient_checkpointing" || setting.name == "sample_packing") return;
    }
    for (const auto& [name, trainer] : kNames)
      if (setting.name == name) return files_.arguments.add_as(trainer, setting, setting.value);
    for (const auto& [name, axis] : kMesh)
      if (setting.name == name) return files_.accelerate.add_as(axis, setting, setting.value);
    if (setting.name.starts_with("fsdp_config.") || setting.name == "fsdp" || setting.name == "fsdp_version") {
      fsdp_ = fsdp_ ||
              (!setting.value.is_null() && setting.name != "fsdp_version" && setting.value != nlohmann::json::array());
      if (setting.name == "fsdp")
        return setting.value.is_null() ? void() : files_.arguments.add_as("fsdp", setting, setting.value);
      return files_.accelerate.add_as(setting.name, setting, setting.value);
    }
    if (setting.name.starts_with("deepspeed."))
      return files_.deepspeed.add_as(setting.name.substr(10), setting, setting.value);
    if (setting.name == "deepspeed") return add_deepspeed(setting);
    if (setting.name == "datasets") return read_dataset(setting);
    if (setting.name == "gradient_checkpointing" && setting.value.is_string())
      return files_.arguments.add_as(setting.name, setting, true);
    files_.arguments.add_as(setting.name, setting, setting.value);
  }

  void read_dataset(const ForeignSetting& setting) {
    if (!setting.value.is_array() || setting.value.empty() || !setting.value[0].is_object()) return;
    const nlohmann::json path = setting.value[0].value("path", nlohmann::json());
    if (path.is_string()) files_.arguments.add_as("dataset_name", setting, path);
  }

  void add_deepspeed(const ForeignSetting& setting) {
    if (!setting.value.is_string() || setting.value == "" || !files_.deepspeed.empty()) return;
    // axolotl brings the usual files: deepspeed_configs/zero3_bf16.json.
    const std::string name = setting.value.get<std::string>();
    const std::optional<std::string> text =
        sheet_.options().read_file ? sheet_.options().read_file(name) : std::nullopt;
    if (text) {
      Result<ForeignSettings> file = read_json_settings(*text, name);
      if (!file.ok()) return sheet_.run.errors.push_back(file.error());
      return files_.deepspeed.add_all(*file);
    }
    const size_t at = name.find("zero");
    if (at == std::string::npos || at + 4 >= name.size() || name[at + 4] < '1' || name[at + 4] > '3')
      return sheet_.fail(setting.where, fmt::format("the file `{}` that it names cannot be read", name));
    files_.deepspeed.add("zero_optimization.stage", name[at + 4] - '0', setting.where);
    if (name.find("bf16") != std::string::npos) files_.deepspeed.add("bf16.enabled", true, setting.where);
    sheet_.assume("parallel.zero", std::string(1, name[at + 4]), fmt::format("as the name of {} says", name));
  }

  void read_adapter() {
    const std::string adapter = files_.arguments.text("adapter").value_or("");
    const bool linear = files_.arguments.flag("lora_target_linear");
    if (adapter == "lora" || adapter == "qlora") {
      set("use_peft", true);
      if (!has("lora_dropout")) set("lora_dropout", 0.0);
      if (linear) set("lora_target_modules", "all-linear");
      if (adapter == "qlora" && !has("use_bnb_nested_quant")) set("use_bnb_nested_quant", true);
    } else if (!adapter.empty()) {
      sheet_.fail(files_.arguments.where("adapter"), fmt::format("adapter {} is not known", adapter), "lora or qlora");
    }
    // 4 bits without an adapter would be another thing than full training.
    if (adapter != "qlora" && files_.arguments.flag("load_in_4bit") && adapter.empty()) set("load_in_4bit", false);
    for (const std::string_view name :
         {"lora_model_dir", "reinit_weights", "launcher", "nproc_per_node", "nnodes", "node_rank", "master_addr"})
      files_.arguments.find(name);
  }

  void read_precision() {
    const auto on = [&](const char* name) {
      const ForeignSetting* setting = files_.arguments.find(name);
      return setting != nullptr && (setting->value == true || setting->value == "auto" || setting->value == "full" ||
                                    setting->value == "true");
    };
    const bool bf16 = on("bf16") || on("bfloat16"), fp16 = on("fp16") || on("float16"), fp8 = on("fp8");
    set("bf16", bf16 && !fp8);
    set("fp16", fp16);
    if (fp8) mesh("mixed_precision", "fp8");
    const bool half = bf16 || fp16 || fp8;
    if (half) set("dtype", fp16 ? "float16" : "bfloat16");
    if (half && !fp8) mesh("mixed_precision", fp16 ? "fp16" : "bf16");
  }

  void read_schedule() {
    if (!has("lr_scheduler_type")) set("lr_scheduler_type", "cosine");
    const std::optional<double> least = files_.arguments.number("cosine_min_lr_ratio", 0, 1);
    if (least && !has("lr_scheduler_kwargs")) set("lr_scheduler_kwargs", {{"min_lr_rate", *least}});
    // A table of arguments arrives with dotted names.
    nlohmann::json arguments = nlohmann::json::object();
    for (const ForeignSetting& setting : given_.all())
      if (setting.name.starts_with("lr_scheduler_kwargs.")) {
        files_.arguments.find(setting.name);
        const std::optional<double> number = files_.arguments.has(setting.name) && !setting.value.is_string()
                                                 ? files_.arguments.number(setting.name, -1e18)
                                                 : std::nullopt;
        arguments[setting.name.substr(20)] = number ? nlohmann::json(*number) : numeric(setting.value);
      }
    if (!arguments.empty()) set("lr_scheduler_kwargs", arguments);
  }

  // YAML's readers leave 0.1 a text.
  static nlohmann::json numeric(const nlohmann::json& value) {
    if (!value.is_string()) return value;
    const nlohmann::json parsed = nlohmann::json::parse(value.get<std::string>(), nullptr, false);
    return parsed.is_number() ? parsed : value;
  }

  void count_ranks() {
    int64_t ranks = 1;
    bool said = false;
    for (const std::string_view axis :
         {"dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size"})
      if (const std::optional<int64_t> degree = given_.integer(axis, 1, 1 << 20))
        ranks *= *degree, said = said || axis[0] == 'd';
    if (said) files_.ranks = ranks;
  }

  ImportSheet& sheet_;
  HubFiles files_;
  ForeignSettings given_;
  bool fsdp_ = false;
};

}  // namespace

void import_axolotl(ImportSheet& sheet, std::string_view text, const std::string& where) {
  HubFiles files;
  files.where = where;
  if (where.ends_with(".yaml") || where.ends_with(".yml")) {
    Result<ForeignSettings> settings = read_yaml_settings(text, where);
    if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
    files.arguments = *std::move(settings);
  } else {
    files = read_hub_script(sheet, text, where);
  }
  if (sheet.run.errors.empty()) AxolotlReader(sheet, std::move(files)).read();
}

}  // namespace fivefold
