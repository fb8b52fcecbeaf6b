// DeepSpeed: ZeRO 1 to 3 over fp16 or bf16 weights, also under the pipelines of Megatron-DeepSpeed. Derivations and
// constants: docs/profiles/deepspeed.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/model_sizes.h"

namespace fivefold {
namespace {

// A parameter, beside weights and gradients: flattened copies that stay reserved. BF16_Optimizer makes one more.
constexpr double kFlatCopies = 0.5, kFlatCopiesBf16 = 2.5;
// Checkpoints with what the pipeline engine's buffers and the allocator hold beside them.
constexpr double kCheckpointFactor = 1.5;
// CUDA context, NCCL's communicators, fused kernels: A100, in nvidia-smi's figure.
constexpr double kProcess = 5 * 0x1p30;
constexpr double kSubGroup = 1e9;   // elements that level 2 and 3 step at a time
constexpr double kLogitsBytes = 6;  // bf16 or fp16, and fp32

class DeepspeedStage {
 public:
  DeepspeedStage(const FrameworkRun& run, const ModelSizes& sizes, int64_t stage)
      : run_(run), sizes_(sizes), stage_(stage) {
    place_layers();
    for (int64_t layer = first_; layer < first_ + count_; ++layer)
      parameters_ += static_cast<double>(sizes.layers[static_cast<size_t>(layer)]);
    if (is_first()) parameters_ += static_cast<double>(sizes.table);
    if (is_last()) parameters_ += static_cast<double>(sizes.norm + sizes.head);
    // A tied output matrix on a stage without the token table is a copy of it.
    if (is_last() && run.model.tied_embeddings && run.pp > 1) parameters_ += static_cast<double>(sizes.table);
  }

  ProfileMemory memory() const {
    ProfileMemory memory;
    ProfilePhase step{.name = "step", .lines = {}};
    add_states(step);
    ProfilePhase update{.name = "optimizer", .lines = step.lines, .fragments = false};
    memory.static_bytes = step.bytes();
    add_buckets(step);
    add_activations(step);
    memory.phases.push_back(std::move(step));
    if (run_.zero >= 2 && !run_.optimizer_on_host) {
      add_line(update, "fp32 gradients", 4 * std::min(kSubGroup, parameters_ / ranks()),
               "4 B x a sub-group of 1e9 at most");
      memory.phases.push_back(std::move(update));
    }
    for (ProfilePhase& phase : memory.phases)
      if (run_.sharding.counts_process) add_line(phase, "context and libraries", kProcess, "constant");
    return memory;
  }

 private:
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == run_.pp - 1; }
  double tp() const { return static_cast<double>(run_.tp); }
  double hidden() const { return static_cast<double>(run_.model.hidden); }
  double tokens() const { return static_cast<double>(rank_tokens(run_)); }
  double in_flight() const { return static_cast<double>(std::min(run_.microbatches, run_.pp - stage_)); }

  // Stages of as many layers; where only layers with token table and output matrix divide, those count as one each.
  void place_layers() {
    const auto layers = static_cast<int64_t>(run_.model.layers.size());
    if (!run_.stage_layers.empty()) {
      for (int64_t before = 0; before < stage_; ++before) first_ += run_.stage_layers[static_cast<size_t>(before)];
      count_ = run_.stage_layers[static_cast<size_t>(stage_)];
    } else if (layers % run_.pp != 0 && (layers + 2) % run_.pp == 0) {
      const int64_t blocks = div_exact(layers + 2, run_.pp);
      first_ = std::max<int64_t>(0, stage_ * blocks - 1);
      count_ = std::min(layers, (stage_ + 1) * blocks - 1) - first_;
    } else {
      count_ = div_ceil(layers, run_.pp);
      first_ = std::min(stage_ * count_, layers - count_);
    }
  }

  void add_states(ProfilePhase& step) const {
    const double n = parameters_;
    const double of_weights = run_.zero >= 3 ? ranks() : 1, of_gradients = run_.zero >= 2 ? ranks() : 1,
                 of_states = run_.zero >= 1 ? ranks() : 1;
    const bool bf16 = run_.sharding.bf16_optimizer;
    if (run_.zero < 3 || !run_.sharding.weights_on_host)
      add_line(step, "weights", 2 * n / of_weights, fmt::format("2 B x {:.0f} / {:g}", n, of_weights));
    // ZeRO-Offload hands a reduced gradient to the host at once.
    if (run_.zero < 2 || !run_.optimizer_on_host)
      add_line(step, "gradients", 2 * n / of_gradients, fmt::format("2 B x {:.0f} / {:g}", n, of_gradients));
    if (run_.zero >= 2) {
      if (!run_.optimizer_on_host)
        add_line(step, "optimizer", 12 * n / of_states, fmt::format("12 B x {:.0f} / {:g}", n, of_states));
      if (run_.zero == 3) add_reduce_bucket(step);
      return;
    }
    if (bf16) add_line(step, "fp32 gradients", 4 * n, fmt::format("4 B x {:.0f}", n));
    const double copies = bf16 ? kFlatCopiesBf16 : kFlatCopies;
    add_line(step, "flattened copies", copies * n, fmt::format("{:g} B x {:.0f}", copies, n));
    if (run_.optimizer_on_host) return;
    add_line(step, "optimizer", 12 * n / of_states, fmt::format("12 B x {:.0f} / {:g}", n, of_states));
    // FP16_Optimizer's step: the partition's gradients in fp16, flattened, and in fp32.
    if (!bf16)
      add_line(step, "partition's gradients", 6 * n / of_states, fmt::format("6 B x {:.0f} / {:g}", n, of_states));
  }

