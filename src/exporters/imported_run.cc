#include "exporters/imported_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "exporters/setting_kinds.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

using Importer = void (*)(ImportSheet&, std::string_view, const std::string&);
constexpr Importer kImporters[] = {import_megatron,   import_torchtitan, import_deepspeed,
                                   import_accelerate, import_trl,        import_axolotl};

bool contains(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

std::optional<ForeignTarget> detect_structured(std::string_view text, bool yaml) {
  if (yaml && contains(text, {"base_model:"})) return ForeignTarget::kAxolotl;
  if (yaml && contains(text, {"distributed_type:", "compute_environment:"})) return ForeignTarget::kAccelerate;
  if (contains(text, {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}))
    return ForeignTarget::kDeepspeed;
  if (contains(text, {"model_name_or_path", "per_device_train_batch_size"})) return ForeignTarget::kTrl;
  return {};
}

std::optional<ForeignTarget> detect_script(std::string_view text) {
  // Another framework's program is named in the command, its arguments give it away otherwise.
  if (contains(text, {"num-layers", "pretrain_gpt", "tensor-model-parallel-size", "--num-attention-heads"}))
    return ForeignTarget::kMegatron;
  if (contains(text, {"torchtitan"})) return ForeignTarget::kTorchtitan;
  if (contains(text, {"axolotl"})) return ForeignTarget::kAxolotl;
  if (contains(text, {"accelerate launch", "accelerate.commands.launch"})) return ForeignTarget::kAccelerate;
  if (contains(text, {"--deepspeed", "deepspeed "})) return ForeignTarget::kDeepspeed;
  if (contains(text, {"per_device_train_batch_size", "model_name_or_path", "trl sft", "per-device-train-batch-size"}))
    return ForeignTarget::kTrl;
  return {};
}

}  // namespace

std::optional<ForeignTarget> detect_target(std::string_view text, const std::string& name) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (ends(".json")) return detect_structured(text, false).value_or(ForeignTarget::kDeepspeed);
  if (ends(".yaml") || ends(".yml")) return detect_structured(text, true);
  if (ends(".toml") || ends(".py")) return ForeignTarget::kTorchtitan;
  if (const auto script = detect_script(text)) return script;
  return detect_structured(text, true);
}

Imported import_run(ForeignTarget source, std::string_view text, const std::string& where,
                    const ImportOptions& options) {
  ImportSheet sheet(source, options);
  kImporters[static_cast<size_t>(source)](sheet, text, where);
  // What the other framework takes may lie outside what a key of the configuration holds.
  if (sheet.run.errors.empty())
    for (const Error& error : parse_config(to_toml(sheet.config()), where).errors) sheet.run.errors.push_back(error);
  if (!sheet.has_model() && sheet.run.errors.empty())
    sheet.fail(where, "says nothing of the model", "import with --model NAME or a folder with its config.json");
  return std::move(sheet.run);
}

void ImportSheet::find_named_model(const std::string& repository, const std::string& where) {
  const std::string& name = options_.model.empty() ? repository : options_.model;
  std::optional<FoundModel> found = find_model(name);
  if (!found)
    return fail(where, fmt::format("`{}` is no model that fivefold knows", name),
                "import with --model NAME (`fivefold plan --list models`) or a folder with its config.json");
  if (!found->exact) assume("model.name", found->config.name, "what " + name + " is made from");
  take_model(*std::move(found));
}

void ImportSheet::take_model(FoundModel found) {
  run.model = std::move(found.spec);
  run.config.model.name = found.config.name;
  run.config.model.config = found.config.config;
}

void ImportSheet::set_world(int64_t ranks, const std::string& where) {
  ParallelConfig& p = run.config.parallel;
  const int64_t model_ranks = int64_t{p.tp} * p.pp * p.cp;
  if (ranks % model_ranks != 0)
    return fail(
        where,
        fmt::format("{} GPUs are no multiple of tp x pp x cp = {} x {} x {} = {}", ranks, p.tp, p.pp, p.cp,
                    model_ranks),
        fmt::format("use {} GPUs", std::max<int64_t>(model_ranks, div_floor(ranks, model_ranks) * model_ranks)));
  if (div_exact(ranks, model_ranks) > (1 << 20)) return fail(where, "more GPUs than fivefold plans for");
  p.dp = static_cast<int>(div_exact(ranks, model_ranks));
  const int64_t round = run.config.batch.micro * p.dp;
  int64_t& global = run.config.batch.global;
  if (global == 0) global = round;
  if (global % round != 0)
    fail(where,
         fmt::format("a global batch of {} is no multiple of micro x dp = {} x {} = {}", global, run.config.batch.micro,
                     p.dp, round),
         fmt::format("use {}", std::max<int64_t>(round, div_floor(global, round) * round)));
}

void ImportSheet::close(const ForeignSettings& settings) {
  for (const Error& error : settings.errors()) run.errors.push_back(error);
  for (const ForeignSetting* setting : settings.unread()) {
    ImportNote note{setting->name, foreign_value_text(setting->value), "", setting->where};
    if (const std::optional<std::string> why = irrelevant_setting(run.source, setting->lookup_name())) {
      note.why = *why;
      run.ignored.push_back(std::move(note));
    } else {
      run.unknown.push_back(std::move(note));
    }
  }
}

}  // namespace fivefold
