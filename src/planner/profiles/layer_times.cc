#include "planner/profiles/layer_times.h"

#include <algorithm>

#include "base/integer.h"
#include "spec/model_count.h"

namespace fivefold {
namespace {

constexpr double kElement = 2;  // of activations

// A linear of the rank: [tokens, out] = [tokens, in] x W.
struct Linear {
  int64_t tokens = 0, out = 0, in = 0;
  const char* target = "";  // by which adapters name it
  double residual = 0;      // elements a token that are added to the product
};

class LayerClock {
 public:
  LayerClock(const FrameworkRun& run, const Rates& rates, const NetworkSpec& network, const LayerPace& pace)
      : run_(run),
        rates_(rates),
        network_(network),
        pace_(pace),
        groups_(rank_groups(run, network)),
        tokens_(run.micro * div_ceil(run.sequence, run.cp)),
        stream_(run.sp ? div_ceil(tokens_, run.tp) : tokens_) {}

  LayerTime layer(const LayerSpec& layer) {
    time_ = {};
    products_ = elementwise_ = attention_ = {};
    norms(layer);
    mixer(layer.mixer);
    mlp(layer.mlp);
    finish();
    return time_;
  }

  LayerTime embedding() {
    const double bytes = static_cast<double>(stream_ * run_.model.hidden) * kElement;
    LayerTime time;
    time.forward.compute = seconds(OperationKind::kEmbedding, Pass::kForward, {.bytes = 2 * bytes});
    const double table = run_.model.tied_embeddings || run_.trains_adapter
                             ? 0
                             : static_cast<double>(vocabulary() * run_.model.hidden) * kElement;
    if (!run_.trains_adapter)
      time.backward.compute = seconds(OperationKind::kEmbedding, Pass::kBackward, {.bytes = 3 * bytes + table});
    if (run_.tp > 1) time.forward.tensor = combine(tokens_ * run_.model.hidden);
    return time;
  }

  // The logits' passes move 4 bytes for each of the model's 2 at most: one pass forward, three in all.
  LayerTime head() {
    const int64_t t = tokens_, h = run_.model.hidden, v = vocabulary();
    const double logits = pace_.loss_passes * static_cast<double>(t * v) * kElement,
                 stream = static_cast<double>(stream_ * h) * kElement;
    LayerTime time;
    OperationWork forward{.gemms = {{t, v, h}}, .bytes = logits}, backward{.gemms = {{t, h, v}}, .bytes = 2 * logits};
    if (!run_.trains_adapter) backward.gemms.push_back({v, h, t});
    time.forward.compute = seconds(OperationKind::kLoss, Pass::kForward, forward) +
                           seconds(OperationKind::kNorm, Pass::kForward, {.bytes = 2 * stream});
    time.backward.compute = seconds(OperationKind::kLoss, Pass::kBackward, backward) +
                            seconds(OperationKind::kNorm, Pass::kBackward, {.bytes = 6 * stream});
    if (run_.tp > 1) {
      if (run_.sp) time.forward.tensor = collective(CollectiveKind::kAllGather, groups_.tp, t * h);
      time.backward.tensor = combine(t * h);
    }
    return time;
  }

 private:
  int64_t vocabulary() const {
    const int64_t parts = run_.tp * (run_.vocabulary_stages == VocabularyStages::kLast ? 1 : run_.pp);
    return div_ceil(run_.model.vocab, parts);
  }
  double seconds(OperationKind kind, Pass pass, const OperationWork& work) const {
    return rates_.operation_seconds(kind, pass, work);
  }
  double collective(CollectiveKind kind, const GroupShape& group, int64_t elements, double element = kElement) const {
    return collective_cost(network_, kind, group, static_cast<double>(elements) * element).seconds();
  }
  // A partial sum of the tensor group to its ranks: all of it, or each its part of the tokens.
  double combine(int64_t elements) const {
    return (1 - pace_.hidden_tensor) *
           collective(run_.sp ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, groups_.tp, elements);
  }
  double gather(int64_t elements) const {
    return run_.sp ? (1 - pace_.hidden_tensor) * collective(CollectiveKind::kAllGather, groups_.tp, elements) : 0;
  }
  // What of a collective lasts longer than the computation beside it, and what it takes from that.
  double beyond(double communication, double beside) const {
    const double hidden = std::min(communication, beside);
    return communication - hidden + hidden * rates_.overlap_share();
  }

