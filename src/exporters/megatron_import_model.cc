#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/megatron_import.h"

namespace fivefold {
namespace {

class ShapeReader {
 public:
  ShapeReader(ImportSheet& sheet, ForeignSettings& arguments, const std::string& where)
      : sheet_(sheet), args_(arguments), where_(where) {}

  void read() {
    if (!sheet_.options().model.empty()) sheet_.find_named_model(sheet_.options().model, "--model");
    const size_t before = sheet_.run.errors.size();
    ModelShape shape = read_shape();
    if (sheet_.has_model()) {
      // The sizes are asked for all the same, so that they count as read.
      sheet_.run.errors.resize(before);
      return;
    }
    shape.vocab = read_vocabulary();
    if (sheet_.run.errors.size() > before || !args_.errors().empty()) return;
    Result<ShapedModel> model = model_of_shape(shape, where_);
    if (!model.ok()) return sheet_.run.errors.push_back(model.error());
    sheet_.run.model = model->spec;
    sheet_.run.model_json = model->config_json;
    config().model.name = model->name;
    if (model->name.empty()) sheet_.run.model.name = "imported";
    for (const std::string& what : model->approximations) sheet_.assume("model", "", what);
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  int64_t required(std::string_view name) {
    const std::optional<int64_t> value = args_.integer(name, 1, 1 << 24);
    if (!value && args_.where(name).empty())
      sheet_.fail("--" + std::string(name), "is not given", "add it, or import with --model NAME");
    return value.value_or(0);
  }

  ModelShape read_shape() {
    ModelShape s;
    s.layers = required("num-layers");
    s.hidden = required("hidden-size");
    s.heads = required("num-attention-heads");
    s.gated = args_.flag("swiglu") || args_.flag("quick-geglu");
    s.squared_relu = args_.flag("squared-relu");
    // As Megatron-LM's own rule for a width that is not given.
    s.ffn = args_.integer("ffn-hidden-size", 1, 1 << 24)
                .value_or(s.gated ? std::max<int64_t>(64, 4 * s.hidden * 2 / 3 / 64 * 64) : 4 * s.hidden);
    s.kv_heads =
        args_.flag("group-query-attention") ? args_.integer("num-query-groups", 1, 1 << 20).value_or(1) : s.heads;
    args_.find("num-query-groups");
    s.head_dim =
        args_.integer("kv-channels", 1, 1 << 16).value_or(s.heads > 0 ? std::max<int64_t>(1, s.hidden / s.heads) : 1);
    const std::string positions = args_.text("position-embedding-type").value_or("learned_absolute");
    s.rope = positions == "rope" || positions == "yarn" || args_.flag("use-rotary-position-embeddings");
    s.rope_theta = args_.number("rotary-base", 1, 1e12).value_or(10000);
    s.rope_scaled = args_.flag("use-rope-scaling");
    args_.number("rope-scaling-factor"), args_.number("rotary-percent");
    s.rms_norm = args_.text("normalization").value_or("LayerNorm") == "RMSNorm";
    s.norm_eps = args_.number("norm-epsilon", 1e-20, 1).value_or(1e-5);
    s.linear_bias = !args_.flag("disable-bias-linear");
    s.qkv_bias = s.linear_bias || args_.flag("add-qkv-bias");
    s.qk_norm = args_.flag("qk-layernorm");
    s.tied = !args_.flag("untie-embeddings-and-output-weights");
    s.max_positions = args_.integer("max-position-embeddings", 1, 1 << 24).value_or(config().batch.sequence);
    if (const std::vector<std::string> window = args_.texts("window-size"); !window.empty())
      s.window = std::max(0, std::atoi(window[0].c_str() + (window[0].starts_with("(") ? 1 : 0)));
    read_latent(s);
    read_experts(s);
    return s;
  }

  void read_latent(ModelShape& s) {
    if (!args_.flag("multi-latent-attention")) return;
    s.q_lora_rank = args_.integer("q-lora-rank", 1, 1 << 20).value_or(0);
    s.kv_lora_rank = args_.integer("kv-lora-rank", 1, 1 << 20).value_or(32);
    s.qk_nope_head_dim = args_.integer("qk-head-dim", 1, 1 << 16).value_or(128);
    s.qk_rope_head_dim = args_.integer("qk-pos-emb-head-dim", 1, 1 << 16).value_or(64);
    s.v_head_dim = args_.integer("v-head-dim", 1, 1 << 16).value_or(128);
    s.kv_heads = s.heads, s.head_dim = 0;
    // Its norms of q and kv are part of latent attention.
    s.qk_norm = false;
  }

  void read_experts(ModelShape& s) {
    s.experts = args_.integer("num-experts", 1, 1 << 16).value_or(0);
    if (s.experts == 0) return;
    s.experts_per_token = args_.integer("moe-router-topk", 1, 1 << 10).value_or(2);
    s.expert_ffn = args_.integer("moe-ffn-hidden-size", 1, 1 << 24).value_or(s.ffn);
    s.shared_ffn = args_.integer("moe-shared-expert-intermediate-size", 0, 1 << 24).value_or(0);
    s.shared_gate = args_.flag("moe-shared-expert-gate");
    if (const std::optional<std::string> pattern = args_.text("moe-layer-freq")) s.dense_first = dense_layers(*pattern);
    for (const std::string_view name :
         {"moe-router-score-function", "moe-router-enable-expert-bias", "moe-router-num-groups",
          "moe-router-group-topk", "moe-router-topk-scaling-factor", "moe-router-load-balancing-type",
          "moe-router-pre-softmax", "moe-grouped-gemm"})
      args_.find(name);
    const std::string dispatcher = args_.text("moe-token-dispatcher-type").value_or("allgather");
    sheet_.add_switch("gathers_for_experts", dispatcher == "allgather" ? "on" : "off");
  }

  // "([0]*3+[1]*58)": the layers without experts come first.
  int64_t dense_layers(const std::string& pattern) {
    if (pattern == "1") return 0;
    const size_t at = pattern.find("[0]*");
    if (pattern.find("[0]*", at + 1) == std::string::npos && at != std::string::npos && pattern.find("[1]") > at)
      return std::max(0, std::atoi(pattern.c_str() + at + 4));
    sheet_.fail(args_.where("moe-layer-freq") + ": --moe-layer-freq",
                fmt::format("`{}`: only layers without experts ahead of those with them are understood", pattern),
                "for example ([0]*3+[1]*58)");
    return 0;
  }

  int64_t read_vocabulary() {
    const std::optional<int64_t> given = args_.integer("vocab-size", 1, 1 << 24);
    const std::optional<int64_t> padded = args_.integer("padded-vocab-size", 1, 1 << 24);
    args_.find("make-vocab-size-divisible-by");
    const std::string type = args_.text("tokenizer-type").value_or(args_.has("merge-file") ? "GPT2BPETokenizer" : "");
    const std::string model = args_.text("tokenizer-model").value_or("");
    if (sheet_.options().vocab > 0) return sheet_.options().vocab;
    if (padded) return *padded;
    if (given) return *given;
    if (const std::optional<FoundModel> found = find_model(model); found && type == "HuggingFaceTokenizer") {
      sheet_.assume("vocabulary", format_count(found->spec.vocab),
                    "that of " + found->config.name + ", whose tokenizer it is");
      return found->spec.vocab;
    }
    const std::pair<std::string_view, int64_t> known[] = {
        {"GPT2BPETokenizer", 50257}, {"Llama2Tokenizer", 32000}, {"Llama3Tokenizer", 128256}};
    for (const auto& [name, vocab] : known)
      if (type == name) {
        sheet_.assume("vocabulary", format_count(vocab), fmt::format("the usual one of {}", name));
        return vocab;
      }
    sheet_.fail("--vocab-size", "neither the vocabulary nor a tokenizer that tells it is given",
                "import with --vocab N, or --model NAME");
    return 0;
  }

  ImportSheet& sheet_;
  ForeignSettings& args_;
  const std::string& where_;
};

}  // namespace

void read_megatron_model(ImportSheet& sheet, ForeignSettings& arguments, const std::string& where) {
  ShapeReader(sheet, arguments, where).read();
}

}  // namespace fivefold
