// transformers' Trainer, TRL and PEFT, eager: alone on a GPU, under DDP, FSDP 1 or DeepSpeed. Three moments compete for
// the peak: the loss, the backward pass (at the last layer, where all inputs of layers are there, or at the first,
// where all gradients are), and the optimizer. Derivations and constants: docs/profiles/hf.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/hf_states.h"

namespace fivefold {
namespace {

constexpr double kMiB = 1 << 20;

class HfStep {
 public:
  explicit HfStep(const FrameworkRun& run) : run_(run), held_(run), n_(held_.parameters()), states_(held_.lines()) {
    for (const LayerSpec& layer : run.model.layers) {
      const HfLayerBytes bytes = hf_layer_bytes(run, layer);
      kept_all_ += bytes.kept, whole_all_ += bytes.whole;
      if (bytes.kept + bytes.gradients > layer_.kept + layer_.gradients) layer_ = bytes;
    }
  }

  ProfileMemory memory() {
    ProfileMemory memory;
    for (const ProfileLine& line : states_) memory.static_bytes += line.bytes;
    memory.phases.push_back(loss());
    memory.phases.push_back(backward_of_last());
    if (checkpoints()) memory.phases.push_back(backward_of_first());
    memory.phases.push_back(optimizer());
    for (ProfilePhase& phase : memory.phases) add_outside(phase);
    return memory;
  }

 private:
  bool checkpoints() const { return run_.checkpointing == Checkpointing::kFull; }
  double layers() const { return static_cast<double>(run_.model.layers.size()); }
  double residual_width() const { return run_.hf.fp32_residual || held_.wide() ? 4 : 2; }
  double h() const { return static_cast<double>(run_.model.hidden); }
  double tokens() const {
    return static_cast<double>(
        run_.micro * (run_.sequence + (run_.hf.adapter == AdapterKind::kPrompt ? run_.hf.virtual_tokens : 0)));
  }
  // Weights that FSDP has gathered: the root, and a layer when `with_layer`. In the type of the computation; codes stay
  // as they are.
  void add_gathered(ProfilePhase& phase, bool with_layer) const {
    if (!held_.sharded()) return;
    const double cut = held_.full() ? 2 : frozen_bytes(run_).cut;
    add_line(phase.lines, "root", 2 * static_cast<double>(n_.embeddings),
             fmt::format("2 B x {}: table and output matrix stay gathered", n_.embeddings));
    if (with_layer)
      add_line(phase.lines, "gathered layer",
               cut * static_cast<double>(n_.layer_linear) + 2 * static_cast<double>(n_.layer_vectors),
               fmt::format("{} B x {}", cut, n_.layer_linear));
  }

  // Of earlier microbatches of the step.
  void add_accumulated(ProfilePhase& phase) const {
    if (run_.microbatches <= 1 || held_.on_host()) return;
    const double width = run_.hf.deepspeed && held_.full() ? 2 : held_.trained_width();
    add_line(phase.lines, "accumulated gradients", width * held_.trained() / held_.trained_shards(),
             fmt::format("{} B x {} / {}", width, held_.trained(), held_.trained_shards()));
    if (run_.hf.trains_embeddings)
      add_line(phase.lines, "gradients of embeddings", 2 * static_cast<double>(n_.embeddings),
               fmt::format("2 B x {}", n_.embeddings));
  }

  void add_kept(ProfilePhase& phase) const {
    if (checkpoints())
      add_line(phase.lines, "layer inputs", residual_width() * h() * layers() * tokens(),
               fmt::format("{} B x h {} x {} layers x {} tokens", residual_width(), h(), layers(), tokens()));
    else
      add_line(phase.lines, "activations", kept_all_ * tokens() + whole_all_,
               fmt::format("{} B a token x {}", kept_all_, tokens()));
  }