  void elementwise(OperationKind kind, double forward_bytes, double backward_bytes) {
    const double forward = seconds(kind, Pass::kForward, {.bytes = forward_bytes});
    elementwise_.forward.compute += forward;
    elementwise_.backward.compute += seconds(kind, Pass::kBackward, {.bytes = backward_bytes});
  }
  void norms(const LayerSpec& layer) {
    const double stream = static_cast<double>(stream_ * run_.model.hidden) * kElement;
    int count = layer.single_norm ? 1 : (layer.pre_norm ? 2 : 0) + (layer.post_norm ? 2 : 0);
    if (layer.mixer.kind == MixerKind::kNone || layer.mlp.kind == MlpKind::kNone) count = std::min(count, 1);
    for (; count > 0; --count) elementwise(OperationKind::kNorm, 2 * stream, 6 * stream);
  }

  bool adapted(const char* target) const { return std::ranges::find(run_.targets, target) != run_.targets.end(); }
  bool four_bit() const { return run_.frozen != FrozenWeights::kNone && run_.frozen != FrozenWeights::kBf16; }
  // Returns the seconds of its backward.
  double linear(const Linear& l) {
    OperationWork forward{.gemms = {{l.tokens, l.out, l.in}}}, backward{.gemms = {{l.tokens, l.in, l.out}}};
    const auto t = static_cast<double>(l.tokens);
    forward.bytes += 2 * t * l.residual * kElement;
    if (!run_.trains_adapter) backward.gemms.push_back({l.out, l.in, l.tokens});
    if (four_bit()) {
      forward.bytes += pace_.dequantised_bytes * static_cast<double>(l.out * l.in);
      backward.bytes += pace_.dequantised_bytes * static_cast<double>(l.out * l.in);
    }
    if (run_.trains_adapter && adapted(l.target)) {
      const int64_t r = run_.rank;
      forward.gemms.insert(forward.gemms.end(), {{l.tokens, r, l.in}, {l.tokens, l.out, r}});
      forward.bytes += 2 * t * static_cast<double>(l.out) * kElement;
      backward.gemms.insert(backward.gemms.end(),
                            {{l.tokens, r, l.out}, {l.out, r, l.tokens}, {r, l.in, l.tokens}, {l.tokens, l.in, r}});
      backward.bytes += 2 * t * static_cast<double>(l.in) * kElement;
    }
    const double back = seconds(OperationKind::kLinear, Pass::kBackward, backward);
    products_.forward.compute += seconds(OperationKind::kLinear, Pass::kForward, forward);
    products_.backward.compute += back;
    return back;
  }
  // A column linear's input comes from the whole group, its gradient goes back to it beside the weight's product; in a
  // row linear the other way round.
  void column(const Linear& l) {
    const double back = linear(l);
    if (run_.tp == 1) return;
    time_.forward.tensor += gather(l.tokens * l.in);
    const double hidden = gather(l.tokens * l.in) + combine(l.tokens * l.in);
    time_.backward.tensor += beyond(hidden, back / 2);
  }
  void row(const Linear& l) {
    linear(l);
    if (run_.tp == 1) return;
    time_.forward.tensor += combine(l.tokens * l.out);
    time_.backward.tensor += gather(l.tokens * l.out);
  }

