// HardwareSpec: what a device, a node of devices and the network between nodes can do, every number with its source.
// Read from TOML: configs/gpus (one device and its node), configs/clusters (a GPU by name and a network), or a file
// that `calibrate` measured on this machine: all of one format, described in docs/formats/. Plain data; what follows
// from it (the time of an operation) is the planner's. Units: bytes, seconds, floating-point operations (a multiply-add
// is two).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/enums.h"
#include "spec/operations.h"

namespace fivefold {

// How a number was obtained.
enum class Provenance : uint8_t {
  kDerived,    // computed from other numbers; the source says how
  kMeasured,   // on a machine; the source says which and how
  kPublished,  // by the maker or in a paper
  kAssumed,    // a usual value, to be replaced by one of the others
};
std::string_view to_string(Provenance);

// A number with its source. Zero: not stated.
struct Figure {
  double value = 0.0;
  Provenance kind = Provenance::kAssumed;
  std::string source;

  bool known() const { return value > 0.0; }
  bool operator==(const Figure&) const = default;
};

// Points of a curve that share one source.
template <typename Point>
struct Curve {
  Provenance kind = Provenance::kMeasured;
  std::string source;
  std::vector<Point> points;

  bool operator==(const Curve&) const = default;
};

// Dense (not sparse) rates of matrix products with fp32 accumulation. Unknown: the device has no such unit.
struct MatrixRates {
  Figure fp32, tf32, fp16, bf16, fp8;

  bool operator==(const MatrixRates&) const = default;
};

// [m, k] x [k, n] on `threads` threads (CPU; 1 on a GPU). `ranks`, here and below: ranks of the machine that did the
// same at the same time, sharing its cores and its memory.
struct GemmPoint {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kBFloat16;
  int64_t threads = 1;
  double flops_per_s = 0.0;
  int64_t ranks = 1;

  bool operator==(const GemmPoint&) const = default;
};

// A collective over `ranks` ranks on a full tensor of `bytes` (the payload before dividing), until the last rank has
// it.
struct CollectivePoint {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t ranks = 0;
  int64_t bytes = 0;
  double seconds = 0.0;

  bool operator==(const CollectivePoint&) const = default;
};

// An operation that is not a matrix product: the sum of a fixed part, what its bytes (read and written) take and what
// its floating-point operations take (attention; 0: no time of their own). What is counted: planner/work.h.
enum class Pass : uint8_t { kForward, kBackward };
struct OperationPoint {
  OperationKind operation = OperationKind::kNorm;
  Pass pass = Pass::kForward;
  DType dtype = DType::kBFloat16;
  int64_t threads = 1;
  double overhead_s = 0.0;
  double bytes_per_s = 0.0;
  double flops_per_s = 0.0;
  int64_t ranks = 1;

  bool operator==(const OperationPoint&) const = default;
};

// Loops over a unit's flat buffers; `dtype` is that of the working weights.
enum class StreamKind : uint8_t {
  kOptimizer,     // AdamW: gradient, master, moments, weights
  kAccumulate,    // a microbatch's gradient added to the step's
  kSumOfSquares,  // of gradients, for the clipping norm
};
struct StreamPoint {
  StreamKind stream = StreamKind::kOptimizer;
  DType dtype = DType::kBFloat16;
  int64_t threads = 1;
  double bytes_per_s = 0.0;  // of one rank
  int64_t ranks = 1;