  ProfilePhase loss() const {
    ProfilePhase phase{.name = "loss", .lines = states_};
    add_accumulated(phase);
    add_kept(phase);
    add_gathered(phase, false);
    if (held_.wide())
      add_line(phase.lines, "cast weights", 2 * static_cast<double>(n_.linear + n_.head),
               fmt::format("2 B x {}: autocast's cache", n_.linear + n_.head));
    if (!held_.full() && run_.hf.autocast && !run_.hf.fused_adapters)
      add_line(phase.lines, "cast adapters", 2 * held_.trained(),
               fmt::format("2 B x {}: autocast's cache", n_.adapter));
    add_line(phase.lines, "loss", hf_loss_bytes(run_) * tokens(),
             fmt::format("{} B a token x {}", hf_loss_bytes(run_), tokens()));
    if (held_.full() && run_.cross_entropy == CrossEntropyKernel::kChunked)
      add_line(phase.lines, "gradient of the output matrix", 2 * static_cast<double>(n_.head),
               fmt::format("2 B x {}", n_.head));
    return phase;
  }

  double live_layer() const {
    // The output of the layer that runs again is there beside its gradient.
    return layer_.kept - layer_.freed + layer_.gradients + (checkpoints() ? residual_width() * h() : 0);
  }

  ProfilePhase backward_of_last() const {
    ProfilePhase phase{.name = "backward, last layer", .lines = states_};
    add_accumulated(phase);
    add_kept(phase);
    add_gathered(phase, true);
    if (checkpoints())
      add_line(phase.lines, "layer", live_layer() * tokens() + layer_.whole,
               fmt::format("{} B a token x {}", live_layer(), tokens()));
    else
      add_line(phase.lines, "layer", (layer_.gradients - layer_.freed) * tokens(),
               fmt::format("{} B a token x {}", layer_.gradients - layer_.freed, tokens()));
    if (held_.full()) {
      const double width = held_.sharded() ? 2 : held_.trained_width();
      add_line(phase.lines, "gradients", width * static_cast<double>(n_.head + div_floor(n_.layer_linear, 4)),
               fmt::format("{} B x (output matrix {} + down projection)", width, n_.head));
    }
    return phase;
  }

  ProfilePhase backward_of_first() const {
    ProfilePhase phase{.name = "backward, first layer", .lines = states_};
    add_gathered(phase, true);
    // FSDP 1 hooks the inputs of a unit that is frozen; until the pass ends the hooks hold the inputs of all layers,
    // and the gradients of these.
    if (held_.fsdp() && !held_.full()) {
      add_kept(phase);
      add_line(phase.lines, "gradients of layer inputs", 2 * h() * std::max(0.0, layers() - 2) * tokens(),
               fmt::format("2 B x h {} x {} layers x {} tokens: held by FSDP's hooks", h(), layers() - 2, tokens()));
    } else {
      add_line(phase.lines, "layer input", residual_width() * h() * tokens(),
               fmt::format("{} B x h {} x {} tokens", residual_width(), h(), tokens()));
    }
    add_line(phase.lines, "layer", live_layer() * tokens() + layer_.whole,
             fmt::format("{} B a token x {}", live_layer(), tokens()));
    if (held_.full() && held_.sharded()) {
      const int64_t done = n_.linear + n_.vectors - n_.layer_linear - n_.layer_vectors;
      const double kept = held_.on_host() ? 0 : held_.trained_width() * static_cast<double>(done);
      add_line(
          phase.lines, "gradients", kept / held_.trained_shards(),
          fmt::format("{} B x {} / {}: of the layers behind it", held_.trained_width(), done, held_.trained_shards()));
      add_line(phase.lines, "whole gradients", 2 * static_cast<double>(n_.head + div_floor(n_.layer_linear, 4)),
               fmt::format("2 B x (output matrix {} + down projection)", n_.head));
    } else {
      add_line(phase.lines, "gradients", held_.gradient_bytes(),
               fmt::format("{} B x {} / {}", held_.trained_width(), held_.trained(), held_.trained_shards()));
    }
    return phase;
  }