  // Scores and values over the pairs that the mask leaves; `width`: of a token's heads on this rank, queries and
  // values.
  void attention(double width, double values, double keys_and_values, int64_t window) {
    const auto t = static_cast<double>(tokens_), s = static_cast<double>(run_.sequence);
    const double visible = window > 0 ? std::min(s, static_cast<double>(window)) : s;
    const double pairs = t * visible * (1 - visible / (2 * s)),
                 bytes = t * (width + keys_and_values + values) * kElement;
    OperationWork forward{.flops = 2 * pairs * (width + values), .bytes = bytes};
    OperationWork backward{.flops = 2.5 * forward.flops, .bytes = 2 * bytes};
    if (run_.attention == AttentionKernel::kUnfused) {
      // Scores, mask, softmax and dropout pass through memory.
      const double scores = t * s * (values > 0 ? width / head_dim_ : 0) * kElement;
      forward.bytes += 6 * scores;
      backward.bytes += 8 * scores;
    }
    attention_.forward.compute += seconds(OperationKind::kAttention, Pass::kForward, forward);
    attention_.backward.compute += seconds(OperationKind::kAttention, Pass::kBackward, backward);
    context(t * keys_and_values);
  }
  // Ring: in each of c steps the next block of keys and values travels, and backward its gradient.
  void context(double block) {
    if (run_.cp == 1) return;
    const auto elements = static_cast<int64_t>(block);
    const double one = collective(CollectiveKind::kSend, groups_.cp, elements),
                 steps = static_cast<double>(run_.cp - 1);
    time_.forward.context += beyond(steps * one, attention_.forward.compute * steps / static_cast<double>(run_.cp));
    time_.backward.context += beyond((2 * steps + 1) * one, attention_.backward.compute);
  }

  void mixer(const MixerSpec& m) {
    const int64_t t = tokens_, h = run_.model.hidden, tp = run_.tp;
    switch (m.kind) {
      case MixerKind::kNone:
        return;
      case MixerKind::kAttention: {
        const int64_t a = div_ceil(m.num_heads, tp), k = div_ceil(m.num_kv_heads, tp), d = m.head_dim;
        head_dim_ = static_cast<double>(d);
        column({t, (a + 2 * k + (m.output_gate ? a : 0)) * d, h, "q_proj"});
        const double packed = static_cast<double>(t * (a + 2 * k) * d) * kElement;
        if (m.qk_norm) elementwise(OperationKind::kQkNorm, 3 * packed, 4 * packed);
        if (m.has_rope) elementwise(OperationKind::kRope, 2 * packed, 2 * packed);
        const auto width = static_cast<double>(a * d);
        attention(width, width, static_cast<double>(2 * k * d), m.window);
        return row({t, h, a * d, "o_proj", static_cast<double>(h) / sequence_parts()});
      }
      case MixerKind::kLatentAttention:
        return latent_attention(m);
      case MixerKind::kLinearAttention:
      case MixerKind::kMamba2:
        return recurrent(m);
    }
  }
  double sequence_parts() const { return static_cast<double>(run_.sp ? run_.tp : 1); }

  // Down-projections on the rank's own tokens, up-projections of its heads on all of them.
  void latent_attention(const MixerSpec& m) {
    const int64_t t = tokens_, h = run_.model.hidden, a = div_ceil(m.num_heads, run_.tp);
    const int64_t key = m.qk_nope_head_dim + m.qk_rope_head_dim, value = m.v_head_dim;
    head_dim_ = static_cast<double>(key);
    const int64_t latents = m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim;
    if (m.q_lora_rank > 0) {
      linear({stream_, m.q_lora_rank, h, "q_a_proj"});
      column({t, a * key, m.q_lora_rank, "q_b_proj"});
    } else {
      column({t, a * key, h, "q_proj"});
    }
    linear({stream_, m.kv_lora_rank + m.qk_rope_head_dim, h, "kv_a_proj_with_mqa"});
    column({t, a * (m.qk_nope_head_dim + value), m.kv_lora_rank, "kv_b_proj"});
    const double small = static_cast<double>(stream_ * latents) * kElement,
                 packed = static_cast<double>(t * a * (2 * key + value)) * kElement;
    elementwise(OperationKind::kNorm, 2 * small, 6 * small);
    elementwise(OperationKind::kRope, 2 * packed, 2 * packed);
    const auto width = static_cast<double>(a * key), values = static_cast<double>(a * value);
    attention(width, values, static_cast<double>(a * (key + value)), m.window);
    row({t, h, a * value, "o_proj", static_cast<double>(h) / sequence_parts()});
  }

