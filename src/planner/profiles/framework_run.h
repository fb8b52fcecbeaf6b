// FrameworkRun: a training run in another framework, as far as its memory depends on it, and what a profile of that
// framework says of it. A profile is a list of named lines in bytes; which switch of the framework changes a line is an
// explicit input here, so that an answer can show what it took for granted. Formulas, constants and their sources:
// docs/profiles.md. Plain data, pure functions, thread-safe.
//
// Symbols as in docs/symbols.md: h hidden, a and k query and KV heads of size d, f FFN width, V vocabulary (padded), s
// sequence, b micro-batch; degrees t tensor, c context, p pipeline, v virtual stages, e expert.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// A switch: what it is set to, and whether somebody said so.
template <class T>
struct Switch {
  T value{};
  bool assumed = true;

  Switch() = default;
  Switch(T initial) : value(initial) {}  // NOLINT(google-explicit-constructor): a default that is written as a value
  // What the run says; it is then no assumption.
  void set(T stated) { value = stated, assumed = false; }
  operator T() const { return value; }  // NOLINT(google-explicit-constructor): used like its value
};

// How loss and logits are computed, which fixes the bytes for each element of the logits.
enum class CrossEntropyKernel : uint8_t {
  kUnfused,      // Megatron: 2 B logits and an fp32 copy
  kNativeFused,  // Megatron --cross-entropy-loss-fusion, its own (JIT) kernels
  kTransformerEngine,
  kEager,          // fp32 logits, softmax and gradient side by side (transformers, torchtitan before 2025)
  kInPlace,        // gradient over the logits
  kInPlaceUpcast,  // the same over an fp32 copy, beside the logits of the forward pass
  kEagerHalf,      // every pass in the model's 2-byte type
  kChunked,        // logits never in full (Liger, fused linear cross-entropy)
  kCompiled,       // torch.compile fuses the passes
};
enum class AttentionKernel : uint8_t { kFlash, kUnfused };
enum class FrozenWeights : uint8_t { kNone, kBf16, kNf4, kNf4Double, kInt4, kInt8 };
enum class Checkpointing : uint8_t {
  kNone,
  kFull,           // the input of each layer
  kCoreAttention,  // all but scores and probabilities
  kPerOperation,   // torchtitan's selective: products kept, every second one
  kEveryOther,     // every second layer in full
};
// Pipelines whose output matrix is cut over all stages (Yeung et al., "Balancing Pipeline Parallelism with Vocabulary
// Parallelism", 2024): one or two further microbatches in flight, or passes interlaced with the layers'.
enum class VocabularyStages : uint8_t { kLast, kOneMore, kTwoMore, kInterlaced };
// Of which rank a figure is.
enum class ReportedRank : uint8_t { kLargest, kFirst, kLast };

// What an adapter keeps for its backward pass beside what the frozen layer keeps.
enum class AdapterKind : uint8_t {
  kLora,          // the input of each target, in the adapter's type
  kOutput,        // shifts and rotations of an output: nothing
  kScale,         // scales: of the MLP's inputs, else of outputs (IA3)
  kWeightUpdate,  // the whole update of each target's weight (LoHa, LoKr, HiRA, ...)
  kTransform,     // the same, by way of a transform or a matrix of its size (WaveFT, BOFT, ...)
  kPrompt,        // virtual tokens ahead of each sequence
  kFullScale,     // scales and shifts of every linear, and the norms (LLaMA-Adapter v2)
};
// How the model comes to be, before it is cut over ranks.
enum class ModelInit : uint8_t {
  kSharded,    // every rank makes or loads its own part: meta device, zero.Init, Megatron
  kFirstRank,  // one rank of a node loads all of it on the host and hands it out unit by unit (sync_module_states)
  kEveryRank,  // every rank loads all of it on the host and hands it to its GPU unit by unit
  kOnDevice,   // every rank has all of it on its GPU first
};
inline constexpr std::string_view kModelInitNames[] = {"sharded", "first_rank", "every_rank", "on_device"};
// Whose code the layers are.
enum class LayerCode : uint8_t { kTransformers, kLitGpt };
// What a figure counts.
enum class MemoryFigure : uint8_t {
  kAllocated,  // torch.cuda.max_memory_allocated
  kReserved,   // max_memory_reserved: with blocks that are cached
  kProcess,    // nvidia-smi: with the context too
};

