#include "support/reference_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/integer.h"
#include "schedule/schedule_source.h"
#include "spec/validate.h"

namespace fivefold::testing {

std::filesystem::path oracle_folder() {
  if (const char* shared = std::getenv("FIVEFOLD_SHARED")) return std::filesystem::path(shared) / "oracles";
  return std::filesystem::path(FIVEFOLD_SOURCE_DIR) / ".." / "shared" / "oracles";
}

std::string Layout::name() const {
  std::string text = "dp" + std::to_string(dp) + "_zero" + std::to_string(zero);
  if (shard_size > 0) text += "_shard" + std::to_string(shard_size);
  text += "_micro" + std::to_string(micro) + "_acc" + std::to_string(accumulation);
  if (recompute_every > 0) text += "_recompute" + std::to_string(recompute_every);
  if (!drop.empty()) text += "_drop-" + drop;
  if (compute != "fp32") text += "_" + compute;
  if (tp > 1) text += "_tp" + std::to_string(tp);
  if (sp) text += "_sp";
  if (cp > 1) text += "_cp" + std::to_string(cp) + "_" + cp_kind;
  if (pp > 1) text += "_pp" + std::to_string(pp) + "_" + schedule + (vpp > 1 ? "_v" + std::to_string(vpp) : "");
  if (reduce != "microbatch") text += "_reduce-" + reduce;
  if (bucket_layers > 1) text += "_bucket" + std::to_string(bucket_layers);
  if (stages != "even") text += "_stages" + stages;
  return text;
}

ProbeRequest probe_request(const Reference& reference, const Layout& layout, const std::vector<std::string>& settings) {
  const int64_t rows_per_microbatch = int64_t{layout.micro} * layout.dp;
  const int64_t microbatches =
      std::max<int64_t>(layout.accumulation, div_ceil(reference.batch.rows, rows_per_microbatch));
  ConfigSources sources;
  const auto set = [&](const std::string& key, const std::string& value) { sources.set.push_back(key + "=" + value); };
  set("parallel.dp", std::to_string(layout.dp));
  set("parallel.zero", std::to_string(layout.zero));
  set("parallel.shard_size", std::to_string(layout.shard_size));
  set("parallel.tp", std::to_string(layout.tp));
  set("parallel.sp", layout.sp ? "true" : "false");
  set("parallel.cp", std::to_string(layout.cp));
  set("parallel.cp_kind", layout.cp_kind);
  set("parallel.pp", std::to_string(layout.pp));
  set("parallel.vpp", std::to_string(layout.vpp));
  set("parallel.schedule", layout.schedule);
  set("parallel.stages", layout.stages);
  set("parallel.reduce", layout.reduce);
  set("parallel.bucket_layers", std::to_string(layout.bucket_layers));
  set("parallel.threads", "1");
  set("batch.micro", std::to_string(layout.micro));
  set("batch.global", std::to_string(rows_per_microbatch * microbatches));
  set("batch.sequence", std::to_string(reference.batch.sequence));
  set("batch.packing", reference.packed ? "documents" : "concatenate");
  set("precision.compute", layout.compute);
  if (layout.grads != "auto") set("precision.grads", layout.grads);
  set("comm.timeout_s", "60");
  if (layout.recompute_every > 0) {
    set("recompute.kind", "full");
    set("recompute.every", std::to_string(layout.recompute_every));
  }
  if (!layout.drop.empty()) {
    set("recompute.kind", "selective");
    set("recompute.tensors", layout.drop);
  }
  sources.set.insert(sources.set.end(), settings.begin(), settings.end());
  LoadedConfig loaded = load_config(sources);
  FIVEFOLD_CHECK(loaded.errors.empty(), to_string(loaded.errors));
  const Status read = read_schedule_source(loaded.config);
  FIVEFOLD_CHECK(read.ok(), read.ok() ? "" : read.error().message());
  const auto problems = validate_engine(reference.model, loaded.config);
  FIVEFOLD_CHECK(problems.empty(), to_string(problems));

  ProbeRequest request;
  request.model = with_method(reference.model, loaded.config.method);
  request.config = resolve(loaded.config, request.model).value();
  request.weights = reference.folder;
  request.batch = reference.batch;
  pad_rows(request.batch, rows_per_microbatch * microbatches);
  return request;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  FIVEFOLD_CHECK(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

}  // namespace fivefold::testing