  ProfilePhase optimizer() const {
    ProfilePhase phase{.name = "optimizer", .lines = states_, .fragments = false};
    if (held_.on_host()) return phase;
    if (run_.hf.deepspeed && held_.full()) {
      add_line(phase.lines, "gradients", 2 * held_.trained() / held_.trained_shards(),
               fmt::format("2 B x {} / {}", held_.trained(), held_.trained_shards()));
      add_line(phase.lines, "fp32 gradients", 4 * std::min(1e9, held_.trained() / held_.trained_shards()),
               "4 B x a sub-group of 1e9 at most");
      return phase;
    }
    add_line(phase.lines, "gradients", held_.gradient_bytes(),
             fmt::format("{} B x {} / {}", held_.trained_width(), held_.trained(), held_.trained_shards()));
    if (run_.optimizer_state_bits == 32 && !run_.optimizer_on_host)
      add_line(phase.lines, "update", held_.gradient_bytes(), "AdamW's foreach: one list of temporaries");
    if (run_.hf.trains_embeddings)
      add_line(phase.lines, "gradients of embeddings", 4 * static_cast<double>(n_.embeddings),
               fmt::format("(2 + 2) B x {}", n_.embeddings));
    return phase;
  }

  // What the figure counts beside allocated bytes.
  void add_outside(ProfilePhase& phase) const {
    switch (run_.hf.figure) {
      case MemoryFigure::kAllocated:
        return;
      case MemoryFigure::kReserved:
        add_line(phase.lines, "split blocks", 0.02 * static_cast<double>(phase.bytes()), "2 %, measured");
        break;
      case MemoryFigure::kProcess:
        add_line(phase.lines, "context", 1024 * kMiB, "CUDA context and libraries, assumed");
        if (!held_.full())
          add_line(phase.lines, "cached", 12 * held_.trained(), "12 B a parameter of the adapter, measured");
        break;
    }
    if (!run_.hf.variable_lengths || phase.name != "loss") return;
    // Two more sets of logits and gradients, as long as a sequence mostly is, until the GPU is full.
    const int64_t length = run_.hf.typical_length > 0 ? std::min(run_.hf.typical_length, run_.sequence) : run_.sequence;
    const double cached = 2 * 14 * static_cast<double>(run_.model.vocab * run_.micro * length);
    const double room = 0.95 * static_cast<double>(run_.capacity_bytes) - static_cast<double>(phase.bytes());
    add_line(phase.lines, "blocks of other lengths", run_.capacity_bytes > 0 ? std::min(cached, room) : cached,
             fmt::format("2 x 14 B x {} x {} tokens, at most what is left", run_.model.vocab, run_.micro * length));
  }

  const FrameworkRun& run_;
  HfStates held_;
  const HfParameters& n_;
  HfLayerBytes layer_;  // the largest
  double kept_all_ = 0, whole_all_ = 0;
  std::vector<ProfileLine> states_;
};

std::vector<std::string> assumptions(const FrameworkRun& run) {
  std::vector<std::string> assumed;
  const auto note = [&](bool open, const char* what) {
    if (open) assumed.emplace_back(what);
  };
  note(run.cross_entropy.assumed, "cross-entropy: eager, 14 B an element of the logits");
  note(run.attention.assumed, "attention: a flash kernel, no scores kept");
  note(run.hf.autocast.assumed, "precision: autocast (bf16 or fp16 = True)");
  note(run.hf.fused_norms.assumed, "norms: transformers' own");
  if (!run.trains_adapter) {
    note(run.weight_dtype.assumed, "weights: trained in bf16");
  } else {
    note(run.frozen.assumed, "frozen weights: bf16");
    note(run.hf.adapter.assumed, "adapter: LoRA");
    note(run.hf.adapter_dtype.assumed, "adapter: fp32");
    note(run.hf.adapter_dropout.assumed, "adapter: no dropout");
  }
  return assumed;
}

}  // namespace

ProfileMemory hf_memory(const FrameworkRun& run) {
  ProfileMemory memory = HfStep(run).memory();
  memory.assumed = assumptions(run);
  return memory;
}

}  // namespace fivefold
