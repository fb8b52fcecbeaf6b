#include "planner/scope.h"

#include <fmt/format.h>

namespace fivefold {

std::vector<Error> planner_scope(const RunConfig& config) {
  std::vector<Error> errors;
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view hint) {
    errors.push_back({std::string(key), fmt::format("{} is not planned: fivefold's engine does not have it", value),
                      fmt::format("use {}", hint)});
  };
  const ParallelConfig& parallel = config.parallel;
  const std::pair<std::string_view, int> degrees[] = {{"tp", parallel.tp}, {"pp", parallel.pp}, {"vpp", parallel.vpp},
                                                      {"cp", parallel.cp}, {"ep", parallel.ep}, {"etp", parallel.etp}};
  for (const auto& [name, degree] : degrees)
    if (degree > 1)
      refuse(fmt::format("parallel.{}", name), fmt::format("{} = {}", name, degree),
             fmt::format("{} = 1: data parallelism with zero = 0 to 3 is planned", name));
  if (parallel.sp) refuse("parallel.sp", "sequence parallelism", "sp = false");
  if (config.method.kind != MethodKind::kFull) refuse("method.kind", to_string(config.method.kind), "kind = full");
  const PrecisionConfig& precision = config.precision;
  if (precision.compute != ComputeKind::kFp32 && precision.compute != ComputeKind::kBf16)
    refuse("precision.compute", to_string(precision.compute), "compute = bf16 or fp32");
  else if (precision.compute == ComputeKind::kBf16 && precision.params == DType::kFloat32)
    refuse("precision.params", "fp32 under bf16 compute", "params = auto");
  if (precision.optimizer_state != OptimizerStateKind::kFp32)
    refuse("precision.optimizer_state", to_string(precision.optimizer_state), "optimizer_state = fp32");
  if (config.recompute.kind == RecomputeKind::kSelective) refuse("recompute.kind", "selective", "kind = full or none");
  return errors;
}

}  // namespace fivefold
