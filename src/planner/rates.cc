#include "planner/rates.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace fivefold {
namespace {

// Assumptions that stand in for measurements; each is printed as such.
constexpr double kReachedOfPeak = 0.75;      // best large product / data sheet
constexpr double kStreamOfBandwidth = 0.85;  // elementwise loop / data sheet
constexpr double kSaturation = 64;           // extent at which a product's dim reaches half of its full rate
constexpr double kAttentionOfGemm = 0.6;     // fused attention / large products
constexpr double kGpuOverlapShare = 0.1;     // multiprocessors that a collective takes

double log_ratio(double a, double b) { return std::log2(a / b); }

// Distance between how a point was measured and how the ranks run: another load weighs more than another thread count.
template <typename Point>
double placement_distance(const Point& point, const RankPlacement& placement) {
  return std::abs(log_ratio(static_cast<double>(point.threads), placement.threads)) +
         1.5 *
             std::abs(log_ratio(static_cast<double>(point.ranks * point.threads), placement.ranks * placement.threads));
}

// The points that `matches`, of the nearest placement that has any.
template <typename Point, typename Matches>
std::vector<Point> nearest_points(const std::vector<Point>& points, const RankPlacement& placement, Matches matches) {
  double best = std::numeric_limits<double>::infinity();
  for (const Point& point : points)
    if (matches(point)) best = std::min(best, placement_distance(point, placement));
  std::vector<Point> nearest;
  for (const Point& point : points)
    if (matches(point) && placement_distance(point, placement) == best) nearest.push_back(point);
  return nearest;
}

// Threads of a rank / threads of the point: rates of points of another thread count are scaled by it.
template <typename Point>
double thread_scale(const Point& point, const RankPlacement& placement) {
  return static_cast<double>(placement.threads) / static_cast<double>(point.threads);
}

// The types whose measurements stand for those of `compute`. `calibrate` measures fp32 and bf16 on a CPU. There fp16 is
// multiplied in fp32, in attention too, and moves as many bytes as bf16.
template <typename Point>
DType measured_type(const std::vector<Point>& points, DType compute, DType substitute) {
  const bool measured =
      std::any_of(points.begin(), points.end(), [compute](const Point& point) { return point.dtype == compute; });
  return measured || compute != DType::kFloat16 ? compute : substitute;
}

}  // namespace

Rates::Rates(const HardwareSpec& hardware, DType compute, const RankPlacement& placement)
    : hardware_(hardware), compute_(compute), placement_(placement) {
  const DType multiplied = measured_type(hardware.device.gemm.points, compute, DType::kFloat32);
  gemm_points_ = nearest_points(hardware.device.gemm.points, placement,
                                [multiplied](const GemmPoint& point) { return point.dtype == multiplied; });
}

// Share of the device's published rates that a rank has.
double Rates::device_share() const {
  if (hardware_.device.cores == 0) return 1.0;
  const double busy = static_cast<double>(placement_.threads) * placement_.ranks;
  const double cores = static_cast<double>(hardware_.device.cores);
  return placement_.threads / std::max(cores, busy);
}

double Rates::nominal_gemm_rate(const Gemm& gemm) const {
  const double reached = matrix_rate(hardware_.device.reached_flops_per_s, compute_);
  const double peak = matrix_rate(hardware_.device.peak_flops_per_s, compute_);
  // A device without units for the type computes in fp32.
  const double fallback = matrix_rate(hardware_.device.peak_flops_per_s, DType::kFloat32);
  const DeviceSpec& device = hardware_.device;
  if (device.gemm_share.known() && peak > 0) {
    // In training, not alone on a cool card.
    const auto depth = static_cast<double>(gemm.k);
    const auto filled = [](int64_t extent) {
      return static_cast<double>(extent) / (static_cast<double>(extent) + kSaturation);
    };
    return device.gemm_share.value * peak * depth / (depth + device.gemm_half_depth.value) * filled(gemm.m) *
           filled(gemm.n);
  }
  const double best = reached > 0 ? reached : kReachedOfPeak * (peak > 0 ? peak : fallback);
  const auto filled = [](int64_t extent) {
    return static_cast<double>(extent) / (static_cast<double>(extent) + kSaturation);
  };
  return best * device_share() * filled(gemm.m) * filled(gemm.n) * filled(gemm.k);
}

double Rates::stream_bandwidth() const {
  const Figure& share = hardware_.device.stream_share;
  const double bandwidth =
      (share.known() ? share.value : kStreamOfBandwidth) * hardware_.device.memory_bytes_per_s.value;
  return hardware_.device.cores == 0 ? bandwidth : bandwidth / placement_.ranks;
}

