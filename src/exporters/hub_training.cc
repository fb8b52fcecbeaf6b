// The Trainer's optimizer, learning rate and run, of which DeepSpeed's file may have a part.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "exporters/hub_import.h"

namespace fivefold {
namespace {

void read_optimizer_state(ImportSheet& sheet, const std::string& optimizer) {
  if (optimizer.find("8bit") != std::string::npos)
    sheet.config().precision.optimizer_state = OptimizerStateKind::k8Bit;
  else if (optimizer.find("4bit") != std::string::npos)
    sheet.assume("precision.optimizer_state", "fp32", "4-bit states are not known: memory is too high");
  if (optimizer.starts_with("paged"))
    sheet.assume("precision.optimizer_state", "on the GPU", "pages may move to the host when memory is short");
  if (optimizer.find("adam") == std::string::npos && optimizer != "sgd")
    sheet.assume("optimizer.kind", "adamw", optimizer + " is not known: states and update of Adam");
}

void read_hub_schedule(ImportSheet& sheet, const std::string& name, const nlohmann::json& arguments) {
  LrConfig& lr = sheet.config().lr;
  const auto number = [&](const char* key, double fallback) {
    return arguments.is_object() && arguments.contains(key) && arguments[key].is_number() ? arguments[key].get<double>()
                                                                                          : fallback;
  };
  const double peak = sheet.config().optimizer.lr;
  lr.min_ratio = 0;
  if (name == "constant" || name == "constant_with_warmup") {
    lr.schedule = LrScheduleKind::kConstant;
    lr.min_ratio = LrConfig{}.min_ratio;
  } else if (name.starts_with("cosine")) {
    lr.schedule = LrScheduleKind::kCosine;
    lr.min_ratio = number("min_lr_rate", peak > 0 ? rounded(number("min_lr", 0) / peak) : 0);
  } else if (name == "warmup_stable_decay") {
    lr.schedule = LrScheduleKind::kWsd;
    lr.min_ratio = number("min_lr_ratio", 0);
    lr.decay_steps = static_cast<int64_t>(std::clamp(number("num_decay_steps", 0), 0.0, 1e12));
    const std::string shape = arguments.is_object() ? arguments.value("decay_type", "cosine") : "cosine";
    lr.decay = shape == "linear" ? WsdDecay::kLinear : shape == "1-sqrt" ? WsdDecay::kOneMinusSqrt : WsdDecay::kCosine;
  } else {
    lr.schedule = LrScheduleKind::kLinear;
    if (name == "polynomial" && peak > 0) lr.min_ratio = rounded(number("lr_end", 1e-7) / peak);
    if (name != "linear" && name != "polynomial") sheet.assume("lr.schedule", "linear", name + " is not known");
  }
  lr.min_ratio = std::clamp(lr.min_ratio, 0.0, 1.0);
}

void read_output_folder(ImportSheet& sheet, ForeignSettings& settings) {
  const std::optional<std::string> folder = settings.text("output_dir");
  if (!folder) return;
  const size_t slash = folder->rfind('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == folder->size() || folder->find('$') != std::string::npos)
    return;
  sheet.config().run.directory = folder->substr(0, slash);
  sheet.config().run.name = folder->substr(slash + 1);
}

class TrainingReader {
 public:
  TrainingReader(ImportSheet& sheet, HubFiles& files)
      : sheet_(sheet), args_(files.arguments), accelerate_(files.accelerate), deepspeed_(files.deepspeed) {}

  void read() {
    read_optimizer();
    read_lr();
    read_rest();
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  void read_optimizer() {
    OptimizerConfig& o = config().optimizer;
    const std::string name = args_.text("optim").value_or("adamw_torch");
    std::string type = deepspeed_.text("optimizer.type").value_or("");
    for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (name == "sgd" || type == "sgd") o.kind = OptimizerKind::kSgd;
    if (type.empty()) read_optimizer_state(sheet_, name);
    const auto number = [&](std::string_view flag, const std::string& json, double fallback) {
      const std::optional<double> a = args_.number(flag, 0, 1e9),
                                  b = deepspeed_.number("optimizer.params." + json, 0, 1e9);
      return a ? *a : b.value_or(fallback);
    };
    o.lr = number("learning_rate", "lr", 5e-5);
    o.weight_decay = number("weight_decay", "weight_decay", 0);
    o.eps = number("adam_epsilon", "eps", 1e-8);
    o.betas = {args_.number("adam_beta1", 0, 0.9999999).value_or(0.9),
               args_.number("adam_beta2", 0, 0.9999999).value_or(0.999)};
    deepspeed_.find("optimizer.params.betas"), deepspeed_.find("optimizer.params.torch_adam"),
        deepspeed_.find("optimizer.params.adam_w_mode");
    if (o.kind == OptimizerKind::kSgd) {
      const std::string momentum = args_.text("optim_args").value_or("");
      if (momentum.starts_with("momentum=")) o.momentum = std::atof(momentum.c_str() + 9);
      o.betas = OptimizerConfig{}.betas, o.eps = OptimizerConfig{}.eps;
    }
    std::optional<double> clip = args_.number("max_grad_norm", 0, 1e9);
    if (!clip) clip = deepspeed_.number("gradient_clipping", 0, 1e9);
    if (!clip) clip = accelerate_.number("deepspeed_config.gradient_clipping", 0, 1e9);
    deepspeed_.find("gradient_clipping"), accelerate_.find("deepspeed_config.gradient_clipping");
    o.clip = clip.value_or(1.0);
  }

  void read_lr() {
    const std::string name = args_.text("lr_scheduler_type").value_or("linear");
    const ForeignSetting* extra = args_.find("lr_scheduler_kwargs");
    nlohmann::json arguments = extra == nullptr ? nlohmann::json() : extra->value;
    if (arguments.is_string()) arguments = nlohmann::json::parse(arguments.get<std::string>(), nullptr, false);
    config().run.steps = args_.integer("max_steps", -1).value_or(0);
    if (config().run.steps < 0) config().run.steps = 0;
    const double warmup =
        args_.number(args_.has("num_warmup_steps") ? "num_warmup_steps" : "warmup_steps", 0, 1e12).value_or(0);
    const double share = args_.number("warmup_ratio", 0, 1).value_or(0);
    const auto steps = static_cast<double>(config().run.steps);
    config().lr.warmup_steps = static_cast<int64_t>(warmup >= 1 ? warmup : std::max(warmup, share) * steps);
    read_hub_schedule(sheet_, name, arguments);
    for (const std::string_view part :
         {"type", "params.warmup_min_lr", "params.warmup_max_lr", "params.warmup_num_steps", "params.total_num_steps"})
      deepspeed_.find("scheduler." + std::string(part));
  }

  void read_rest() {
    RunConfig& c = config();
    c.run.seed = args_.integer("seed").value_or(42);
    read_output_folder(sheet_, args_);
    c.log.every = std::max<int64_t>(1, static_cast<int64_t>(args_.number("logging_steps", 0, 1e9).value_or(10)));
    const std::optional<double> every = args_.number("save_steps", 0, 1e9);
    if (every) c.checkpoint.every = static_cast<int64_t>(*every);
    if (const auto keep = args_.integer("save_total_limit", 1, 1 << 20)) c.checkpoint.keep = *keep;
    if (const auto data = args_.text("dataset_name"); data && *data != "DATASET") c.data.train = *data;
  }

  ImportSheet& sheet_;
  ForeignSettings& args_;
  ForeignSettings& accelerate_;
  ForeignSettings& deepspeed_;
};

}  // namespace

void read_hub_training(ImportSheet& sheet, HubFiles& files) { TrainingReader(sheet, files).read(); }

}  // namespace fivefold