  double ranks() const { return static_cast<double>(run_.dp * run_.cp); }

  // Of level 3 it stays allocated.
  void add_reduce_bucket(ProfilePhase& phase) const {
    const auto elements = static_cast<double>(run_.zero_buffers.reduce_bucket.value);
    const double buffers = run_.zero == 2 && run_.zero_buffers.second_bucket ? 2 : 1;
    add_line(phase, "reduce bucket", 2 * buffers * elements, fmt::format("2 B x {:g} x {:g}", elements, buffers));
  }
  // What the backward pass of levels 2 and 3 has beside the states: contiguous buffers of their full size, however
  // small the model, and of level 3 the copy that is scattered and the parameters that are gathered.
  void add_buckets(ProfilePhase& phase) const {
    if (run_.zero == 2) add_reduce_bucket(phase);
    if (run_.zero < 3) return;
    const auto bucket = static_cast<double>(run_.zero_buffers.reduce_bucket.value);
    const double scattered = std::min(bucket, parameters_);
    add_line(phase, "scattered gradients", 2 * scattered, fmt::format("2 B x {:g}", scattered));
    const double live = std::min(parameters_, static_cast<double>(run_.zero_buffers.live_parameters.value));
    add_line(phase, "live parameters", 2 * live, fmt::format("2 B x {:g} gathered", live));
    add_line(phase, "gradients of the largest layer", 2 * static_cast<double>(largest_layer()),
             fmt::format("2 B x {}", largest_layer()));
  }
  int64_t largest_layer() const {
    int64_t largest = std::max(sizes_.table, sizes_.head);
    for (const int64_t layer : sizes_.layers) largest = std::max(largest, layer);
    return largest;
  }

  // Not under sequence parallelism: the h-terms are whole on each rank. Scores of unfused attention in 2 B with their
  // softmax, and the dropout mask.
  double layer_bytes(const LayerSpec& layer) const {
    const LayerWidths w = layer_widths(layer);
    const double scores =
        run_.attention == AttentionKernel::kUnfused ? 5 * w.heads * static_cast<double>(run_.sequence) : 4 * w.heads;
    return 8 * hidden() + (run_.dropout ? 2 * hidden() : 0) +
           (2 * w.query + 2 * w.output + 2 * w.key_value + (w.gated ? 8 : 4) * w.inner + scores) / tp();
  }

  void add_activations(ProfilePhase& step) const {
    double kept = 0, largest = 0;
    for (int64_t layer = first_; layer < first_ + count_; ++layer) {
      const double bytes = layer_bytes(run_.model.layers[static_cast<size_t>(layer)]);
      largest = std::max(largest, bytes);
      kept += run_.checkpointing == Checkpointing::kFull ? 2 * hidden() : bytes;
    }
    const double elements = is_last() ? tokens() * static_cast<double>(run_.model.vocab) / tp() : 0;
    if (run_.checkpointing != Checkpointing::kFull) {
      add_line(step, "activations", kept * tokens() * in_flight(), fmt::format("{:g} B a token", kept));
      add_line(step, "logits", kLogitsBytes * elements, fmt::format("{:g} B x {:.0f}", kLogitsBytes, elements));
      return;
    }
    // The layer that runs again and the logits fit in what the pipeline holds beside its checkpoints.
    const double checkpoints = kept * tokens() * in_flight();
    add_line(step, "layer inputs", checkpoints,
             fmt::format("{:g} B a token x {:g} x {:g} in flight", kept, tokens(), in_flight()));
    const double live = std::max(largest * tokens(), kLogitsBytes * elements);
    const double beside = run_.pp > 1 ? (kCheckpointFactor - 1) * checkpoints : 0;
    add_line(step, "beside layer inputs", std::max(live, beside), "pipeline buffers, or the layer that runs again");
  }

  const FrameworkRun& run_;
  const ModelSizes& sizes_;
  int64_t stage_, first_ = 0, count_ = 0;
  double parameters_ = 0;
};

}  // namespace

ProfileMemory deepspeed_memory(const FrameworkRun& run) {
  const ModelSizes sizes = model_sizes(run);
  ProfileMemory most = reported_memory(run, [&](int64_t stage) { return DeepspeedStage(run, sizes, stage).memory(); });
  if (run.sharding.bf16_optimizer.assumed && run.compute == DType::kBFloat16)
    most.assumed.emplace_back("bf16: gradients are added in bf16");
  if (run.attention.assumed) most.assumed.emplace_back("attention: a flash kernel, no scores kept");
  return most;
}

}  // namespace fivefold
