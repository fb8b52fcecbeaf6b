#include "spec/run_config_keys.h"

#include <fmt/format.h>

#include <type_traits>

#include "base/text.h"

namespace fivefold {
namespace {

template <typename T>
FieldRef field_ref(T& field) {
  if constexpr (ConfigEnum<T>) {
    static_assert(std::is_same_v<std::underlying_type_t<T>, uint8_t>);
    return EnumRef{reinterpret_cast<uint8_t*>(&field), config_names(field)};
  } else {
    return &field;
  }
}

// A key of the section and field of the same name; the field decides the type.
#define KEY(section, name, range, doc)                                                              \
  ConfigKey {                                                                                       \
    #section, #name, [](RunConfig& c) -> FieldRef { return field_ref(c.section.name); }, range, doc \
  }
#define KEY_AS(type, section, name, doc)                                                     \
  ConfigKey {                                                                                \
    #section, #name, [](RunConfig& c) -> FieldRef { return type{&c.section.name}; }, {}, doc \
  }

constexpr Range kAny = {};                                // not a number, or any number from 0
constexpr Range kDegree = {.min = 1, .max = 1 << 20};     // ranks along an axis
constexpr Range kSequences = {.min = 0, .max = 1 << 30};  // rows of a batch: products with the sequence stay in int64
constexpr Range kSteps = {.min = 0, .max = 1e12};
constexpr Range kShare = {.min = 0, .max = 1};
constexpr Range kBelowOne = {.min = 0, .max = 1, .open_max = true};
constexpr Range kPositive = {.min = 0, .open_min = true};
constexpr Range kFromOne = {.min = 1, .max = 1 << 30};

constexpr ConfigSection kSections[] = {
    {"run", "What the run is called and how long it is."},
    {"model", "What is trained: `name` or `config`, not both."},
    {"method", "Full training or an adapter."},
    {"hardware", "What it runs on."},
    {"framework",
     "Whose code trains; `plan`, `explain`, `export` and `reconcile` know others than fivefold's own engine."},
    {"parallel", "How the model and the batch are split over ranks; world = dp x tp x cp x pp."},
    {"batch", "Sequences per step; microbatches per step = global / (micro x dp)."},
    {"precision", "Element types. `auto` follows from `compute`, the ZeRO level and the number of microbatches."},
    {"recompute", "Which activations are computed again in backward instead of kept."},
    {"optimizer", "The update."},
    {"lr", "The learning rate over the run, as a share of `optimizer.lr`."},
    {"data", "What it is trained on."},
    {"checkpoint", "When the state is saved, and where the run starts from."},
    {"limits", "Bounds that the plan must respect."},
    {"comm", "How ranks talk."},
    {"log", "What is printed while it runs."},
};

constexpr ConfigKey kKeys[] = {
    KEY(run, name, kAny, "name of the run, and of its folder"),
    KEY(run, directory, kAny, "folder that holds the folders of runs"),
    KEY(run, steps, kSteps, "optimizer steps; 0: from `tokens`"),
    KEY_AS(CountRef, run, tokens, "tokens to train on, ignored ones included; 0: from `steps`"),
    KEY(run, seed, kAny, "of the initial weights and of dropout"),
    KEY(run, validate_every, kSteps, "steps between validations; 0: never"),
    KEY(run, compare_replicas_every, kSteps,
        "steps between comparisons of the weights and states that ranks hold copies of, also made at the end; 0: "
        "never"),

    KEY(model, name, kAny, "a model that fivefold knows: `fivefold plan --list models`"),
    KEY(model, config, kAny, "path of a Hub `config.json`"),
    KEY(model, weights, kAny, "`random`, a folder of safetensors, or a fivefold checkpoint"),

    KEY(method, kind, kAny, "all weights, a low-rank adapter, or an adapter on a 4-bit base"),
    KEY(method, rank, kFromOne, "rank of the adapter"),
    KEY(method, alpha, kPositive, "the adapter's output is scaled by alpha / rank"),
    KEY(method, targets, kAny, "linears that get an adapter, by their names in PEFT; `all-linear`: all but the head"),
    KEY(method, dropout, kBelowOne, "share of the adapter's input that is dropped in training"),
    KEY(method, rank_stabilized, kAny, "rsLoRA: the adapter's output is scaled by alpha / sqrt(rank)"),
    KEY(method, dora, kAny, "DoRA: the adapter turns the weight's rows, a trained magnitude gives their lengths"),
    KEY(method, double_quantization, kAny, "qlora: the scales of the 4-bit blocks are stored in 8 bits"),
    KEY(method, adapter, kAny, "folder of a PEFT adapter to start from; empty: a new adapter, which changes nothing"),

    KEY(hardware, name, kAny,
        "`this-machine`, a GPU or cluster that fivefold knows, or a file from `fivefold calibrate`"),

    KEY(framework, name, kAny, "fivefold's own engine, or a framework that the planner has a profile of"),
    KEY(framework, switches, kAny,
        "NAME=VALUE: what the framework is told beside the other keys, for example `cross_entropy=native_fused`; "
        "docs/profiles.md lists them"),

    KEY(parallel, dp, kDegree, "data-parallel degree: replicas of the model"),
    KEY(parallel, tp, kDegree, "tensor-parallel degree"),
    KEY(parallel, sp, kAny, "norms and residuals on sequence shards over the ranks of tp"),
    KEY(parallel, pp, kDegree, "pipeline stages"),
    KEY(parallel, vpp, kDegree, "chunks of the model per pipeline rank"),
    KEY(parallel, schedule, kAny, "order of forward and backward in the pipeline; file: that of `schedule_file`"),
    KEY(parallel, schedule_file, kAny, "a schedule as fivefold's text, or, named .csv, as PyTorch's pipeline CSV"),
    KEY_AS(StagesRef, parallel, stages,
           "layers of each of the pp x vpp chunks in model order; the first has the embedding too, the last the head"),
    KEY(parallel, cp, kDegree, "context-parallel degree: shards of the sequence"),
    KEY(parallel, cp_kind, kAny, "how attention sees the whole sequence"),
    KEY(parallel, ep, kDegree, "expert-parallel degree"),
    KEY(parallel, etp, kDegree, "tensor-parallel degree of experts"),
    KEY(parallel, zero, (Range{.min = 0, .max = 3}),
        "what data-parallel ranks shard: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters"),
    KEY(parallel, shard_size, (Range{.min = 0, .max = 1 << 20}),
        "ranks that share one sharded copy; fewer than dp x cp is hybrid sharding; 0: dp x cp"),
    KEY(parallel, reduce, kAny,
        "ZeRO level 3 reduces gradients after each microbatch into a shard, or once a step from a full buffer; levels "
        "0 and 1 always do so once a step, level 2 after each microbatch"),
    KEY(parallel, prefetch, (Range{.min = 0, .max = 1024}), "units gathered ahead of their use at ZeRO level 3"),
    KEY(parallel, bucket_layers, kDegree,
        "layers whose weights are gathered, and whose gradients are reduced, in one collective"),
    KEY(parallel, threads, (Range{.min = 0, .max = 4096}), "CPU threads of a rank; 0: cores / ranks, at least 1"),

    KEY(batch, global, kSequences, "sequences per optimizer step; 0: micro x dp"),
    KEY(batch, micro, (Range{.min = 1, .max = 1 << 20}), "sequences per microbatch of one replica"),
    KEY(batch, sequence, kFromOne, "tokens per sequence"),
    KEY(batch, packing, kAny, "attention across the documents of a row, or inside each"),
    KEY(batch, loss_chunk, kFromOne, "tokens whose logits exist at one time"),

    KEY(precision, compute, kAny, "operands of matrix products; sums, softmax, norms and loss are fp32"),
    KEY(precision, params, kAny, "stored weights; below fp32 a master copy in fp32 is kept"),
    KEY(precision, grads, kAny, "accumulated gradients"),
    KEY(precision, reduce, kAny, "gradients on the wire; sums are fp32"),
    KEY(precision, optimizer_state, kAny, "moments of the optimizer; 8bit: blocks of 256"),
    KEY(precision, master, kAny,
        "fp32: a copy of the weights takes the updates; none: the stored weights do, rounded stochastically"),
    KEY(precision, fp8, kAny, "scaling of fp8 operands: per tensor from history, per tensor as it is, or per block"),
    KEY(precision, fp8_history, kFromOne, "delayed fp8 scaling: steps whose largest value sets the scale"),
    KEY(precision, loss_scale, kPositive, "fp16: factor of the loss at the start; it halves after an overflow"),
    KEY(precision, loss_scale_growth_every, kFromOne, "fp16: steps without overflow after which the factor doubles"),

    KEY(recompute, kind, kAny, "nothing, whole layers, or the named tensors"),
    KEY(recompute, every, kFromOne, "layers per recomputed segment, for `full`"),
    KEY(recompute, tensors, kAny,
        "saved tensors to drop, for `selective`: `attention.qkv`, `attention.out`, `mlp.gate_up` or `mlp.up`"),

    KEY(optimizer, kind, kAny, "AdamW with decoupled decay, or SGD"),
    KEY(optimizer, lr, kAny, "peak learning rate"),
    KEY(optimizer, betas, kBelowOne, "AdamW: decay of the two moments"),
    KEY(optimizer, eps, kPositive, "AdamW: added to the root of the second moment"),
    KEY(optimizer, weight_decay, kAny, "weights shrink by lr x weight_decay a step"),
    KEY(optimizer, decay, kAny, "which tensors decay: those with two or more dims, or all"),
    KEY(optimizer, momentum, kBelowOne, "SGD: momentum"),
    KEY(optimizer, clip, kAny, "bound of the global gradient norm; 0: off"),

    KEY(lr, schedule, kAny, "shape after the warm-up; wsd: constant, then a decay at the end"),
    KEY(lr, warmup_steps, kSteps, "steps over which the rate rises from 0 to its peak"),
    KEY(lr, min_ratio, kShare, "last rate / peak rate"),
    KEY(lr, decay_steps, kSteps, "wsd: steps of the decay; 0: a tenth of the run"),
    KEY(lr, decay, kAny, "wsd: shape of the decay"),

    KEY(data, train, kAny, "file or folder of training data"),
    KEY(data, validation, kAny, "file or folder of validation data"),
    KEY(data, tokenizer, kAny, "`bytes`, or the path of a `tokenizer.json`"),
    KEY(data, format, kAny,
        "plain text, JSON lines with a `text` field, Megatron's .bin/.idx, or JSON lines with `messages`, `prompt` and "
        "`completion`"),
    KEY(data, chat_template, kAny,
        "chat: `auto`, that of the `tokenizer_config.json` beside the tokenizer, or the name of a known one"),
    KEY(data, loss, kAny, "chat: loss on what the assistant says, or on all tokens"),
    KEY(data, seed, kAny, "of the order of samples"),

    KEY(checkpoint, every, kSteps, "steps between checkpoints; 0: at the end and when stopped"),
    KEY(checkpoint, keep, kFromOne, "checkpoints that are kept"),
    KEY(checkpoint, asynchronous, kAny, "write from a snapshot while training goes on"),
    KEY(checkpoint, resume, kAny, "`auto`: the newest of this run; `none`; or the path of a checkpoint"),

    KEY_AS(SizeRef, limits, memory, "memory that a rank may use; 0: all that the device has"),

    KEY(comm, backend, kAny, "threads of one process, MPI, or NCCL"),
    KEY(comm, timeout_s, kPositive, "seconds after which a collective that does not end is an error"),
    KEY(comm, rendezvous, kAny, "local: a send waits for its receive, as on NCCL"),
    KEY(comm, simulate, kAny,
        "local: a cluster that fivefold knows, or a hardware file, whose links are imitated; empty: none"),

    KEY(log, level, kAny, "which messages are printed"),
    KEY(log, every, kFromOne, "steps between printed lines"),
};
#undef KEY
#undef KEY_AS

constexpr DType kPrecisionDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::string number(double x) { return fmt::format("{}", x); }
std::string whole(double x) { return fmt::format("{:.0f}", x); }

std::string describe_range(std::string_view noun, const Range& range, std::string (*format)(double)) {
  const std::string low = range.open_min ? "above " + format(range.min) : "from " + format(range.min);
  if (range.max == std::numeric_limits<double>::infinity())
    return fmt::format("{} {}", noun, range.open_min ? low : "of at least " + format(range.min));
  return fmt::format("{} {} {} {}", noun, low, range.open_max ? "to below" : "to", format(range.max));
}

struct Expected {
  const Range& range;

