// RunConfig: one run as its author wrote it: model, method, layout, batch, precision, optimizer, data. One file serves
// `plan`, `train` and `export`. Plain data: the initialisers below are the only home of the defaults.
// It is not the whole truth about a run: settings left to fivefold (`auto`, 0) are filled in by resolve()
// (run_config_resolve.h); whether the combination is legal is decided by validate_layout() (validate.h).
// Reading and writing TOML: run_config_io.h. Name, range and meaning of each key: run_config_keys.cc,
// docs/configuration.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "spec/enums.h"

namespace fivefold {

// Each enumeration is followed by its names in TOML, in the order of the enumerators, and by config_names(), through
// which to_string() and the table of keys find them.

enum class MethodKind : uint8_t { kFull, kLora, kQlora };
inline constexpr std::string_view kMethodKindNames[] = {"full", "lora", "qlora"};
constexpr std::span<const std::string_view> config_names(MethodKind) { return kMethodKindNames; }

enum class ScheduleKind : uint8_t {
  kNaive,
  kGPipe,
  k1F1B,
  kInterleaved,  // interleaved 1F1B, vpp chunks a rank
  kZb1p,
  kZb2p,
  kZbv,
  kVHalf,
  kVMin,
  kDualPipeV,
  kFile,  // the one of parallel.schedule_file
};
inline constexpr std::string_view kScheduleKindNames[] = {"naive", "gpipe",  "1f1b",  "interleaved", "zb1p", "zb2p",
                                                          "zbv",   "v-half", "v-min", "dualpipev",   "file"};
constexpr std::span<const std::string_view> config_names(ScheduleKind) { return kScheduleKindNames; }

// Which virtual stage chunk c of rank r is, of p ranks.
enum class Placement : uint8_t {
  kLoop,  // c p + r: from the last rank round to the first
  kV,     // odd chunks run back from the last rank to the first: (c + 1) p - 1 - r
};

// What a run needs to know of the schedule in parallel.schedule_file, and its text (docs/formats/schedule.md).
struct ScheduleSource {
  std::string text;  // fivefold's own form; empty: no file has been read
  Placement placement = Placement::kLoop;
  int num_stages = 0, chunks_per_rank = 0, num_microbatches = 0;
  bool operator==(const ScheduleSource&) const = default;
};

// How the layers are cut into the pipeline's pp x vpp virtual stages.
enum class StageCut : uint8_t {
  kEven,      // as many layers each as can be; the first ones hold the remainder
  kBalanced,  // the slowest rank as quick as a cut between layers allows, embedding and head counted
  kListed,    // as listed
};
inline constexpr std::string_view kStageCutNames[] = {"even", "balanced"};
struct StageLayers {
  StageCut cut = StageCut::kEven;
  std::vector<int64_t> layers{};  // kListed: of each virtual stage in model order
  bool operator==(const StageLayers&) const = default;
};

// When gradients of ZeRO levels 2 and 3 are reduced over the data-parallel ranks.
enum class ReduceWhen : uint8_t {
  kMicrobatch,  // each microbatch's, into a shard
  kStep,        // once, from a full buffer in which the microbatches accumulate
};
inline constexpr std::string_view kReduceWhenNames[] = {"microbatch", "step"};
constexpr std::span<const std::string_view> config_names(ReduceWhen) { return kReduceWhenNames; }

enum class CpKind : uint8_t { kRing, kAllGather, kUlysses };
inline constexpr std::string_view kCpKindNames[] = {"ring", "all_gather", "ulysses"};
constexpr std::span<const std::string_view> config_names(CpKind) { return kCpKindNames; }

enum class Packing : uint8_t {
  kConcatenate,  // a row is the next `sequence` tokens, whatever documents they come from
  kDocuments,    // attention stays inside a document, positions restart with it
};
inline constexpr std::string_view kPackingNames[] = {"concatenate", "documents"};
constexpr std::span<const std::string_view> config_names(Packing) { return kPackingNames; }

enum class ComputeKind : uint8_t { kFp32, kBf16, kFp16, kFp8 };
inline constexpr std::string_view kComputeKindNames[] = {"fp32", "bf16", "fp16", "fp8"};
constexpr std::span<const std::string_view> config_names(ComputeKind) { return kComputeKindNames; }

enum class OptimizerStateKind : uint8_t { kFp32, kBf16, k8Bit };
inline constexpr std::string_view kOptimizerStateKindNames[] = {"fp32", "bf16", "8bit"};
constexpr std::span<const std::string_view> config_names(OptimizerStateKind) { return kOptimizerStateKindNames; }

enum class Fp8Scaling : uint8_t {
  kDelayed,  // one scale a tensor, from the history of maxima
  kCurrent,  // one scale a tensor, from the tensor itself
  kBlock,    // 1x128 for activations, 128x128 for weights
};
inline constexpr std::string_view kFp8ScalingNames[] = {"delayed", "current", "block"};
constexpr std::span<const std::string_view> config_names(Fp8Scaling) { return kFp8ScalingNames; }

// Whether an fp32 copy of weights that are stored in a lower type takes the updates.
enum class MasterKind : uint8_t {
  kFp32,
  kNone,  // the stored weights take them, rounded stochastically
};
inline constexpr std::string_view kMasterKindNames[] = {"fp32", "none"};
constexpr std::span<const std::string_view> config_names(MasterKind) { return kMasterKindNames; }

enum class RecomputeKind : uint8_t { kNone, kFull, kSelective };
inline constexpr std::string_view kRecomputeKindNames[] = {"none", "full", "selective"};
constexpr std::span<const std::string_view> config_names(RecomputeKind) { return kRecomputeKindNames; }

enum class OptimizerKind : uint8_t { kAdamW, kSgd };
inline constexpr std::string_view kOptimizerKindNames[] = {"adamw", "sgd"};
constexpr std::span<const std::string_view> config_names(OptimizerKind) { return kOptimizerKindNames; }

enum class DecayScope : uint8_t {
  kMatrices,  // weights with two or more dims; norms and biases do not decay
  kAll,
};
inline constexpr std::string_view kDecayScopeNames[] = {"matrices", "all"};
constexpr std::span<const std::string_view> config_names(DecayScope) { return kDecayScopeNames; }

enum class LrScheduleKind : uint8_t { kConstant, kCosine, kLinear, kWsd };
inline constexpr std::string_view kLrScheduleKindNames[] = {"constant", "cosine", "linear", "wsd"};
constexpr std::span<const std::string_view> config_names(LrScheduleKind) { return kLrScheduleKindNames; }

enum class WsdDecay : uint8_t { kLinear, kCosine, kOneMinusSqrt };
inline constexpr std::string_view kWsdDecayNames[] = {"linear", "cosine", "1-sqrt"};
constexpr std::span<const std::string_view> config_names(WsdDecay) { return kWsdDecayNames; }

enum class DataFormat : uint8_t { kText, kJsonl, kMegatron, kChat };
inline constexpr std::string_view kDataFormatNames[] = {"text", "jsonl", "megatron", "chat"};
constexpr std::span<const std::string_view> config_names(DataFormat) { return kDataFormatNames; }

// Which tokens of a conversation have a target.
enum class LossOn : uint8_t {
  kCompletion,  // those that the assistant writes
  kAll,
};
inline constexpr std::string_view kLossOnNames[] = {"completion", "all"};
constexpr std::span<const std::string_view> config_names(LossOn) { return kLossOnNames; }

enum class CommBackend : uint8_t { kLocal, kMpi, kNccl };
inline constexpr std::string_view kCommBackendNames[] = {"local", "mpi", "nccl"};
constexpr std::span<const std::string_view> config_names(CommBackend) { return kCommBackendNames; }

// Whose code trains: fivefold's own engine, or a framework that the planner has a profile of (docs/profiles.md).
enum class Framework : uint8_t {
  kFivefold,
  kMegatron,   // Megatron-LM and Megatron-Core, with Transformer Engine or its own layers
  kNanotron,   // Hugging Face nanotron
  kFsdp2,      // PyTorch's fully_shard: torchtitan, torchtune
  kDeepspeed,  // DeepSpeed's ZeRO, also under Megatron-DeepSpeed
  kHf,         // transformers' Trainer, TRL and PEFT, eager, alone or under FSDP 1 or ZeRO
};
inline constexpr std::string_view kFrameworkNames[] = {"fivefold", "megatron", "nanotron", "fsdp2", "deepspeed", "hf"};
constexpr std::span<const std::string_view> config_names(Framework) { return kFrameworkNames; }

inline constexpr std::string_view kLogLevelNames[] = {"quiet", "warning", "info"};
constexpr std::span<const std::string_view> config_names(LogLevel) { return kLogLevelNames; }

template <typename Enum>
concept ConfigEnum = requires(Enum e) { config_names(e); };

// The name in TOML, in the record and in JSON.
template <ConfigEnum Enum>
constexpr std::string_view to_string(Enum e) {
  return config_names(e)[static_cast<size_t>(e)];
}

struct ModelConfig {
  std::string name;                // a model of configs/models
  std::string config;              // or a Hub config.json
  std::string weights = "random";  // or a folder of safetensors, or a fivefold checkpoint
  bool operator==(const ModelConfig&) const = default;
};

struct MethodConfig {
  MethodKind kind = MethodKind::kFull;
  int64_t rank = 16;    // of the adapter
  double alpha = 32.0;  // adapter output is scaled by alpha / rank
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0.0;             // of the adapter's input
  bool rank_stabilized = false;     // rsLoRA: alpha / sqrt(rank) instead of alpha / rank
  bool dora = false;                // DoRA: a trained magnitude for each output feature
  bool double_quantization = true;  // QLoRA: the scales of the 4-bit blocks in 8 bits
  std::string adapter;              // folder of a PEFT adapter to start from; empty: a new one
  bool operator==(const MethodConfig&) const = default;
};

struct HardwareConfig {
  std::string name = "this-machine";  // a GPU or cluster of configs/, a hardware file, or this machine as measured
  bool operator==(const HardwareConfig&) const = default;
};

struct FrameworkConfig {
  Framework name = Framework::kFivefold;
  std::vector<std::string> switches;  // NAME=VALUE, of planner/profiles/framework_switches.h
  bool operator==(const FrameworkConfig&) const = default;
};

struct ParallelConfig {
  int dp = 1, tp = 1;
  bool sp = false;  // sequence parallelism over the ranks of tp
  int pp = 1, vpp = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::string schedule_file;       // of kFile: text or CSV
  ScheduleSource schedule_source;  // not a key: what read_schedule_source() found in schedule_file
  StageLayers stages;
  int cp = 1;
  CpKind cp_kind = CpKind::kRing;
  int ep = 1, etp = 1;
  int zero = 1;  // ZeRO level
  ReduceWhen reduce = ReduceWhen::kMicrobatch;
  int shard_size = 0;     // ranks that share one sharded copy (HSDP); 0: all of dp x cp
  int prefetch = 1;       // units gathered ahead of use, ZeRO-3
  int bucket_layers = 1;  // layers whose weights one collective gathers and whose gradients one reduces
  int threads = 0;        // CPU threads a rank; 0: cores / ranks, at least 1
  bool operator==(const ParallelConfig&) const = default;
};

struct BatchConfig {
  int64_t global = 0;  // sequences per step; 0: micro x dp
  int64_t micro = 1;   // sequences per microbatch and replica
  int64_t sequence = 1024;
  Packing packing = Packing::kConcatenate;
  int64_t loss_chunk = 512;  // tokens whose logits exist at one time
  bool operator==(const BatchConfig&) const = default;
};

struct PrecisionConfig {
  ComputeKind compute = ComputeKind::kBf16;
  std::optional<DType> params, grads, reduce;  // nothing: chosen by resolve()
  OptimizerStateKind optimizer_state = OptimizerStateKind::kFp32;
  MasterKind master = MasterKind::kFp32;
  Fp8Scaling fp8 = Fp8Scaling::kCurrent;
  int64_t fp8_history = 16;                // maxima that delayed scaling looks back on, one a step
  double loss_scale = 65536;               // fp16: the first one
  int64_t loss_scale_growth_every = 2000;  // fp16: steps without overflow after which it doubles
  bool operator==(const PrecisionConfig&) const = default;
};

struct RecomputeConfig {
  RecomputeKind kind = RecomputeKind::kNone;
  int64_t every = 1;                 // layers per recomputed segment, kFull
  std::vector<std::string> tensors;  // saved tensors to drop, kSelective
  bool operator==(const RecomputeConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 3e-4;  // peak
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  DecayScope decay = DecayScope::kMatrices;
  double momentum = 0.0;  // SGD
  double clip = 1.0;      // global gradient norm; 0: off
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrConfig {
  LrScheduleKind schedule = LrScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;   // last rate / peak
  int64_t decay_steps = 0;  // WSD: steps of the decay at the end; 0: a tenth of the run
  WsdDecay decay = WsdDecay::kLinear;
  bool operator==(const LrConfig&) const = default;
};

struct DataConfig {
  std::string train, validation;    // file, or folder of files
  std::string tokenizer = "bytes";  // or a tokenizer.json
  DataFormat format = DataFormat::kText;
  std::string chat_template = "auto";  // of kChat: that of tokenizer_config.json beside the tokenizer, or a name
  LossOn loss = LossOn::kCompletion;   // of kChat
  int64_t seed = 0;                    // order of samples
  bool operator==(const DataConfig&) const = default;
};

struct RunSection {
  std::string name = "run";
  std::string directory = "runs";
  int64_t steps = 0;                     // optimizer steps; 0: from tokens
  int64_t tokens = 0;                    // or tokens to train on
  int64_t seed = 0;                      // initial weights, dropout
  int64_t validate_every = 0;            // steps; 0: never
  int64_t compare_replicas_every = 100;  // steps; 0: never
  bool operator==(const RunSection&) const = default;
};

struct CheckpointConfig {
  int64_t every = 0;  // steps; 0: only at the end and when stopped
  int64_t keep = 2;
  bool asynchronous = false;
  std::string resume = "auto";  // auto: the newest of this run's directory, none, or a checkpoint's path
  bool operator==(const CheckpointConfig&) const = default;
};

struct LimitsConfig {
  int64_t memory = 0;  // bytes a rank may use; 0: what the device has
  bool operator==(const LimitsConfig&) const = default;
};

struct CommConfig {
  CommBackend backend = CommBackend::kLocal;
  double timeout_s = 600.0;
  bool rendezvous = false;  // local: a send waits for its receive, as on NCCL
  std::string simulate;     // local: a cluster of configs/ or a hardware file whose links are imitated; empty: none
  bool operator==(const CommConfig&) const = default;
};

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  int64_t every = 1;  // steps between printed lines
  bool operator==(const LogConfig&) const = default;
};

struct RunConfig {
  ModelConfig model;
  MethodConfig method;
  HardwareConfig hardware;
  FrameworkConfig framework;
  ParallelConfig parallel;
  BatchConfig batch;
  PrecisionConfig precision;
  RecomputeConfig recompute;
  OptimizerConfig optimizer;
  LrConfig lr;
  DataConfig data;
  RunSection run;
  CheckpointConfig checkpoint;
  LimitsConfig limits;
  CommConfig comm;
  LogConfig log;
  bool operator==(const RunConfig&) const = default;
};

}  // namespace fivefold
