// Rates: seconds that one operation or matrix product takes on a device, from a HardwareSpec. Where the file has
// measured points they are interpolated; where it has none, published rates and stated assumptions serve
// (docs/communication.md#time lists them). Immutable, thread-safe.
#pragma once

#include <map>
#include <vector>

#include "planner/work.h"
#include "spec/hardware.h"
#include "spec/rank_grid.h"

namespace fivefold {

// How a rank uses the machine: on a CPU ranks are threads that share cores and memory; a GPU belongs to one rank.
struct RankPlacement {
  int threads = 1;  // of a rank; 1 on a GPU
  int ranks = 1;    // that compute at the same time on one machine; 1 on a GPU
};

class Rates {
 public:
  // REQUIRES: `hardware` outlives this.
  Rates(const HardwareSpec& hardware, DType compute, const RankPlacement& placement);

  double gemm_seconds(const Gemm& gemm) const;
  double operation_seconds(OperationKind kind, Pass pass, const OperationWork& work) const;
  // A loop over `bytes` of flat buffers.
  double stream_seconds(StreamKind stream, double bytes) const;
  // Of one kernel.
  double launch_seconds() const { return hardware_.device.launch_latency_s.value; }
  double step_overhead_seconds() const { return hardware_.device.step_overhead_s.value; }
  // Share of a collective's time by which computing meanwhile gets longer.
  double overlap_share() const;

 private:
  double device_share() const;
  double nominal_gemm_rate(const Gemm& gemm) const;
  double stream_bandwidth() const;

  const HardwareSpec& hardware_;
  DType compute_;
  RankPlacement placement_;
  std::vector<GemmPoint> gemm_points_;  // of the dtype and the nearest placement
};

}  // namespace fivefold