  // Its matrices as one product in and one out, and a scan whose states pass through memory once for each token.
  void recurrent(const MixerSpec& m) {
    const int64_t t = tokens_, h = run_.model.hidden;
    const bool mamba = m.kind == MixerKind::kMamba2;
    const int64_t inner =
        div_ceil(mamba ? m.ssm_heads * m.ssm_head_dim : m.linear_value_heads * m.linear_value_dim, run_.tp);
    const int64_t keys =
        div_ceil(mamba ? 2 * m.ssm_groups * m.ssm_state : 2 * m.linear_key_heads * m.linear_key_dim, run_.tp);
    const int64_t state = mamba ? m.ssm_state : m.linear_key_dim;
    column({t, 2 * inner + keys, h, "in_proj"});
    const double bytes = static_cast<double>(t * (2 * inner + keys)) * kElement;
    elementwise(OperationKind::kRope, 2 * bytes, 4 * bytes);
    OperationWork forward{.flops = 6 * static_cast<double>(t * inner * state), .bytes = 2 * bytes};
    OperationWork backward{.flops = 2.5 * forward.flops, .bytes = 4 * bytes};
    attention_.forward.compute += seconds(OperationKind::kAttention, Pass::kForward, forward);
    attention_.backward.compute += seconds(OperationKind::kAttention, Pass::kBackward, backward);
    row({t, h, inner, "out_proj", static_cast<double>(h) / sequence_parts()});
  }

  void dense_mlp(int64_t ffn, bool gated) {
    const int64_t t = tokens_, h = run_.model.hidden, f = div_ceil(ffn, run_.tp);
    column({t, (gated ? 2 : 1) * f, h, "up_proj"});
    const double inner = static_cast<double>(t * f) * kElement;
    elementwise(OperationKind::kGatedActivation, (gated ? 3 : 2) * inner, (gated ? 6 : 4) * inner);
    row({t, h, f, "down_proj", static_cast<double>(h) / sequence_parts()});
  }
  void mlp(const MlpSpec& m) {
    if (m.kind == MlpKind::kGated || m.kind == MlpKind::kPlain) dense_mlp(m.ffn, m.kind == MlpKind::kGated);
    if (m.kind != MlpKind::kMoe) return;
    if (m.shared_ffn > 0) dense_mlp(m.shared_ffn, m.expert_gated);
    experts(m);
  }

  // Rows of the rank's own tokens travel to the ranks of their experts and back; those of the fullest rank count.
  void experts(const MlpSpec& m) {
    const int64_t h = run_.model.hidden, et = run_.expert_tp,
                  local = std::max<int64_t>(1, div_floor(m.num_experts, run_.ep));
    const int64_t sent = stream_ * m.experts_per_token;
    const double imbalance = run_.expert_imbalance;
    const auto rows = static_cast<int64_t>(static_cast<double>(sent * et) * imbalance);
    linear({stream_, m.num_experts, h, "router"});
    const double row_bytes = static_cast<double>(rows * h) * kElement;
    // Rows are sorted by expert, and summed with their weights.
    elementwise(OperationKind::kRope, 2 * row_bytes, 2 * row_bytes);
    elementwise(OperationKind::kRope, 2 * row_bytes, 3 * row_bytes);
    const int64_t of_expert = std::max<int64_t>(1, div_ceil(rows, local)), f = div_ceil(m.expert_ffn, et);
    grouped({of_expert, (m.expert_gated ? 2 : 1) * f, h}, local);
    grouped({of_expert, h, f}, local);
    const double inner = static_cast<double>(rows * f) * kElement;
    elementwise(OperationKind::kGatedActivation, (m.expert_gated ? 3 : 2) * inner, (m.expert_gated ? 6 : 4) * inner);
    exchange(sent, imbalance);
  }
  // One launch for all experts.
  void grouped(const Gemm& one, int64_t count) {
    const double launch = rates_.launch_seconds(), n = static_cast<double>(count);
    const auto all = [&](const Gemm& gemm) { return n * (rates_.gemm_seconds(gemm) - launch) + launch; };
    products_.forward.compute += all(one);
    products_.backward.compute += all({one.m, one.k, one.n});
    if (!run_.trains_adapter) products_.backward.compute += all({one.n, one.k, one.m});
  }
  void exchange(int64_t sent, double imbalance) {
    const int64_t h = run_.model.hidden;
    double there = 0;
    if (run_.ep > 1) {
      if (run_.gathers_for_experts)
        there = collective(CollectiveKind::kAllGather, groups_.ep, stream_ * run_.ep * h);
      else
        there = imbalance * collective(CollectiveKind::kAllToAll, groups_.ep, sent * h);
    }
    if (run_.expert_tp > 1) there += collective(CollectiveKind::kAllGather, groups_.etp, sent * run_.expert_tp * h);
    const double both = 2 * there * (1 - pace_.hidden_experts);
    time_.forward.experts += both;
    time_.backward.experts += both;
  }

