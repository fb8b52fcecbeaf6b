#include "planner/profiles/host_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/profiles/hf_parts.h"
#include "planner/profiles/model_sizes.h"

namespace fivefold {
namespace {

// Resident memory of a process of PyTorch that has a GPU: interpreter, libraries, the context's part. Assumed.
constexpr double kProcess = 2 * 0x1p30;

// A rank's parameters before data parallelism divides them.
struct RankParameters {
  explicit RankParameters(const FrameworkRun& run) {
    const ModelSizes sizes = model_sizes(run);
    const double tables = static_cast<double>(sizes.table + sizes.head), stages = static_cast<double>(run.pp);
    all = static_cast<double>(sizes.total());
    if (run.pp > 1) all = (all - tables) / stages + static_cast<double>(std::max(sizes.table, sizes.head));
    trained = run.trains_adapter ? static_cast<double>(hf_parameters(run).adapter) / stages : all;
    for (const int64_t layer : sizes.layers) largest = std::max(largest, static_cast<double>(layer));
    largest = std::max({largest, static_cast<double>(sizes.table), static_cast<double>(sizes.head)});
  }
  double all = 0, trained = 0;
  double largest = 0;  // of the units: a layer, a table
};

double ranks_of_group(const FrameworkRun& run) {
  return static_cast<double>(run.shard_size > 0 ? run.shard_size : run.dp * run.cp);
}

bool is_deepspeed(const FrameworkRun& run) {
  return run.framework == Framework::kDeepspeed || (run.framework == Framework::kHf && run.hf.deepspeed);
}

// Bytes of a weight as it is loaded.
double loaded_bytes(const FrameworkRun& run) {
  if (is_deepspeed(run)) return 2;
  return static_cast<double>(dtype_bytes(run.trains_adapter ? run.compute : run.weight_dtype.value));
}

double frozen_width(const FrameworkRun& run) {
  const FrozenBytes frozen = frozen_bytes(run);
  return frozen.cut + frozen.whole;
}

// DeepSpeed: fp32 weights, moments and gradients of the partition (16 B), and its weights in 16 bits. FSDP: what it
// would hold on the GPU.
void add_offloaded(const FrameworkRun& run, const RankParameters& n, ProfilePhase& step) {
  const double ranks = ranks_of_group(run), of_states = run.zero >= 1 ? ranks : 1,
               of_weights = run.zero >= 3 ? ranks : 1;
  const auto trained_width =
      static_cast<double>(dtype_bytes(run.trains_adapter ? run.hf.adapter_dtype.value : run.weight_dtype.value));
  const bool weights = run.sharding.weights_on_host, states = run.optimizer_on_host || weights;
  if (weights) {
    const double width = run.trains_adapter ? frozen_width(run) : is_deepspeed(run) ? 2 : trained_width;
    add_line(step, "weights", width * n.all / of_weights,
             fmt::format("{:g} B x {:.0f} / {:g}", width, n.all, of_weights));
  }
  if (!states) return;
  if (is_deepspeed(run)) {
    add_line(step, "optimizer", 12 * n.trained / of_states, fmt::format("12 B x {:.0f} / {:g}", n.trained, of_states));
    add_line(step, "fp32 gradients", 4 * n.trained / of_states,
             fmt::format("4 B x {:.0f} / {:g}", n.trained, of_states));
    return;
  }
  const double moments = 2.0 * run.optimizer_state_bits / 8.0 * (trained_width / 4);
  add_line(step, "optimizer", moments * n.trained / of_states,
           fmt::format("{:g} B x {:.0f} / {:g}", moments, n.trained, of_states));
  if (weights)
    add_line(step, "gradients", trained_width * n.trained / of_states,
             fmt::format("{:g} B x {:.0f} / {:g}", trained_width, n.trained, of_states));
}

}  // namespace

ModelInit model_init(const FrameworkRun& run) {
  if (!run.init.assumed) return run.init;
  if (run.framework != Framework::kHf) return ModelInit::kSharded;
  if (run.hf.wraps_on_device) return ModelInit::kOnDevice;
  if (run.zero < 3 || run.dp == 1) return ModelInit::kEveryRank;
  return run.hf.deepspeed ? ModelInit::kSharded : ModelInit::kFirstRank;
}

void add_host_memory(const FrameworkRun& run, ProfileMemory& memory) {
  const RankParameters n(run);
  HostMemory& host = memory.host;
  add_line(host.step, "process", kProcess, "interpreter and libraries, assumed");
  add_line(host.start, "process", kProcess, "interpreter and libraries, assumed");
  add_offloaded(run, n, host.step);
  if (run.activations_on_host)
    add_line(
        host.step, "layer inputs",
        2.0 * static_cast<double>(run.model.hidden) * static_cast<double>(run.model.layers.size()) *
            static_cast<double>(rank_tokens(run)),
        fmt::format("2 B x h {} x {} layers x {} tokens", run.model.hidden, run.model.layers.size(), rank_tokens(run)));
  const double width = loaded_bytes(run), whole = width * n.all;
  const bool cut = run.zero >= 3 && ranks_of_group(run) > 1;
  const double shards = cut ? ranks_of_group(run) : 1;
  const ModelInit init = model_init(run);
  if (init == ModelInit::kEveryRank)
    add_line(host.start, "whole model", whole, fmt::format("{:g} B x {:.0f}", width, n.all));
  if (init == ModelInit::kFirstRank) host.start_of_node = static_cast<int64_t>(whole);
  // A whole model is freed unit by unit as these are flattened and cut.
  if (init == ModelInit::kOnDevice || !cut)
    add_line(memory.start, "whole model", whole, fmt::format("{:g} B x {:.0f}", width, n.all));
  else
    add_line(memory.start, "shard", whole / shards, fmt::format("{:g} B x {:.0f} / {:g}", width, n.all, shards));
  if (cut)
    add_line(memory.start, "unit", width * n.largest, fmt::format("{:g} B x {:.0f}, the largest", width, n.largest));
}

}  // namespace fivefold
