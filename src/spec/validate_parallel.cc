#include "spec/validate_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/integer.h"
#include "base/text.h"
#include "spec/pipeline_stages.h"
#include "spec/run_config_resolve.h"
#include "spec/validate.h"
#include "spec/validate_degrees.h"

namespace fivefold {
namespace {

enum class Rule : uint8_t {
  kDivide,     // the degree divides the number
  kReplicate,  // or is a multiple of it: the parts are replicated
  kPad,        // the number is padded; every rank must have something of it
};

// A number that a degree cuts, and what it counts.
struct Divisible {
  int64_t size;
  std::string_view noun;
  Rule rule = Rule::kDivide;
};

bool cuts(int64_t degree, const Divisible& item) {
  switch (item.rule) {
    case Rule::kDivide:
      return item.size % degree == 0;
    case Rule::kReplicate:
      return item.size % degree == 0 || degree % item.size == 0;
    case Rule::kPad:
      return (degree - 1) * div_ceil(item.size, degree) < item.size;
  }
  FIVEFOLD_CHECK(false);
}

void add_mixer(const MixerSpec& mixer, std::vector<Divisible>& items) {
  switch (mixer.kind) {
    case MixerKind::kNone:
      return;
    case MixerKind::kAttention:
      items.push_back({mixer.num_heads, "attention heads"});
      items.push_back({mixer.num_kv_heads, "KV heads", Rule::kReplicate});
      return;
    case MixerKind::kLatentAttention:
      items.push_back({mixer.num_heads, "attention heads"});
      return;
    case MixerKind::kLinearAttention:
      items.push_back({mixer.linear_key_heads, "key heads of the linear attention"});
      items.push_back({mixer.linear_value_heads, "value heads of the linear attention"});
      return;
    case MixerKind::kMamba2:
      items.push_back({mixer.ssm_heads, "heads of the state space layers"});
      items.push_back({mixer.ssm_groups, "groups of the state space layers", Rule::kReplicate});
      return;
  }
}

// What tp divides, each kind of layer once.
std::vector<Divisible> tensor_parallel_items(const ModelSpec& model) {
  std::vector<Divisible> all;
  for (const LayerSpec& layer : model.layers) {
    add_mixer(layer.mixer, all);
    if (layer.mlp.kind == MlpKind::kGated || layer.mlp.kind == MlpKind::kPlain)
      all.push_back({layer.mlp.ffn, "columns of the MLP", Rule::kPad});
    if (layer.mlp.shared_ffn > 0) all.push_back({layer.mlp.shared_ffn, "columns of the shared experts", Rule::kPad});
  }
  all.push_back({model.vocab, "rows of the vocabulary", Rule::kPad});
  std::vector<Divisible> unique;
  for (const Divisible& item : all) {
    const bool seen = std::any_of(unique.begin(), unique.end(),
                                  [&](const Divisible& u) { return u.size == item.size && u.noun == item.noun; });
    if (!seen && item.size > 0) unique.push_back(item);
  }
  return unique;
}

bool has_experts(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
}

// Heads of one tensor-parallel rank.
int64_t heads_per_rank(int64_t heads, int64_t tp) { return std::max<int64_t>(1, div_floor(heads, tp)); }

bool is_v_shaped(ScheduleKind kind) {
  return kind == ScheduleKind::kZbv || kind == ScheduleKind::kVHalf || kind == ScheduleKind::kVMin ||
         kind == ScheduleKind::kDualPipeV;
}

// The nearest way to as many chunks as there are places for: fewer a rank where the schedule runs with them, else fewer
// ranks. REQUIRES: pp is not too large by itself.
std::string fewer_chunks(const ParallelConfig& parallel, int64_t places) {
  const bool interleaved = parallel.schedule == ScheduleKind::kInterleaved;
  const int64_t least = interleaved || is_v_shaped(parallel.schedule) ? 2 : 1;
  const int64_t chunks = div_floor(places, int64_t{parallel.pp}), ranks = div_floor(places, least);
  if (chunks >= least) return fmt::format("use vpp = {}", interleaved ? chunks : least);
  if (ranks > 1) return fmt::format("use pp = {} with vpp = {}", ranks, least);
  return "use pp = 1 with vpp = 1";
}

// A number of microbatches that the schedule cannot use: the hint is the batch that gives a legal one.
void check_microbatches(const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  const Result<int64_t> microbatches = num_microbatches(config);
  if (!microbatches.ok()) return;  // reported with the batch
  const int64_t m = *microbatches, p = parallel.pp, unit = config.batch.micro * parallel.dp;
  if (parallel.schedule == ScheduleKind::kInterleaved && m % p != 0) {
    const int64_t below = div_floor(m, p) * p, above = below + p;
    const std::string around =
        below > 0 ? fmt::format("{} or {}", below * unit, above * unit) : fmt::format("{}", above * unit);
    errors.push_back(
        {"batch.global",
         fmt::format("schedule interleaved takes the microbatches in rounds of pp: {} is not a multiple of {}", m, p),
         fmt::format("use global = {}, or schedule = 1f1b with vpp = 1", around)});
  }
  if (parallel.schedule == ScheduleKind::kDualPipeV && m < 2 * p)
    errors.push_back({"batch.global",
                      fmt::format("schedule dualpipev needs at least 2 pp = {} microbatches, there are {}", 2 * p, m),
                      fmt::format("use global = {} or more", 2 * p * unit)});
}

// The file says how many ranks, chunks and microbatches it is for.
void check_schedule_file(const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.schedule != ScheduleKind::kFile) {
    if (!parallel.schedule_file.empty())
      errors.push_back({"parallel.schedule_file",
                        fmt::format("belongs to schedule = file, the schedule is {}", to_string(parallel.schedule)),
                        "use schedule = file, or schedule_file = \"\""});
    return;
  }
  if (parallel.schedule_file.empty()) {
    errors.push_back({"parallel.schedule_file", "schedule file needs the path of one",
                      "name a file (docs/formats/schedule.md), or use schedule = 1f1b"});
    return;
  }
  if (parallel.pp == 1) {
    errors.push_back(
        {"parallel.schedule", "a schedule from a file needs a pipeline, pp is 1", "use schedule = 1f1b, or pp = 2"});
    return;
  }
  const ScheduleSource& source = parallel.schedule_source;
  if (source.text.empty()) {
    errors.push_back({"parallel.schedule_file", parallel.schedule_file + " has not been read", ""});
    return;
  }
  if (source.num_stages != parallel.pp)
    errors.push_back(
        {"parallel.pp",
         fmt::format("{} is a schedule of {} ranks, pp is {}", parallel.schedule_file, source.num_stages, parallel.pp),
         fmt::format("use pp = {}", source.num_stages)});
  if (source.chunks_per_rank != parallel.vpp)
    errors.push_back({"parallel.vpp",
                      fmt::format("{} is a schedule of {} chunks a rank, vpp is {}", parallel.schedule_file,
                                  source.chunks_per_rank, parallel.vpp),
                      fmt::format("use vpp = {}", source.chunks_per_rank)});
  const Result<int64_t> microbatches = num_microbatches(config);
  if (microbatches.ok() && *microbatches != source.num_microbatches)
    errors.push_back({"batch.global",
                      fmt::format("{} is a schedule of {} microbatches, there are {}", parallel.schedule_file,
                                  source.num_microbatches, *microbatches),
                      fmt::format("use global = {}", source.num_microbatches * config.batch.micro * parallel.dp)});
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (const int64_t number : numbers) parts.push_back(std::to_string(number));
  return fmt::format("[{}]", join(parts, ", "));
}

void check_stages(const ModelSpec& model, const ParallelConfig& parallel, std::vector<Error>& errors) {
  if (parallel.stages.cut != StageCut::kListed) return;
  const std::vector<int64_t>& listed = parallel.stages.layers;
  const auto layers = static_cast<int64_t>(model.layers.size());
  const int64_t chunks = int64_t{parallel.pp} * parallel.vpp;
  ParallelConfig even = parallel;
  even.stages = {};
  const std::string hint =
      fmt::format("use stages = {}, or stages = balanced", list_text(layers_per_stage(model, even, /*sequence=*/1)));
  if (static_cast<int64_t>(listed.size()) != chunks) {
    errors.push_back({"parallel.stages", fmt::format("{} numbers for pp x vpp = {} chunks", listed.size(), chunks),
                      chunks <= layers + 2 ? hint : "use stages = even"});
    return;
  }
  const int64_t sum = std::accumulate(listed.begin(), listed.end(), int64_t{0});
  if (sum != layers)
    errors.push_back({"parallel.stages", fmt::format("{} layers in all, the model has {}", sum, layers), hint});
}

}  // namespace