  void finish() {
    for (const LayerTime* part : {&products_, &elementwise_, &attention_}) {
      time_.forward.compute += part->forward.compute;
      time_.backward.compute += part->backward.compute;
    }
    // What the host launches meanwhile, collectives included, goes beside it.
    const auto at_least = [](PassTime& pass, double host) { pass.compute += std::max(0.0, host - pass.total()); };
    at_least(time_.forward, pace_.host_s);
    at_least(time_.backward, pace_.backward_host * pace_.host_s);
    switch (run_.checkpointing) {
      case Checkpointing::kNone:
        break;
      case Checkpointing::kFull:
        time_.again = time_.forward;
        break;
      case Checkpointing::kCoreAttention:
        time_.again.compute = attention_.forward.compute;
        break;
      case Checkpointing::kPerOperation:
        time_.again.compute = products_.forward.compute / 2 + elementwise_.forward.compute;
        break;
      case Checkpointing::kEveryOther:
        time_.again = time_.forward * 0.5;
        break;
    }
  }

  const FrameworkRun& run_;
  const Rates& rates_;
  const NetworkSpec& network_;
  const LayerPace& pace_;
  RankGroups groups_;
  int64_t tokens_, stream_;  // of a microbatch on the rank; those of its residual stream
  double head_dim_ = 1;
  LayerTime time_, products_, elementwise_, attention_;
};

}  // namespace

PassTime& PassTime::operator+=(const PassTime& other) {
  compute += other.compute;
  tensor += other.tensor;
  context += other.context;
  experts += other.experts;
  return *this;
}

PassTime PassTime::operator*(double factor) const {
  return {
      .compute = factor * compute, .tensor = factor * tensor, .context = factor * context, .experts = factor * experts};
}

ModelTimes model_times(const FrameworkRun& run, const Rates& rates, const NetworkSpec& network, const LayerPace& pace) {
  LayerClock clock(run, rates, network, pace);
  ModelTimes times;
  const std::vector<LayerSpec>& layers = run.model.layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    size_t same = i;
    for (size_t j = i; j-- > 0 && same == i && i - j <= 8;)
      if (layers[j] == layers[i]) same = j;
    times.layers.push_back(same < i ? LayerTime(times.layers[same]) : clock.layer(layers[i]));
  }
  times.embedding = clock.embedding();
  times.head = clock.head();
  times.forward_before.push_back(0);
  times.backward_before.push_back(0);
  for (const LayerTime& layer : times.layers) {
    times.forward_before.push_back(times.forward_before.back() + layer.forward.total());
    times.backward_before.push_back(times.backward_before.back() + layer.backward.total() + layer.again.total());
  }
  return times;
}

}  // namespace fivefold