  std::string operator()(bool*) const { return "true or false"; }
  std::string operator()(int*) const { return describe_range("an integer", range, whole); }
  std::string operator()(int64_t*) const { return describe_range("an integer", range, whole); }
  std::string operator()(double*) const { return describe_range("a number", range, number); }
  std::string operator()(std::string*) const { return "text"; }
  std::string operator()(StringList*) const { return "a list of names"; }
  std::string operator()(NumberPair*) const { return "a pair, each " + describe_range("a number", range, number); }
  std::string operator()(OptionalDType*) const {
    std::string text = "one of auto";
    for (const DType dtype : kPrecisionDTypes) text += ", " + std::string(to_string(dtype));
    return text;
  }
  std::string operator()(const EnumRef& field) const {
    return "one of " + join(std::vector<std::string>(field.names.begin(), field.names.end()), ", ");
  }
  std::string operator()(const SizeRef&) const { return "a size, for example 600MiB or 24GB"; }
  std::string operator()(const StagesRef&) const { return "even, balanced, or a list of layers per chunk"; }
  std::string operator()(const CountRef&) const { return "a count, for example 2000000 or 300B"; }
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }
std::span<const ConfigSection> config_sections() { return kSections; }
std::span<const DType> precision_dtypes() { return kPrecisionDTypes; }

const ConfigKey* find_config_key(std::string_view path) {
  for (const ConfigKey& key : kKeys)
    if (key.path() == path) return &key;
  return nullptr;
}

std::string expected_value(const ConfigKey& key) {
  RunConfig defaults;
  return std::visit(Expected{key.range}, key.field(defaults));
}

std::string unknown_key_hint(std::string_view section, std::string_view name) {
  std::vector<std::string> siblings, paths;
  const ConfigKey* namesake = nullptr;  // the key of this name in another section, if there is exactly one
  int num_namesakes = 0;
  for (const ConfigKey& key : kKeys) {
    if (key.section == section) siblings.emplace_back(key.name);
    paths.push_back(key.path());
    if (key.name == name) {
      namesake = &key;
      ++num_namesakes;
    }
  }
  if (num_namesakes == 1) return fmt::format("did you mean {}?", namesake->path());
  if (const auto near = nearest_name(name, siblings)) return fmt::format("did you mean {}.{}?", section, *near);
  if (!siblings.empty()) return fmt::format("[{}] has {}", section, join(siblings, ", "));
  if (const auto near = nearest_name(fmt::format("{}.{}", section, name), paths))
    return fmt::format("did you mean {}?", *near);
  return "`docs/configuration.md` lists all keys";
}

std::string unknown_section_hint(std::string_view name) {
  std::vector<std::string> names;
  for (const ConfigSection& section : kSections) names.emplace_back(section.name);
  if (const auto near = nearest_name(name, names)) return fmt::format("did you mean [{}]?", *near);
  return "sections: " + join(names, ", ");
}

}  // namespace fivefold