std::vector<int64_t> ulysses_degrees(int64_t num_heads, int64_t num_kv_heads) {
  std::vector<int64_t> degrees;
  for (int64_t c = 1; c <= num_heads; ++c)
    if (num_heads % c == 0 && (num_kv_heads % c == 0 || c % num_kv_heads == 0)) degrees.push_back(c);
  return degrees;
}

namespace {

bool cuts_all(int64_t degree, const std::vector<Divisible>& items) {
  return std::all_of(items.begin(), items.end(), [&](const Divisible& item) { return cuts(degree, item); });
}

// The same ranks over heads as far as these divide, and over the sequence: ", or tp = 4 with cp = 2 and cp_kind =
// ring". Nothing where no further split of the heads leaves some for cp, or leaves the eight ranks of a usual node.
std::string both_axes(const ModelSpec& model, int64_t tp, int64_t cp) {
  const std::vector<Divisible> items = tensor_parallel_items(model);
  for (int64_t more = std::min(cp - 1, div_floor(int64_t{8}, tp)); more > 1; --more)
    if (cp % more == 0 && cuts_all(tp * more, items))
      return fmt::format(", or tp = {} with cp = {} and cp_kind = ring", tp * more, div_exact(cp, more));
  return "";
}

}  // namespace

void check_tensor_parallel(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const int64_t tp = config.parallel.tp;
  const std::vector<Divisible> items = tensor_parallel_items(model);
  int64_t most = 1;
  for (const Divisible& item : items) most = std::max(most, item.size);
  const auto legal = [&](int64_t degree) { return cuts_all(degree, items); };
  for (const Divisible& item : items) {
    if (cuts(tp, item)) continue;
    std::string problem = fmt::format("{} does not divide {} {}", tp, item.size, item.noun);
    if (item.rule == Rule::kReplicate)
      problem = fmt::format("{} and {} {}: neither divides the other", tp, item.size, item.noun);
    if (item.rule == Rule::kPad) problem = fmt::format("{} {} leave some of {} ranks none", item.size, item.noun, tp);
    errors.push_back({"parallel.tp", problem, nearest_degrees("tp", tp, most, legal)});
  }
  if (tp > 1 && has_experts(model) && !config.parallel.sp)
    errors.push_back(
        {"parallel.sp",
         fmt::format("tp = {} with experts needs sequence parallelism: tokens reach the experts in shards", tp),
         "set sp = true, or tp = 1"});
}

