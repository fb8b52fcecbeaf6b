// Weights, optimizer states, quantisation constants and what libraries keep, by method and by what shares them.
#include "planner/profiles/hf_states.h"

#include <fmt/format.h>

#include <cmath>

namespace fivefold {
namespace {

constexpr double kMiB = 1 << 20;

// One Adam moment of a parameter whose type has `width` bytes. bitsandbytes: a byte, and an fp32 scale for 256.
double moment_width(const FrameworkRun& run, double width) {
  return run.optimizer_state_bits == 8 ? 1 + 4.0 / 256 : width;
}

}  // namespace

void add_line(std::vector<ProfileLine>& to, std::string name, double bytes, std::string formula) {
  if (bytes > 0) to.push_back({std::move(name), std::llround(bytes), std::move(formula)});
}

double HfStates::trained_width() const {
  return static_cast<double>(dtype_bytes(full() ? run_.weight_dtype.value : run_.hf.adapter_dtype.value));
}

double HfStates::trained_shards() const {
  if (full()) return static_cast<double>(run_.zero >= 1 ? hf_shards(run_) : 1);
  return adapter_is_whole() ? 1 : shards();
}

void HfStates::add_full(std::vector<ProfileLine>& lines) const {
  const double width = run_.hf.deepspeed ? 2 : trained_width(), n = trained();
  add_line(lines, "weights", width * n / shards(), fmt::format("{} B x {} / {}", width, n, shards()));
  if (run_.optimizer_on_host) return;
  // DeepSpeed keeps fp32 masters.
  const double moment = moment_width(run_, run_.hf.deepspeed ? 4 : width);
  const double adam = (run_.hf.deepspeed ? 4 : 0) + 2 * moment;
  add_line(lines, "adam", adam * n / trained_shards(), fmt::format("{} B x {} / {}", adam, n, trained_shards()));
}

void HfStates::add_adapter(std::vector<ProfileLine>& lines) const {
  const FrozenBytes frozen = frozen_bytes(run_);
  const auto linear = static_cast<double>(n_.linear), plain = static_cast<double>(n_.embeddings + n_.vectors);
  add_line(lines, "weights", (frozen.cut * linear + 2 * plain) / shards(),
           fmt::format("({} B x {} + 2 B x {}) / {}", frozen.cut, linear, plain, shards()));
  if (run_.hf.wraps_on_device && fsdp())
    add_line(lines, "uncut weights", frozen.cut * linear + 2 * plain, "the model as it was before FSDP took it over");
  add_quantisation(lines);
  // Whole adapters beside FSDP's units cost 2 x 4 B where 3 would be expected; measured (fms 0205, 0237).
  const double copies = sharded() && adapter_is_whole() ? 2 : 3;
  add_line(lines, "adapter", copies * trained_width() * trained() / trained_shards(),
           fmt::format("{} x {} B x {} / {}: weights, m, v", copies, trained_width(), trained(), trained_shards()));
  if (run_.hf.upcasts_frozen)
    add_line(lines, "upcast", 2 * plain / shards(), fmt::format("2 B more x {} / {}", plain, shards()));
  if (run_.hf.trains_embeddings)
    add_line(lines, "copies of embeddings", 6 * static_cast<double>(n_.embeddings),
             fmt::format("6 B x {}: weights, m, v", n_.embeddings));
}

void HfStates::add_quantisation(std::vector<ProfileLine>& lines) const {
  const double whole = frozen_bytes(run_).whole;
  add_line(lines, "quantisation", whole * static_cast<double>(n_.linear),
           fmt::format("{} B x {}, on every rank", whole, n_.linear));
}

std::vector<ProfileLine> HfStates::lines() const {
  std::vector<ProfileLine> lines;
  if (full() && !on_host()) add_full(lines);
  if (!full() && !on_host()) add_adapter(lines);
  if (!full() && on_host()) add_quantisation(lines);
  if (run_.dp > 1 && run_.zero == 0)
    add_line(lines, "buckets", trained_width() * trained(), "DDP's copy of the gradients");
  const bool hopper = run_.gpu.starts_with("h") || run_.gpu.find("b200") != std::string::npos;
  add_line(lines, "workspace", 2 * (hopper ? 32 : 8.125) * kMiB, "cuBLAS, of the forward and the backward thread");
  add_line(lines, "batch", 24 * static_cast<double>(run_.micro * run_.sequence), "ids, mask, labels: 3 x 8 B a token");
  return lines;
}

}  // namespace fivefold
