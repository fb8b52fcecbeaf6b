// torchtitan's configuration: the Python module of today, the TOML file of before 2026, or the script that names one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/imported_run.h"
#include "exporters/torchtitan_files.h"
#include "exporters/torchtitan_models.h"

namespace fivefold {
namespace {

class TitanReader {
 public:
  TitanReader(ImportSheet& sheet, TitanFiles& files) : sheet_(sheet), files_(files), s_(files.settings) {}

  void read() {
    config().framework.name = Framework::kFsdp2;
    read_model();
    read_axes();
    read_batch();
    read_ranks();
    read_pipeline();
    read_precision();
    read_recompute();
    read_converters();
    read_titan_training(sheet_, s_);
    read_rest();
    read_containers();
    sheet_.close(s_);
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  // A call whose arguments are settings of their own.
  void read_containers() {
    std::vector<std::string> names;
    for (const ForeignSetting& setting : s_.all())
      if (const size_t dot = setting.name.rfind('.'); dot != std::string::npos)
        names.push_back(setting.name.substr(0, dot));
    for (const std::string& name : names) s_.find(name);
  }

  // The first of the names that one setting has had.
  std::optional<int64_t> integer(std::initializer_list<std::string_view> names, int64_t min, int64_t max) {
    std::optional<int64_t> value;
    for (const std::string_view name : names)
      if (const std::optional<int64_t> found = s_.integer(name, min, max); found && !value) value = found;
    return value;
  }
  std::optional<std::string> text(std::initializer_list<std::string_view> names) {
    std::optional<std::string> value;
    for (const std::string_view name : names)
      if (s_.has(name))
        if (const std::optional<std::string> found = s_.text(name); found && !value) value = found;
    return value;
  }

  void read_model() {
    const std::string module = text({"model.name"}).value_or(files_.module);
    const std::string flavor = text({"model.flavor", "model_spec.0", "model_spec.flavor"}).value_or("");
    const std::string where = s_.where(files_.python ? "model_spec" : "model.flavor");
    if (!sheet_.options().model.empty()) return sheet_.find_named_model("", "--model");
    const TorchtitanModel* model = find_torchtitan_flavor(module, flavor);
    if (model == nullptr)
      return sheet_.fail(where.empty() ? files_.where : where,
                         fmt::format("model `{}` of `{}` is not known", flavor, module.empty() ? "?" : module),
                         "import with --model NAME");
    sheet_.find_named_model(std::string(model->name), where);
  }

  int degree(std::initializer_list<std::string_view> names) {
    return static_cast<int>(integer(names, 1, 1 << 20).value_or(1));
  }

  void read_axes() {
    ParallelConfig& p = config().parallel;
    p.tp = degree({"parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"});
    p.pp = degree({"parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"});
    p.cp = degree({"parallelism.context_parallel_degree", "experimental.context_parallel_degree"});
    p.ep = degree({"parallelism.expert_parallel_degree"});
    p.etp = degree({"parallelism.expert_tensor_parallel_degree"});
    const bool sp = s_.boolean("parallelism.enable_sequence_parallel").value_or(true) &&
                    !s_.boolean("parallelism.disable_loss_parallel").value_or(false);
    p.sp = sp && p.tp > 1;
    if (p.cp > 1)
      p.cp_kind = text({"parallelism.context_parallel_rotate_method"}).value_or("allgather") == "alltoall"
                      ? CpKind::kRing
                      : CpKind::kAllGather;
  }

  void read_batch() {
    BatchConfig& b = config().batch;
    const int64_t sequence = integer({"training.seq_len", "training.max_context_length"}, 1, 1 << 30).value_or(2048);
    b.sequence = sheet_.options().sequence > 0 ? sheet_.options().sequence : sequence;
    b.packing = Packing::kDocuments;
    std::optional<int64_t> local = integer({"training.local_batch_size", "training.batch_size"}, 1, 1 << 20);
    std::optional<int64_t> global = integer({"training.global_batch_size"}, -1, 1 << 30);
    // The main branch counts tokens.
    const auto rows = [&](std::string_view name) -> std::optional<int64_t> {
      const std::optional<int64_t> tokens = s_.integer(name, -1, int64_t{1} << 50);
      if (!tokens || *tokens < 1) return {};
      if (*tokens % sequence != 0)
        s_.fail(name, fmt::format("{} tokens are no multiple of {} a sequence", *tokens, sequence));
      return std::max<int64_t>(1, *tokens / sequence);
    };
    const std::optional<int64_t> forward = rows("training.num_tokens_per_microbatch_per_dp_rank");
    const std::optional<int64_t> step = rows("training.num_tokens_per_train_step");
    const int64_t microbatches = s_.integer("parallelism.num_pp_microbatches", 1, 1 << 20).value_or(1);
    const std::optional<int64_t> part =
        integer({"parallelism.pipeline_parallel_microbatch_size", "experimental.pipeline_parallel_microbatch_size"}, 1,
                1 << 20);
    const bool pipeline = config().parallel.pp > 1;
    if (!local && !forward) sheet_.assume("batch.micro", "8", "torchtitan's default local_batch_size");
    if (forward) {
      b.micro = *forward;
      local = b.micro * (pipeline ? microbatches : 1);
    } else {
      local = local.value_or(8);
      b.micro = pipeline ? part.value_or(1) : *local;
      if (pipeline && *local % b.micro != 0)
        s_.fail("training.local_batch_size", fmt::format("{} is no multiple of microbatches of {}", *local, b.micro));
    }
    local_ = *local;
    if (step) global = step;
    b.global = global && *global > 0 ? *global : 0;
  }

  void read_ranks() {
    ParallelConfig& p = config().parallel;
    const std::optional<int64_t> shard =
        integer({"parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree",
                 "training.data_parallel_degree"},
                -1, 1 << 20);
    const int64_t replicas =
        integer({"parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"}, 1, 1 << 20)
            .value_or(1);
    int64_t ranks = sheet_.options().gpus > 0 ? sheet_.options().gpus : files_.ranks.value_or(0);
    if (ranks == 0 && shard && *shard > 0) ranks = *shard * replicas * p.tp * p.cp * p.pp;
    if (ranks == 0) return sheet_.fail(files_.where, "the number of GPUs is not known", "import with --gpus N");
    const bool derived = config().batch.global == 0;
    sheet_.set_world(ranks, files_.where);
    if (derived) config().batch.global = local_ * p.dp;
    if (shard && *shard > 0 && *shard * replicas != p.dp)
      sheet_.fail(s_.where("parallelism.data_parallel_shard_degree"),
                  fmt::format("{} GPUs leave dp = {}, and replicate x shard is {} x {}", ranks, p.dp, replicas, *shard),
                  fmt::format("use {} GPUs", *shard * replicas * p.tp * p.cp * p.pp));
    const std::string reshard = text({"parallelism.fsdp_reshard_after_forward"}).value_or("default");
    const bool keeps = reshard == "never" || (reshard == "default" && p.pp > 1);
    p.zero = keeps ? 2 : 3;
    if (replicas > 1 && p.dp % replicas == 0) {
      const int64_t group = div_exact(int64_t{p.dp}, replicas) * p.cp;
      if (group == 1)
        p.zero = 0;
      else
        p.shard_size = static_cast<int>(group);
    }
  }

  void read_pipeline() {
    ParallelConfig& p = config().parallel;
    std::string name =
        text({"parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule"}).value_or("1F1B");
    const ForeignSetting* parts = s_.find("parallelism.module_fqns_per_model_part");
    const std::optional<int64_t> per_stage = integer({"parallelism.pipeline_parallel_layers_per_stage"}, 1, 1 << 16);
    const int64_t first = integer({"parallelism.pipeline_parallel_first_stage_less_layers"}, 0, 1 << 10).value_or(1);
    const int64_t last = integer({"parallelism.pipeline_parallel_last_stage_less_layers"}, 0, 1 << 10).value_or(1);
    if (p.pp == 1) return;
    const std::pair<std::string_view, ScheduleKind> known[] = {{"1F1B", ScheduleKind::k1F1B},
                                                               {"GPipe", ScheduleKind::kGPipe},
                                                               {"Interleaved1F1B", ScheduleKind::kInterleaved},
                                                               {"ZBVZeroBubble", ScheduleKind::kZbv},
                                                               {"DualPipeV", ScheduleKind::kDualPipeV}};
    const auto* found =
        std::find_if(std::begin(known), std::end(known), [&](const auto& entry) { return entry.first == name; });
    if (found != std::end(known))
      p.schedule = found->second;
    else {
      p.schedule = name.starts_with("Interleaved") || name.starts_with("Looped") ? ScheduleKind::kInterleaved
                                                                                 : ScheduleKind::k1F1B;
      sheet_.assume("parallel.schedule", std::string(to_string(p.schedule)), name + " is not planned");
    }
    const bool single = p.schedule == ScheduleKind::k1F1B || p.schedule == ScheduleKind::kGPipe;
    const auto layers = static_cast<int64_t>(sheet_.run.model.layers.size());
    std::vector<int64_t> cut = parts != nullptr ? listed_stages(*parts) : std::vector<int64_t>{};
    if (cut.empty() && layers > 0) {
      // torchtitan's rule: embedding and head count as layers.
      const int64_t stages = per_stage ? div_ceil(layers + first + last, *per_stage) : p.pp * (single ? 1 : 2);
      if (stages % p.pp != 0)
        return s_.fail("parallelism.pipeline_parallel_layers_per_stage",
                       fmt::format("{} stages are no multiple of pp = {}", stages, p.pp));
      cut = weighted_stages(layers, stages, first, last);
    }
    if (cut.empty()) return;
    if (static_cast<int64_t>(cut.size()) % p.pp != 0)
      return s_.fail("parallelism.module_fqns_per_model_part",
                     fmt::format("{} stages are no multiple of pp = {}", cut.size(), p.pp));
    p.vpp = static_cast<int>(cut.size()) / p.pp;
    std::vector<int64_t> even(cut.size(), layers / static_cast<int64_t>(cut.size()));
    for (size_t i = 0; i < static_cast<size_t>(layers) % cut.size(); ++i) ++even[i];
    if (cut != even) p.stages = {.cut = StageCut::kListed, .layers = cut};
  }

  static std::vector<int64_t> listed_stages(const ForeignSetting& parts) {
    std::vector<int64_t> cut;
    if (!parts.value.is_array()) return cut;
    for (const nlohmann::json& part : parts.value) {
      int64_t layers = 0;
      if (part.is_array())
        for (const nlohmann::json& name : part)
          if (name.is_string() && name.get_ref<const std::string&>().starts_with("layers.")) ++layers;
      cut.push_back(layers);
    }
    return cut;
  }

  static std::vector<int64_t> weighted_stages(int64_t layers, int64_t stages, int64_t first, int64_t last) {
    const int64_t all = layers + first + last;
    std::vector<int64_t> cut;
    for (int64_t i = 0; i < stages; ++i) {
      int64_t n = all / stages + (i < all % stages ? 1 : 0);
      if (i == 0) n -= first;
      if (i + 1 == stages) n -= last;
      cut.push_back(std::max<int64_t>(0, n));
    }
    return cut;
  }

  void read_precision() {
    PrecisionConfig& p = config().precision;
    const std::string stored = text({"training.dtype"}).value_or("float32");
    const std::string computed = text({"training.mixed_precision_param"}).value_or("bfloat16");
    text({"training.mixed_precision_reduce"});
    const bool pure = stored == "bfloat16";
    p.compute = pure || computed == "bfloat16" ? ComputeKind::kBf16 : ComputeKind::kFp32;
    p.params = p.grads = pure ? DType::kBFloat16 : DType::kFloat32;
    if (pure) p.master = MasterKind::kNone;
    p.reduce = DType::kFloat32;
    if (text({"optimizer.implementation"}).value_or("") == "fused_opt_states_bf16")
      p.optimizer_state = OptimizerStateKind::kBf16;
    if (s_.flag("training.enable_cpu_offload") || s_.flag("experimental.enable_cpu_offload"))
      sheet_.add_switch("weights_on_host", "on");
  }

  void read_recompute() {
    RecomputeConfig& r = config().recompute;
    const std::string mode = text({"activation_checkpoint.mode"}).value_or("");
    const std::string option = text({"activation_checkpoint.selective_ac_option"}).value_or("op");
    const ForeignSetting* policy = s_.find("activation_checkpoint");
    const std::string name = policy != nullptr && policy->value.is_string() ? policy->value.get<std::string>() : "";
    if (files_.python) {
      const bool said = policy != nullptr || !s_.where("activation_checkpoint").empty();
      r.kind = name.starts_with("FullAC")  ? RecomputeKind::kFull
               : said && policy == nullptr ? RecomputeKind::kNone
                                           : RecomputeKind::kSelective;
      if (name.starts_with("MemoryBudget"))
        sheet_.assume("recompute.kind", "selective", "a memory budget is not known");
      return;
    }
    // The file's default is selective.
    r.kind = mode == "none" ? RecomputeKind::kNone : mode == "full" ? RecomputeKind::kFull : RecomputeKind::kSelective;
    if (r.kind == RecomputeKind::kSelective && option != "op" && option != "2")
      sheet_.assume("recompute.kind", "selective", fmt::format("selective_ac_option = {} counts as op", option));
  }

  void read_converters() {
    const ForeignSetting* list = s_.find("model_spec.converters");
    std::vector<nlohmann::json> converters;
    if (list != nullptr && list->value.is_array()) converters.assign(list->value.begin(), list->value.end());
    const std::vector<std::string> names = s_.texts("model.converters");
    for (const std::string& name : names) converters.push_back({{"()", name}});
    for (const nlohmann::json& converter : converters) {
      const std::string name = converter.is_object() ? converter.value("()", "") : "";
      if (name.starts_with("Float8") || name == "float8" || name.find("quantize.linear.float8") != std::string::npos) {
        config().precision.compute = ComputeKind::kFp8;
        sheet_.assume("precision.fp8", "current", "torchtitan scales each row");
      } else if (name.starts_with("LoRA")) {
        read_adapter(converter);
      } else if (!name.empty()) {
        sheet_.run.unknown.push_back(
            {"converters", name, "", list == nullptr ? s_.where("model.converters") : list->where});
      }
    }
    if (list != nullptr && list->value.is_string()) sheet_.unknown(*list, "the converters are made elsewhere");
    for (const std::string_view part :
         {"float8.enable_fsdp_float8_all_gather", "float8.precompute_float8_dynamic_scale_for_fsdp",
          "float8.filter_fqns", "float8.recipe_name"})
      s_.find(part);
    if (s_.flag("float8.enable_float8_linear")) config().precision.compute = ComputeKind::kFp8;
  }

  void read_adapter(const nlohmann::json& converter) {
    MethodConfig& m = config().method;
    m.kind = MethodKind::kLora;
    const auto number = [&](const char* key, double fallback) {
      return converter.contains(key) && converter[key].is_number() ? converter[key].get<double>() : fallback;
    };
    m.rank = static_cast<int64_t>(std::clamp(number("rank", 8), 1.0, 1e6));
    m.alpha = number("alpha", 16);
    if (!converter.contains("target_modules") || !converter["target_modules"].is_array()) return;
    m.targets.clear();
    for (const nlohmann::json& target : converter["target_modules"]) {
      const std::string name = target.is_string() ? target.get<std::string>() : "";
      if (name == "wqkv")
        m.targets.insert(m.targets.end(), {"q_proj", "k_proj", "v_proj"});
      else
        m.targets.push_back(name == "wq"   ? "q_proj"
                            : name == "wk" ? "k_proj"
                            : name == "wv" ? "v_proj"
                            : name == "wo" ? "o_proj"
                            : name == "w1" ? "gate_proj"
                            : name == "w2" ? "down_proj"
                            : name == "w3" ? "up_proj"
                                           : name);
    }
  }

  void read_rest() {
    RunConfig& c = config();
    const ForeignSetting* loss = s_.find("loss");
    const bool chunked =
        loss != nullptr && loss->value.is_string() && loss->value.get<std::string>().starts_with("Chunked");
    const bool compiled = s_.flag("compile.enable") || s_.flag("training.compile");
    const std::vector<std::string> parts = s_.texts("compile.components");
    const bool compiles_loss =
        compiled && (parts.empty() || std::find(parts.begin(), parts.end(), "loss") != parts.end());
    sheet_.add_switch("cross_entropy", chunked ? "chunked" : compiles_loss ? "compiled" : "eager");
    sheet_.add_switch("compiled", compiled ? "on" : "off");
    c.run.seed = integer({"debug.seed", "training.seed"}, 0, int64_t{1} << 40).value_or(0);
    c.log.every = std::max<int64_t>(1, integer({"metrics.log_freq"}, 0, 1 << 30).value_or(10));
    const bool saves = s_.flag("checkpoint.enable") || s_.flag("checkpoint.enable_checkpoint");
    const std::optional<int64_t> every = integer({"checkpoint.interval"}, 0, int64_t{1} << 40);
    const std::optional<int64_t> keep = integer({"checkpoint.keep_latest_k"}, 0, 1 << 20);
    if (saves && every) c.checkpoint.every = *every;
    if (saves && keep && *keep > 0) c.checkpoint.keep = *keep;
    if (const std::optional<std::string> path = text({"checkpoint.initial_load_path"})) c.model.weights = *path;
    s_.find("checkpoint.initial_load_in_hf");
    const std::optional<std::string> folder = text({"dump_folder", "job.dump_folder"});
    if (folder && folder->find('/') != std::string::npos && !folder->starts_with("./") && !folder->ends_with('/')) {
      c.run.directory = folder->substr(0, folder->rfind('/'));
      c.run.name = folder->substr(folder->rfind('/') + 1);
    }
  }

  ImportSheet& sheet_;
  TitanFiles& files_;
  ForeignSettings& s_;
  int64_t local_ = 1;  // sequences of a replica between two optimizer steps, accumulation aside
};

}  // namespace

void import_torchtitan(ImportSheet& sheet, std::string_view text, const std::string& where) {
  TitanFiles files = read_titan_files(sheet, text, where);
  if (sheet.run.errors.empty()) TitanReader(sheet, files).read();
}

}  // namespace fivefold
