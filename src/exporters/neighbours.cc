#include "exporters/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/integer.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

struct Change {
  std::string name;
  FrameworkRun run;
};

class Changes {
 public:
  explicit Changes(const FrameworkRun& run) : run_(run), global_(run.micro * run.dp * run.microbatches) {}

  std::vector<Change> all() {
    batch();
    axes();
    recompute();
    sharding();
    kernels();
    return std::move(changes_);
  }

 private:
  // Keeps the GPUs and the global batch; drops what they do not allow.
  void add(std::string name, const std::function<void(FrameworkRun&)>& change) {
    FrameworkRun next = run_;
    change(next);
    const int64_t axes = next.tp * next.cp * next.pp, world = run_.dp * run_.tp * run_.cp * run_.pp;
    if (world % axes != 0) return;
    next.dp = div_exact(world, axes);
    const int64_t round = next.micro * next.dp;
    if (next.micro < 1 || global_ % round != 0) return;
    next.microbatches = div_exact(global_, round);
    if (next.shard_size > next.dp * next.cp) next.shard_size = 0;
    if (!framework_refusals(next).empty()) return;
    changes_.push_back({std::move(name), std::move(next)});
  }

  void batch() {
    add(fmt::format("batch.micro = {}", 2 * run_.micro), [](FrameworkRun& r) { r.micro *= 2; });
    if (run_.micro > 1 && run_.micro % 2 == 0)
      add(fmt::format("batch.micro = {}", run_.micro / 2),
          [](FrameworkRun& r) { r.micro = div_exact(r.micro, int64_t{2}); });
  }

  void axis(const char* name, int64_t FrameworkRun::* degree) {
    const int64_t now = run_.*degree;
    add(fmt::format("parallel.{} = {}", name, 2 * now), [=](FrameworkRun& r) {
      r.*degree = 2 * now;
      adapt(r);
    });
    if (now > 1 && now % 2 == 0)
      add(fmt::format("parallel.{} = {}", name, now / 2), [=](FrameworkRun& r) {
        r.*degree = now / 2;
        adapt(r);
      });
  }
  static void adapt(FrameworkRun& run) {
    if (run.tp == 1) run.sp = false;
    if (run.pp == 1) run.vpp = 1;
    if (run.stage_layers.size() != static_cast<size_t>(run.pp)) run.stage_layers.clear();
    if (run.expert_tp.value > run.tp) run.expert_tp.value = run.tp;
  }
  void axes() {
    axis("tp", &FrameworkRun::tp);
    axis("pp", &FrameworkRun::pp);
    axis("cp", &FrameworkRun::cp);
    const bool experts =
        std::ranges::any_of(run_.model.layers, [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
    if (experts) axis("ep", &FrameworkRun::ep);
    if (run_.tp > 1 && !run_.sp) add("parallel.sp = true", [](FrameworkRun& r) { r.sp = true; });
    if (run_.pp > 1) add(fmt::format("parallel.vpp = {}", 2 * run_.vpp), [](FrameworkRun& r) { r.vpp *= 2; });
  }

  void recompute() {
    const std::pair<const char*, Checkpointing> kinds[] = {
        {"none", Checkpointing::kNone},
        {"full", Checkpointing::kFull},
        {"selective",
         run_.framework == Framework::kFsdp2 ? Checkpointing::kPerOperation : Checkpointing::kCoreAttention}};
    for (const auto& [name, kind] : kinds) {
      if (kind == run_.checkpointing) continue;
      if (kind == Checkpointing::kCoreAttention && run_.framework != Framework::kMegatron) continue;
      add(fmt::format("recompute.kind = \"{}\"", name), [kind = kind](FrameworkRun& r) { r.checkpointing = kind; });
    }
  }

  void sharding() {
    for (int level = 0; level <= 3; ++level)
      if (level != run_.zero && run_.dp * run_.cp > 1)
        add(fmt::format("parallel.zero = {}", level), [level](FrameworkRun& r) { r.zero = level; });
  }

  void kernels() {
    const auto cross_entropy = [&](const char* name, CrossEntropyKernel kernel) {
      if (run_.cross_entropy.value != kernel)
        add(fmt::format("switch cross_entropy={}", name), [kernel](FrameworkRun& r) { r.cross_entropy.set(kernel); });
    };
    if (run_.framework == Framework::kMegatron)
      cross_entropy("native_fused", CrossEntropyKernel::kNativeFused);
    else
      cross_entropy("chunked", CrossEntropyKernel::kChunked);
    if (run_.attention.value == AttentionKernel::kUnfused)
      add("switch attention=flash", [](FrameworkRun& r) { r.attention.set(AttentionKernel::kFlash); });
    if (run_.framework == Framework::kFsdp2 && !run_.sharding.compiled.value)
      add("switch compiled=on", [](FrameworkRun& r) { r.sharding.compiled.set(true); });
    if (run_.framework == Framework::kHf && !run_.hf.fused_norms.value)
      add("switch fused_norms=on", [](FrameworkRun& r) { r.hf.fused_norms.set(true); });
    if (!run_.optimizer_on_host.value)
      add("switch optimizer_on_host=on", [](FrameworkRun& r) { r.optimizer_on_host.set(true); });
    if (run_.optimizer_state_bits.value == 32 && run_.framework == Framework::kHf)
      add("precision.optimizer_state = \"8bit\"", [](FrameworkRun& r) { r.optimizer_state_bits.set(8); });
  }

  const FrameworkRun& run_;
  int64_t global_;
  std::vector<Change> changes_;
};

bool is_better(const Neighbour& a, const Neighbour& b) {
  if (a.judged.fits() != b.judged.fits()) return a.judged.fits();
  if (!a.judged.fits()) return a.judged.needed < b.judged.needed;
  return a.judged.time.tokens_per_s > b.judged.time.tokens_per_s;
}

}  // namespace

JudgedRun judge(const FrameworkRun& run, const HardwareSpec& hardware) {
  JudgedRun judged;
  judged.needed = needed_bytes(profile_memory(run));
  judged.capacity = run.capacity_bytes;
  if (const Result<FrameworkTime> time = framework_time(run, hardware); time.ok()) judged.time = *time;
  return judged;
}

std::vector<Neighbour> neighbours(const FrameworkRun& run, const HardwareSpec& hardware) {
  std::vector<Neighbour> found;
  const std::vector<Change> changes = Changes(run).all();
  for (const Change& change : changes) found.push_back({change.name, judge(change.run, hardware)});
  const bool fits = std::any_of(found.begin(), found.end(), [](const Neighbour& n) { return n.judged.fits(); });
  if (!fits && !judge(run, hardware).fits())
    for (const Change& first : changes)
      for (const Change& second : Changes(first.run).all())
        if (first.name < second.name) found.push_back({first.name + ", " + second.name, judge(second.run, hardware)});
  std::stable_sort(found.begin(), found.end(), is_better);
  return found;
}

}  // namespace fivefold