void check_context_parallel(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const int64_t cp = config.parallel.cp, tp = config.parallel.tp;
  if (cp == 1) return;
  for (const LayerSpec& layer : model.layers) {
    if (layer.mixer.kind != MixerKind::kLinearAttention && layer.mixer.kind != MixerKind::kMamba2) continue;
    errors.push_back(
        {"parallel.cp", "splits attention over the sequence; this model has recurrent layers", "use cp = 1"});
    return;
  }
  if (config.parallel.cp_kind != CpKind::kUlysses) return;
  for (const LayerSpec& layer : model.layers) {
    const MixerSpec& mixer = layer.mixer;
    if (mixer.kind != MixerKind::kAttention && mixer.kind != MixerKind::kLatentAttention) continue;
    const int64_t kv_heads = mixer.kind == MixerKind::kAttention ? mixer.num_kv_heads : mixer.num_heads;
    const int64_t heads = heads_per_rank(mixer.num_heads, tp), kv = heads_per_rank(kv_heads, tp);
    const std::vector<int64_t> degrees = ulysses_degrees(heads, kv);
    if (std::find(degrees.begin(), degrees.end(), cp) != degrees.end()) continue;
    const std::string hint = nearest_degrees(
        "cp", cp, heads, [&](int64_t c) { return std::find(degrees.begin(), degrees.end(), c) != degrees.end(); });
    errors.push_back(
        {"parallel.cp",
         fmt::format("ulysses cannot split {} query and {} KV heads per tp rank over {} ranks", heads, kv, cp),
         hint + ", or cp_kind = ring" + both_axes(model, tp, cp)});
    return;
  }
}

