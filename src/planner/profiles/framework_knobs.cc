#include "planner/profiles/framework_knobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/text.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

class Knobs {
 public:
  Knobs(const FrameworkPlan& plan, const HardwareSpec& hardware) : plan_(plan), hardware_(hardware) {}

  std::vector<Knob> find() {
    const FrameworkRun& run = plan_.run;
    if (run.framework != Framework::kHf) {
      axis("tp", &FrameworkRun::tp);
      axis("pp", &FrameworkRun::pp);
    }
    if (run.framework == Framework::kMegatron || run.framework == Framework::kFsdp2) axis("cp", &FrameworkRun::cp);
    if (has_experts()) experts();
    if (run.pp > 1) chunks();
    micro();
    zero();
    recompute();
    if (run.tp > 1)
      with(fmt::format("sp {} -> {}", run.sp ? "on" : "off", run.sp ? "off" : "on"),
           [](FrameworkRun& changed) { changed.sp = !changed.sp; });
    return std::move(knobs_);
  }

 private:
  bool has_experts() const {
    return std::ranges::any_of(plan_.run.model.layers, [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
  }
  template <class Change>
  void with(std::string name, const Change& change) {
    FrameworkRun run = plan_.run;
    change(run);
    Knob knob{.change = std::move(name), .plan = {}, .refused = {}};
    if (const std::vector<Error> errors = framework_refusals(run); !errors.empty())
      knob.refused = errors.front().problem;
    else
      knob.plan = framework_plan(run, hardware_);
    knobs_.push_back(std::move(knob));
  }
  // The stages of another pipeline: as even as they can be.
  static void cut_stages(FrameworkRun& run) {
    run.stage_layers.clear();
    const auto layers = static_cast<int64_t>(run.model.layers.size());
    if (run.pp == 1 || layers % (run.pp * run.vpp) == 0) return;
    for (const EndsCount ends : {EndsCount::kLoss, EndsCount::kBoth, EndsCount::kUneven})
      if (run.stage_layers.empty())
        run.stage_layers = stage_layers(layers, static_cast<int>(run.pp), static_cast<int>(run.vpp), ends);
  }
  void axis(const char* name, int64_t FrameworkRun::* degree) {
    const int64_t now = plan_.run.*degree, model = plan_.run.tp * plan_.run.cp * plan_.run.pp,
                  gpus = model * plan_.run.dp;
    for (const int64_t next : {2 * now, div_floor(now, int64_t{2})}) {
      if (next == 0 || gpus % (div_exact(model, now) * next) != 0 || (now % 2 != 0 && next < now)) continue;
      with(fmt::format("{} {} -> {}", name, now, next), [&](FrameworkRun& run) {
        const int64_t sequences = run.dp * run.microbatches * run.micro;
        run.*degree = next;
        run.dp = div_exact(gpus, div_exact(model, now) * next);
        if (run.tp > 1 && plan_.run.tp == 1) run.sp = true;
        if (run.tp == 1) run.sp = false;
        if (run.pp == 1) run.vpp = 1;
        run.shard_size = 0;
        run.micro = std::min(run.micro, std::max<int64_t>(1, div_floor(sequences, run.dp)));
        run.microbatches = std::max<int64_t>(1, div_floor(sequences, run.dp * run.micro));
        cut_stages(run);
      });
    }
  }
  void experts() {
    for (const int64_t next : {2 * plan_.run.ep, div_floor(plan_.run.ep, int64_t{2})})
      if (next > 0) with(fmt::format("ep {} -> {}", plan_.run.ep, next), [&](FrameworkRun& run) { run.ep = next; });
  }
  void chunks() {
    for (const int64_t next : {2 * plan_.run.vpp, div_floor(plan_.run.vpp, int64_t{2})})
      if (next > 0)
        with(fmt::format("vpp {} -> {}", plan_.run.vpp, next), [&](FrameworkRun& run) {
          run.vpp = next;
          cut_stages(run);
        });
  }
  void micro() {
    for (const int64_t next : {2 * plan_.run.micro, div_floor(plan_.run.micro, int64_t{2})}) {
      const int64_t rows = plan_.run.micro * plan_.run.microbatches;
      if (next > 0 && rows % next == 0)
        with(fmt::format("micro {} -> {}", plan_.run.micro, next), [&](FrameworkRun& run) {
          run.micro = next;
          run.microbatches = div_exact(rows, next);
        });
    }
  }
  void zero() {
    if (plan_.run.dp * plan_.run.cp == 1) return;
    for (const int next : {plan_.run.zero - 1, plan_.run.zero + 1})
      if (next >= 0 && next <= 3)
        with(fmt::format("zero {} -> {}", plan_.run.zero, next), [&](FrameworkRun& run) { run.zero = next; });
  }
  void recompute() {
    const bool full = plan_.run.checkpointing == Checkpointing::kFull;
    with(full ? "recompute full -> none" : "recompute -> full",
         [&](FrameworkRun& run) { run.checkpointing = full ? Checkpointing::kNone : Checkpointing::kFull; });
  }

  const FrameworkPlan& plan_;
  const HardwareSpec& hardware_;
  std::vector<Knob> knobs_;
};

}  // namespace

std::vector<Knob> framework_knobs(const FrameworkPlan& plan, const HardwareSpec& hardware) {
  return Knobs(plan, hardware).find();
}

std::string changed_parts(const FrameworkTime& from, const FrameworkTime& to, size_t most) {
  std::vector<std::pair<double, FrameworkPart>> changes;
  for (int i = 0; i < kNumFrameworkParts; ++i) {
    const auto part = static_cast<FrameworkPart>(i);
    const double change = to[part] - from[part];
    if (std::abs(change) >= 0.01 * from.seconds) changes.emplace_back(change, part);
  }
  std::ranges::stable_sort(changes, [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  if (changes.size() > most) changes.resize(most);
  std::vector<std::string> words;
  for (const auto& [change, part] : changes)
    words.push_back(fmt::format("{} {}{}", to_string(part), change > 0 ? "+" : "-", format_seconds(std::abs(change))));
  return join(words, ", ");
}

std::string layout_text(const FrameworkRun& run) {
  std::string text;
  const auto add = [&](std::string_view name, int64_t value) { text += fmt::format("{}={} ", name, value); };
  if (run.tp > 1) add("tp", run.tp);
  if (run.sp) text += "sp ";
  if (run.cp > 1) add("cp", run.cp);
  if (run.pp > 1) add("pp", run.pp);
  if (run.vpp > 1) add("vpp", run.vpp);
  if (run.ep > 1) add("ep", run.ep);
  if (run.expert_tp > 1) add("etp", run.expert_tp);
  add("dp", run.dp);
  add("zero", run.zero);
  if (run.shard_size > 0) add("shard_size", run.shard_size);
  add("micro", run.micro);
  text += fmt::format("accumulation={}", run.microbatches);
  switch (run.checkpointing) {
    case Checkpointing::kNone:
      break;
    case Checkpointing::kFull:
      text += " recompute=full";
      break;
    case Checkpointing::kCoreAttention:
    case Checkpointing::kPerOperation:
      text += " recompute=selective";
      break;
    case Checkpointing::kEveryOther:
      text += " recompute=every other layer";
      break;
  }
  if (run.fp8) text += " fp8";
  return text;
}

}  // namespace fivefold
