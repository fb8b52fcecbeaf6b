#include <algorithm>
#include <cmath>

#include "exporters/torchtitan_files.h"

namespace fivefold {
namespace {

// As export writes "no clipping".
constexpr double kNoClip = 1e9;

class TrainingReader {
 public:
  TrainingReader(ImportSheet& sheet, ForeignSettings& settings) : sheet_(sheet), s_(settings) {}

  void read() {
    read_optimizer();
    read_lr();
  }

 private:
  RunConfig& config() { return sheet_.config(); }
  std::optional<std::string> text(std::initializer_list<std::string_view> names) {
    std::optional<std::string> value;
    for (const std::string_view name : names)
      if (s_.has(name))
        if (const std::optional<std::string> found = s_.text(name); found && !value) value = found;
    return value;
  }
  std::optional<int64_t> steps(std::initializer_list<std::string_view> names) {
    std::optional<int64_t> value;
    for (const std::string_view name : names)
      if (const std::optional<int64_t> found = s_.integer(name); found && !value) value = found;
    return value;
  }

  void read_optimizer() {
    OptimizerConfig& o = config().optimizer;
    o.decay = DecayScope::kAll;
    o.lr = s_.number("optimizer.lr", 0, 1e6).value_or(8e-4);
    o.eps = s_.number("optimizer.eps", 0, 1e6).value_or(1e-8);
    o.weight_decay = s_.number("optimizer.weight_decay", 0, 1e6).value_or(0.1);
    o.betas = {s_.number("optimizer.beta1", 0, 0.9999999).value_or(0.9),
               s_.number("optimizer.beta2", 0, 0.9999999).value_or(0.95)};
    if (const ForeignSetting* betas = s_.find("optimizer.betas")) read_betas(betas->value);
    if (const ForeignSetting* groups = s_.find("optimizer.param_groups"); groups != nullptr && groups->value.is_array())
      for (const nlohmann::json& group : groups->value)
        if (group.is_object()) read_group(group);
    s_.find("optimizer"), s_.find("optimizer.0");
    const std::string name = text({"optimizer.name"}).value_or("AdamW");
    if (name != "AdamW" && name != "Adam")
      sheet_.assume("optimizer.kind", "adamw", name + " is not known: states and update of Adam");
    if (s_.flag("optimizer.early_step_in_backward")) sheet_.add_switch("optimizer_in_backward", "on");
    const double clip = s_.number("training.max_norm", 0, 1e300).value_or(1.0);
    o.clip = clip >= kNoClip ? 0 : clip;
  }

  void read_betas(const nlohmann::json& betas) {
    if (betas.is_array() && betas.size() == 2 && betas[0].is_number() && betas[1].is_number())
      config().optimizer.betas = {std::clamp(betas[0].get<double>(), 0.0, 0.9999999),
                                  std::clamp(betas[1].get<double>(), 0.0, 0.9999999)};
  }

  // The last group is the one of most weights; one for norms that does not decay says that matrices alone do.
  void read_group(const nlohmann::json& group) {
    OptimizerConfig& o = config().optimizer;
    const nlohmann::json arguments = group.value("optimizer_kwargs", nlohmann::json::object());
    if (!arguments.is_object()) return;
    const auto number = [&](const char* key, double fallback) {
      return arguments.contains(key) && arguments[key].is_number() ? std::clamp(arguments[key].get<double>(), 0.0, 1e6)
                                                                   : fallback;
    };
    const std::string pattern =
        group.contains("pattern") && group["pattern"].is_string() ? group["pattern"].get<std::string>() : "";
    if (pattern.find("norm") != std::string::npos && number("weight_decay", 1) == 0) {
      o.decay = DecayScope::kMatrices;
      return;
    }
    o.lr = number("lr", o.lr), o.eps = number("eps", o.eps), o.weight_decay = number("weight_decay", o.weight_decay);
    if (arguments.contains("betas")) read_betas(arguments["betas"]);
  }

  void read_lr() {
    LrConfig& lr = config().lr;
    config().run.steps = s_.integer("training.steps", 0, int64_t{1} << 40).value_or(10000);
    lr.warmup_steps = steps({"lr_scheduler.warmup_steps", "training.warmup_steps"}).value_or(200);
    const std::optional<double> ratio = s_.number("lr_scheduler.decay_ratio", 0, 1);
    const std::string type = text({"lr_scheduler.decay_type", "lr_scheduler.lr_decay_type"}).value_or("linear");
    std::optional<double> least = s_.number("lr_scheduler.min_lr_factor", 0, 1);
    if (const std::optional<double> older = s_.number("lr_scheduler.lr_min", 0, 1); older && !least) least = older;
    s_.find("lr_scheduler");
    if (ratio && *ratio == 0) {
      lr.schedule = LrScheduleKind::kConstant;
      return;
    }
    lr.min_ratio = least.value_or(0);
    lr.schedule = ratio || type == "sqrt" ? LrScheduleKind::kWsd
                  : type == "cosine"      ? LrScheduleKind::kCosine
                                          : LrScheduleKind::kLinear;
    if (lr.schedule != LrScheduleKind::kWsd) return;
    const double steps = static_cast<double>(config().run.steps);
    lr.decay_steps = std::llround(ratio.value_or(1) * steps);
    if (!ratio) lr.decay_steps = std::max<int64_t>(0, config().run.steps - lr.warmup_steps);
    lr.decay = type == "cosine" ? WsdDecay::kCosine : type == "sqrt" ? WsdDecay::kOneMinusSqrt : WsdDecay::kLinear;
  }

  ImportSheet& sheet_;
  ForeignSettings& s_;
};

}  // namespace

void read_titan_training(ImportSheet& sheet, ForeignSettings& settings) { TrainingReader(sheet, settings).read(); }

}  // namespace fivefold