  bool operator==(const StreamPoint&) const = default;
};

struct DeviceSpec {
  std::string name;                 // "NVIDIA H100 SXM 80 GB"
  int64_t cores = 0;                // of a CPU; 0 on a GPU
  Figure memory_bytes;              // what a process can allocate at most
  Figure memory_bytes_per_s;        // stream bandwidth
  MatrixRates peak_flops_per_s;     // what the data sheet says
  MatrixRates reached_flops_per_s;  // the best that large products reached
  Figure launch_latency_s;          // per operation
  Figure step_overhead_s;           // per training step, outside operations
  Figure optimizer_bytes_per_s;     // of AdamW over parameters, gradients and states
  Figure overlap_share;             // of a collective's time by which computing meanwhile gets longer
  // GPU: where no products are measured, shares of the data sheet's rates that training kernels reach.
  Figure gemm_share;       // of the matrix rate: large products
  Figure gemm_half_depth;  // depth k of a product at which it reaches half of that
  Figure attention_share;  // of the matrix rate: fused attention, forward and backward, of its causal operations
  Figure stream_share;     // of the bandwidth: elementwise kernels
  Figure link_share;       // of the node\'s links: collectives of eager frameworks in training
  // Of another framework's run, set by its profile, never by a file: bytes that kernels move between products over
  // those of fused ones.
  Figure elementwise_factor;
  // Resident memory that the libraries of a training process take once they have computed in fp32, or in fp32 and bf16,
  // beside what the ranks count: compiled kernels, pages of code, buffers of threads. CPU; of a process.
  Figure library_bytes_fp32, library_bytes_bf16;
  Figure power_w;
  Figure price_per_hour;  // US dollars
  Curve<GemmPoint> gemm;
  Curve<OperationPoint> operations;
  Curve<StreamPoint> streams;

  bool operator==(const DeviceSpec&) const = default;
};

// One level of the network, as one device sees it.
struct LinkSpec {
  std::string name;    // "NVLink 4"
  Figure bytes_per_s;  // per device and direction
  Figure latency_s;    // per message
  Figure ring_step_s;  // a step of a ring of small messages; unknown: gathers take trees, as all-reduces do
  Curve<CollectivePoint> collectives;
  Figure reached_share;  // of bytes_per_s by a large collective; unknown: kLinkOfBandwidth of spec/network.h

  bool operator==(const LinkSpec&) const = default;
};

// What joins devices, in two levels. What a collective takes on it: spec/network.h.
struct NetworkSpec {
  std::string name;  // of the hardware file
  int64_t devices_per_node = 1;
  int64_t ports = 1;  // of a node towards the network; its devices share them evenly, neighbours one port
  LinkSpec node_link;
  LinkSpec network;  // unknown: one node only

  bool operator==(const NetworkSpec&) const = default;
};

struct HardwareSpec {
  std::string name;  // the file's name, or "this-machine"
  std::string gpu;   // the configs/gpus entry that the device was taken from; empty: stated here
  DeviceSpec device;
  int64_t devices_per_node = 1;
  Figure host_memory_bytes;   // of a node
  LinkSpec node_link;         // between devices of a node
  LinkSpec network;           // between nodes; unknown: one node only
  int64_t network_ports = 0;  // of a node; 0: one per device. Divides devices_per_node
  // Links that the run's ranks imitate beside the ones they have ([comm] simulate). Set by a run, never by a file.
  std::optional<NetworkSpec> simulated;

  bool operator==(const HardwareSpec&) const = default;
};

// library_bytes_fp32 or, for another type, library_bytes_bf16; 0: not measured.
int64_t library_bytes(const DeviceSpec& device, DType compute);

// The word of hardware files, for instance "gated_activation".
std::string_view to_string(OperationKind);

// Rate of a matrix product in `dtype`: fp8 for both formats, 0 where the device has none. fp64 and integers: 0.
double matrix_rate(const MatrixRates& rates, DType dtype);

// Errors ("PATH: device.memory_bytes"): no file, not TOML, missing, wrong type, not positive, unknown key with the
// nearest, unknown gpu with the nearest.
Result<HardwareSpec> read_hardware(const std::filesystem::path& toml_file);
Result<HardwareSpec> parse_hardware(const std::string& toml_text, const std::string& where);
// TOML that read_hardware reads to an equal spec; the device is written out in full, without `gpu`.
std::string write_hardware(const HardwareSpec& hardware);

// A name in configs/clusters or configs/gpus. Errors: unknown name, with the nearest.
Result<std::filesystem::path> find_named_hardware(const std::string& name);
std::vector<std::string> list_named_gpus();
std::vector<std::string> list_named_clusters();

}  // namespace fivefold