// Switches of transformers' Trainer, PEFT, TRL and their likes.
struct HfSwitches {
  Switch<LayerCode> code = LayerCode::kTransformers;
  Switch<bool> autocast = true;              // bf16/fp16 = True: operations cast; off: the model's own type throughout
  Switch<bool> fused_norms = false;          // Liger, Unsloth, FOAK: a norm keeps its input, not an fp32 copy
  Switch<bool> fused_adapters = false;       // Unsloth's and FOAK's autograd functions of LoRA
  Switch<bool> repeats_kv = false;           // K and V are repeated to the query heads before the attention kernel
  Switch<bool> frozen_keeps_inputs = false;  // bitsandbytes 0.41: a frozen linear keeps its input
  Switch<bool> adapter_dropout = false;
  Switch<AdapterKind> adapter = AdapterKind::kLora;
  Switch<DType> adapter_dtype = DType::kFloat32;  // PEFT's autocast_adapter_dtype
  Switch<bool> dora = false;
  Switch<bool> trains_embeddings = false;  // copies of token table and output matrix (PEFT's modules_to_save)
  Switch<bool> deepspeed = false;          // ZeRO of DeepSpeed instead of FSDP 1
  Switch<bool> wraps_on_device = false;    // FSDP takes over a model that is whole on each GPU, and stays so
  Switch<bool> variable_lengths = false;   // cached blocks of one length do not serve a longer one
  Switch<MemoryFigure> figure = MemoryFigure::kAllocated;
  Switch<bool> upcasts_frozen = false;  // PEFT's prepare_model_for_kbit_training: what is not in 4 bits becomes fp32
  Switch<bool> fp32_residual = false;   // inputs of layers are fp32, as after that call on one GPU
  int64_t typical_length = 0;           // of a sequence; 0: all are as long as `sequence`
  int64_t trained = 0;                  // parameters of the adapter; 0: from rank and targets
  int64_t virtual_tokens = 0;           // of kPrompt
};

// Switches of torchtitan, torchtune and DeepSpeed.
struct ShardingSwitches {
  Switch<bool> compiled = true;  // torch.compile of the layers
  // Adam's step of a parameter as soon as its gradient is there, which is then dropped (torchtune).
  Switch<bool> optimizer_in_backward = false;
  Switch<bool> weights_on_host = false;  // FSDP's CPUOffloadPolicy: shards, their gradients and states
  Switch<bool> bf16_optimizer = false;   // DeepSpeed's BF16_Optimizer: gradients are added in fp32
  Switch<bool> rowwise_scaling = false;  // torchao's float8: a scale for each row, not for each tensor
  Switch<bool> counts_process = false;   // the figure is nvidia-smi's: with context and libraries
};

// How Transformer Engine scales products of 8 and 4 bits (--fp8-recipe, --fp4-recipe): where its copies lie differs.
enum class ScalingRecipe : uint8_t { kTensorwise, kBlockwise, kMxfp8, kNvfp4 };

// Switches of Megatron-LM alone; in brackets its arguments.
struct MegatronSwitches {
  Switch<MemoryFigure> figure = MemoryFigure::kAllocated;
  Switch<bool> deterministic = false;       // --deterministic-mode, with 32 MiB of scratch for each user of cuBLAS
  Switch<bool> flash_library = false;       // flash-attn, not cuDNN's kernel; until it is set, by GPU and determinism
  Switch<int64_t> optimizer_instances = 1;  // whole copies of the distributed optimizer (--num-distributed-...)
  Switch<int64_t> chunk_group = 0;  // microbatches in a row through a chunk (--microbatch-group-size-per-...); 0: p
  Switch<int64_t> deferred_head_gradients = 0;  // microbatches (--wgrad-deferral-limit)
  Switch<bool> grouped_experts = false;         // one kernel for all experts of a rank (--moe-grouped-gemm)
  Switch<bool> masked_lm = false;               // BERT: token types, a dense layer before the logits, a binary head
  // Routing probabilities scale rows inside the experts (Megatron-Core since 0.12), or when they are brought back.
  Switch<bool> weighs_inside_experts = true;
  Switch<bool> tp_overlap = false;                            // --tp-comm-overlap
  Switch<ScalingRecipe> recipe = ScalingRecipe::kTensorwise;  // when `fp8`
  Switch<bool> fp8_weights = false;                           // --fp8-param-gather: linears have fp8 weights alone
  // Muon's momentum for matrices of layers, Adam for the rest; the latter whole on each rank (--optimizer dist_muon).
  Switch<bool> muon = false, whole_adam = false;
  Switch<bool> fsdp = false;        // --use-megatron-fsdp with optim_grads_params
  Switch<int64_t> mtp_layers = 0;   // --mtp-num-layers
  Switch<int64_t> mtp_weights = 0;  // of them with weights of their own (--mtp-use-repeated-layer: 1); 0: all
  std::vector<std::string> recomputed_modules;  // --recompute-modules, beside what `checkpointing` says
  std::vector<std::string> offloaded_modules;   // --offload-modules: their inputs go to the host
};

// Buffers of DeepSpeed's ZeRO 2 and 3, in elements.
struct ZeroSwitches {
  Switch<int64_t> reduce_bucket = 500'000'000;
  Switch<bool> second_bucket = false;               // overlap_comm at level 2
  Switch<int64_t> live_parameters = 1'000'000'000;  // gathered at level 3, those ahead of their use included
};