void check_pipeline(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t p = parallel.pp, v = parallel.vpp, layers = static_cast<int64_t>(model.layers.size());
  check_schedule_file(config, errors);
  check_stages(model, parallel, errors);
  if (p == 1) {
    if (v > 1)
      errors.push_back(
          {"parallel.vpp", fmt::format("{} chunks a rank need a pipeline, pp is 1", v), "use vpp = 1, or pp = 2"});
    return;
  }
  // The embedding and the head may each be a stage of their own.
  const int64_t places = layers + 2;
  if (p > places)
    errors.push_back({"parallel.pp", fmt::format("{} stages are more than embedding, {} layers and head", p, layers),
                      nearest_degrees("pp", p, places, [](int64_t) { return true; })});
  else if (p * v > places)
    errors.push_back({"parallel.vpp",
                      fmt::format("{} x {} chunks are more than embedding, {} layers and head", p, v, layers),
                      fewer_chunks(parallel, places)});
  const std::string_view schedule = to_string(parallel.schedule);
  if (is_v_shaped(parallel.schedule) && v != 2)
    errors.push_back(
        {"parallel.vpp", fmt::format("schedule {} has two chunks a rank, vpp is {}", schedule, v), "use vpp = 2"});
  else if (parallel.schedule == ScheduleKind::kInterleaved && v == 1)
    errors.push_back({"parallel.vpp", "schedule interleaved needs several chunks a rank, vpp is 1",
                      "use vpp = 2, or schedule = 1f1b"});
  else if (parallel.schedule != ScheduleKind::kInterleaved && parallel.schedule != ScheduleKind::kFile &&
           !is_v_shaped(parallel.schedule) && v > 1)
    errors.push_back({"parallel.vpp", fmt::format("schedule {} has one chunk a rank, vpp is {}", schedule, v),
                      "use vpp = 1, or schedule = interleaved"});
  check_microbatches(config, errors);
}

void check_experts(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const int64_t ep = config.parallel.ep, etp = config.parallel.etp;
  if (!has_experts(model)) {
    if (ep > 1) errors.push_back({"parallel.ep", fmt::format("{} needs a model with experts", ep), "use ep = 1"});
    if (etp > 1) errors.push_back({"parallel.etp", fmt::format("{} needs a model with experts", etp), "use etp = 1"});
    return;
  }
  const auto moe = [&](auto&& violates) {
    return std::find_if(model.layers.begin(), model.layers.end(),
                        [&](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe && violates(l.mlp); });
  };
  if (const auto layer = moe([&](const MlpSpec& m) { return m.num_experts % ep != 0; }); layer != model.layers.end()) {
    const int64_t experts = layer->mlp.num_experts;
    errors.push_back({"parallel.ep", fmt::format("{} does not divide {} experts", ep, experts),
                      nearest_degrees("ep", ep, experts, [&](int64_t n) { return experts % n == 0; })});
  }
  if (const auto layer = moe([&](const MlpSpec& m) { return m.expert_ffn % etp != 0; }); layer != model.layers.end()) {
    const int64_t width = layer->mlp.expert_ffn;
    errors.push_back({"parallel.etp", fmt::format("{} does not divide the {} columns of an expert", etp, width),
                      nearest_degrees("etp", etp, width, [&](int64_t n) { return width % n == 0; })});
  }
}

}  // namespace fivefold