double Rates::gemm_seconds(const Gemm& gemm) const {
  if (gemm_points_.empty()) {
    const double by_flops = gemm.flops() / nominal_gemm_rate(gemm);
    const double by_bytes = gemm.bytes(dtype_bytes(compute_)) / stream_bandwidth();
    return std::max(by_flops, by_bytes) + hardware_.device.launch_latency_s.value;
  }
  // Rate by inverse distance in the logarithms of the extents: exact at the points, smooth between, flat outside.
  double weights = 0, sum = 0;
  for (const GemmPoint& point : gemm_points_) {
    const double dm = log_ratio(static_cast<double>(gemm.m), static_cast<double>(point.m));
    const double dn = log_ratio(static_cast<double>(gemm.n), static_cast<double>(point.n));
    const double dk = log_ratio(static_cast<double>(gemm.k), static_cast<double>(point.k));
    const double distance = dm * dm + dn * dn + dk * dk;
    const double weight = 1.0 / (distance * distance + 1e-6);
    weights += weight;
    sum += weight * point.flops_per_s * thread_scale(point, placement_);
  }
  return gemm.flops() / (sum / weights) + hardware_.device.launch_latency_s.value;
}

double Rates::operation_seconds(OperationKind kind, Pass pass, const OperationWork& work) const {
  double seconds = 0;
  for (const Gemm& gemm : work.gemms) seconds += gemm_seconds(gemm);
  if (work.flops == 0 && work.bytes == 0) return seconds;
  const Figure& factor = hardware_.device.elementwise_factor;
  const double bytes = work.bytes * (factor.known() && kind != OperationKind::kAttention ? factor.value : 1.0);
  const DType type = measured_type(hardware_.device.operations.points, compute_,
                                   kind == OperationKind::kAttention ? DType::kFloat32 : DType::kBFloat16);
  const std::vector<OperationPoint> points =
      nearest_points(hardware_.device.operations.points, placement_, [&](const OperationPoint& point) {
        return point.operation == kind && point.pass == pass && point.dtype == type;
      });
  if (!points.empty()) {
    const double scale = thread_scale(points[0], placement_);
    const double by_bytes = work.bytes / (points[0].bytes_per_s * scale);
    const double by_flops = points[0].flops_per_s > 0 ? work.flops / (points[0].flops_per_s * scale) : 0.0;
    return seconds + points[0].overhead_s + by_bytes + by_flops;
  }
  const Gemm large{.m = 4096, .n = 4096, .k = 4096};
  const double share = kind == OperationKind::kAttention ? kAttentionOfGemm : 1.0;
  const Figure& attention = hardware_.device.attention_share;
  if (kind == OperationKind::kAttention && attention.known())
    return seconds + hardware_.device.launch_latency_s.value +
           std::max(work.bytes / stream_bandwidth(),
                    work.flops / (attention.value * matrix_rate(hardware_.device.peak_flops_per_s, compute_)));
  const double rate = gemm_points_.empty() ? nominal_gemm_rate(large) : large.flops() / gemm_seconds(large);
  return seconds + hardware_.device.launch_latency_s.value +
         std::max(bytes / stream_bandwidth(), work.flops / (share * rate));
}

double Rates::stream_seconds(StreamKind stream, double bytes) const {
  const DType type = measured_type(hardware_.device.streams.points, compute_, DType::kBFloat16);
  const std::vector<StreamPoint> points =
      nearest_points(hardware_.device.streams.points, placement_,
                     [&](const StreamPoint& point) { return point.stream == stream && point.dtype == type; });
  if (!points.empty()) return bytes / (points[0].bytes_per_s * thread_scale(points[0], placement_));
  if (stream == StreamKind::kOptimizer && hardware_.device.optimizer_bytes_per_s.known())
    return bytes / (hardware_.device.optimizer_bytes_per_s.value * device_share());
  return bytes / stream_bandwidth() + hardware_.device.launch_latency_s.value;
}

double Rates::overlap_share() const {
  const Figure& measured = hardware_.device.overlap_share;
  if (hardware_.device.cores == 0) return measured.known() ? measured.value : kGpuOverlapShare;
  // A collective's thread takes a core from computing when every core is busy.
  if (static_cast<double>(placement_.threads) * placement_.ranks < static_cast<double>(hardware_.device.cores))
    return 0;
  return measured.known() ? measured.value : 1.0;
}

}  // namespace fivefold
