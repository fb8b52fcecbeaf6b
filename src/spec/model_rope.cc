// RoPE keys of config.json, in both spellings.
#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "spec/model_family.h"

namespace fivefold {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

struct NamedScaling {
  const char* name;
  RopeScaling scaling;
};
constexpr NamedScaling kScalings[] = {{"default", RopeScaling::kNone},
                                      {"linear", RopeScaling::kLinear},
                                      {"dynamic", RopeScaling::kDynamic},
                                      {"llama3", RopeScaling::kLlama3},
                                      {"yarn", RopeScaling::kYarn}};

// rope_type, or type as older files call it.
RopeScaling read_type(ModelReader& scaling) {
  const std::string newer = scaling.text_or("rope_type", ""), older = scaling.text_or("type", "");
  if (!newer.empty() && !older.empty() && newer != older)
    scaling.fail("rope_type", fmt::format("\"{}\" contradicts type \"{}\"", newer, older), "keep one of them");
  const std::string name = !newer.empty() ? newer : !older.empty() ? older : "default";
  std::vector<std::string> known;
  for (const NamedScaling& entry : kScalings) {
    if (name == entry.name) return entry.scaling;
    known.emplace_back(entry.name);
  }
  scaling.fail(newer.empty() ? "type" : "rope_type", fmt::format("unknown RoPE type \"{}\"", name),
               "known: " + join(known, ", "));
  return RopeScaling::kNone;
}

void read_llama3(ModelReader& scaling, RopeSpec& rope) {
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, kMaxFactor);
  if (scaling.ok() && rope.high_freq_factor <= rope.low_freq_factor)
    scaling.fail("high_freq_factor",
                 fmt::format("{} is not above low_freq_factor {}", rope.high_freq_factor, rope.low_freq_factor),
                 "Llama 3.1 has 1 and 4");
}

void read_yarn(ModelReader& scaling, RopeSpec& rope) {
  rope.beta_fast = scaling.number_or("beta_fast", 32.0, 1e-6, kMaxFactor);
  rope.beta_slow = scaling.number_or("beta_slow", 1.0, 1e-6, kMaxFactor);
  rope.attention_factor = scaling.number_or("attention_factor", 0.0, 0.0, kMaxFactor);
  rope.mscale = scaling.number_or("mscale", 0.0, 0.0, kMaxFactor);
  rope.mscale_all_dim = scaling.number_or("mscale_all_dim", 0.0, 0.0, kMaxFactor);
  rope.truncate = scaling.boolean_or("truncate", true);
  if (scaling.ok() && rope.beta_fast < rope.beta_slow)
    scaling.fail("beta_fast", fmt::format("{} is below beta_slow {}", rope.beta_fast, rope.beta_slow),
                 "usual: 32 and 1");
}

double read_theta(ModelReader& reader, double fallback) {
  // Theta 1 would make every frequency equal; real ones are 1e4 to 1e8.
  return reader.number_or("rope_theta", fallback, 1.0 + 1e-9, kMaxTheta);
}

}  // namespace

void read_rope_scaling(ModelReader& scaling, int64_t max_positions, RopeSpec& rope) {
  rope.scaling = read_type(scaling);
  if (rope.scaling == RopeScaling::kNone) return;
  const IntegerRange positions{1, int64_t{1} << 40};
  const int64_t original = scaling.integer_or("original_max_position_embeddings", max_positions, positions);
  rope.original_max_positions = rope.scaling == RopeScaling::kDynamic ? max_positions : original;
  if (rope.scaling == RopeScaling::kYarn && !scaling.has("factor")) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(original);
    if (!(rope.factor >= 1.0 && rope.factor <= kMaxFactor))
      scaling.fail(
          "factor",
          fmt::format("missing, and max_position_embeddings {} / original_max_position_embeddings {} is out of "
                      "range",
                      max_positions, original),
          fmt::format("1 to {}", kMaxFactor));
  } else {
    rope.factor = scaling.number("factor", 1.0, kMaxFactor);
  }
  if (rope.scaling == RopeScaling::kLinear) rope.original_max_positions = 0;
  if (rope.scaling == RopeScaling::kLlama3) read_llama3(scaling, rope);
  if (rope.scaling == RopeScaling::kYarn) read_yarn(scaling, rope);
}

RopeSpec read_rope(ModelReader& reader, const FamilyDefaults& defaults, int64_t max_positions, int64_t head_dim) {
  RopeSpec rope;
  rope.theta = read_theta(reader, defaults.rope_theta);
  double partial = reader.number_or("partial_rotary_factor", defaults.partial_rotary_factor, 0.0, 1.0);
  if (reader.has("rope_parameters")) {
    ModelReader parameters = reader.object("rope_parameters");
    if (reader.has("rope_theta") && parameters.has("rope_theta") && read_theta(parameters, rope.theta) != rope.theta)
      reader.fail("rope_theta", fmt::format("{} contradicts rope_parameters.rope_theta", rope.theta),
                  "keep one of them");
    if (reader.has("rope_scaling")) reader.fail("rope_scaling", "given beside rope_parameters", "keep one of them");
    rope.theta = read_theta(parameters, rope.theta);
    partial = parameters.number_or("partial_rotary_factor", partial, 0.0, 1.0);
    read_rope_scaling(parameters, max_positions, rope);
  } else if (reader.has("rope_scaling")) {
    ModelReader scaling = reader.object("rope_scaling");
    read_rope_scaling(scaling, max_positions, rope);
  }
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    const std::string problem =
        fmt::format("RoPE turns pairs, but {} dims of a head of {} would rotate", rope.rotary_dim, head_dim);
    reader.fail(partial == 1.0 ? "head_dim" : "partial_rotary_factor", problem,
                "the number of rotating dims must be even");
  }
  return rope;
}

nlohmann::ordered_json rope_scaling_json(const RopeSpec& rope) {
  nlohmann::ordered_json scaling;
  for (const NamedScaling& entry : kScalings)
    if (rope.scaling == entry.scaling) scaling["rope_type"] = entry.name;
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  scaling["factor"] = rope.factor;
  if (rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn)
    scaling["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.scaling == RopeScaling::kLlama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.scaling == RopeScaling::kYarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor > 0) scaling["attention_factor"] = rope.attention_factor;
    if (rope.mscale > 0) scaling["mscale"] = rope.mscale;
    if (rope.mscale_all_dim > 0) scaling["mscale_all_dim"] = rope.mscale_all_dim;
    scaling["truncate"] = rope.truncate;
  }
  return scaling;
}

void write_rope(const RopeSpec& rope, nlohmann::ordered_json& config) {
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = rope_scaling_json(rope);
}

}  // namespace fivefold