struct FrameworkRun {
  Framework framework = Framework::kMegatron;
  ModelSpec model;             // vocabulary as on disk
  std::string gpu;             // name of its file in configs/gpus, "a100-sxm-80gb"
  int64_t capacity_bytes = 0;  // of a GPU; 0: not known

  // Layout. dp counts replicas of the batch: world = dp x tp x cp x pp.
  int64_t dp = 1, tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1;
  bool sp = false;
  int zero = 0;            // 0 to 3; 1 also for a distributed optimizer, 3 also for FSDP
  int64_t shard_size = 0;  // ranks of a shard group; 0: all that ZeRO can use
  int64_t sequence = 0, micro = 1, microbatches = 1;

  DType compute = DType::kBFloat16;
  bool fp8 = false;
  bool trains_adapter = false;
  int64_t rank = 0;                  // of LoRA
  std::vector<std::string> targets;  // modules with adapters, by the last parts of their Hub names; empty: none
  Checkpointing checkpointing = Checkpointing::kNone;
  ReportedRank reported = ReportedRank::kLargest;

  // Switches, each with the framework's default until set() is called.
  Switch<CrossEntropyKernel> cross_entropy = CrossEntropyKernel::kUnfused;
  Switch<AttentionKernel> attention = AttentionKernel::kFlash;
  Switch<bool> dropout = false;  // masks of hidden and attention dropout are kept
  Switch<DType> gradient_dtype = DType::kFloat32;
  Switch<DType> weight_dtype = DType::kBFloat16;  // of the weights that are updated in place, or of FSDP's shards
  Switch<FrozenWeights> frozen = FrozenWeights::kNone;
  Switch<int64_t> expert_tp = 1;             // et
  Switch<double> expert_imbalance = 1.0;     // rho: rows of the fullest rank over the mean
  Switch<bool> gathers_for_experts = false;  // the all-gather dispatcher: every expert rank has all tokens
  // Sequence parallelism: gathered inputs of column linears, or other buffers of collectives, stay allocated.
  Switch<bool> keeps_gathered_inputs = false;
  Switch<bool> dummy_weight_gradients = false;  // Transformer Engine with gradient accumulation fusion
  Switch<bool> optimizer_on_host = false, activations_on_host = false;
  Switch<int> optimizer_state_bits = 32;  // of each moment
  // A vendor's own recipe: fused kernels, cuDNN's attention, tensor parallelism's collectives beside its products.
  Switch<bool> tuned_kernels = false;
  Switch<VocabularyStages> vocabulary_stages = VocabularyStages::kLast;
  Switch<ModelInit> init = ModelInit::kSharded;  // transformers: other defaults (host_memory.h)
  // Gradients of a step's microbatches are added up whole and reduced once (FSDP's no_sync; parallel.reduce = step).
  Switch<bool> reduces_once = false;
  ShardingSwitches sharding;
  ZeroSwitches zero_buffers;
  // Uneven stages; empty: the framework's rule. Megatron-LM: p x v entries, in the order of the pipeline, when v > 1.
  std::vector<int64_t> stage_layers;
  HfSwitches hf;
  MegatronSwitches megatron;
};

// One line of a profile.
struct ProfileLine {
  std::string name;  // "weights", "logits"
  int64_t bytes = 0;
  std::string formula;  // with its numbers
};

// The moments of a step that a peak may lie at: each has its lines, the largest sum is the peak.
struct ProfilePhase {
  std::string name;  // "backward", "optimizer"
  std::vector<ProfileLine> lines;
  // Its tensors are of many sizes and come and go (activations). An optimizer step's are as large as its parameters.
  bool fragments = true;
  int64_t bytes() const;
};

// On the host, of each rank: as long as it trains, and while it loads the model.
struct HostMemory {
  ProfilePhase step{.name = "step", .lines = {}}, start{.name = "start-up", .lines = {}};
  int64_t start_of_node = 0;  // beside the ranks' own while loading: what is there once a node
};

struct ProfileMemory {
  std::vector<ProfilePhase> phases;
  // The GPU while the model is made and cut. No phase of the step: no figure that is reset later counts it.
  ProfilePhase start{.name = "start-up", .lines = {}};
  HostMemory host;
  int64_t stage = 0;                 // of the pipeline, whose lines these are
  int64_t static_bytes = 0;          // between steps
  std::vector<std::string> assumed;  // switches that nobody set and that a line depends on, with their values
  const ProfilePhase& peak() const;  // REQUIRES: a phase
};

// Peak of allocated bytes on the rank that `run.reported` names. REQUIRES: a framework other than fivefold; degrees and
// sizes positive.
ProfileMemory profile_memory(const FrameworkRun& run);
// The same without start-up and host, for searches over many layouts. REQUIRES: as profile_memory().
ProfileMemory step_memory(const FrameworkRun& run);

}  // namespace fivefold
