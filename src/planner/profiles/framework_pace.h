// What a framework's step takes beside what the device's and the network's rates say: how many bytes its kernels move
// between products, how fast its host launches them, how much of its traffic it hides. Constants and their sources:
// docs/profiles.md#time. Plain data, pure functions, thread-safe.
#pragma once

#include "planner/profiles/framework_run.h"

namespace fivefold {

// Seconds of a layer are those of a forward pass; a backward has `backward_host` times as many.
struct FrameworkPace {
  double elementwise_factor = 1;  // bytes between products, over those of fused kernels
  double unfused_factor = 1;      // of that, where norms, rotations and loss are eager kernels one by one
  double products_factor = 1, attention_factor = 1;  // of the device's shares, up to kMostShare
  double fp8_share = 0.75;   // of the rate that fp8 products have over bf16 ones on the data sheet
  double rowwise_share = 1;  // of that, with a scale for each row
  double fp4_share = 0.8;    // of twice that, with NVFP4's products
  double layer_host_s = 0, tensor_host_s = 0, pipeline_host_s = 0;  // least of a layer; more with tp > 1, with pp > 1
  double adapter_host_s = 0, quantised_host_s = 0;  // more with an adapter, with frozen weights in 4 bits
  // Least of a layer where stages are on different nodes and tp > 1; more for each rank of tp.
  double crossing_host_s = 0, crossing_tensor_host_s = 0;
  double backward_host = 2;
  double network_share = 0.5;         // of the rate between nodes that a collective reaches alone
  double exchange_factor = 1;         // of the data-parallel exchange's time, over that of its collectives alone
  double loss_passes = 1;             // over the logits in their 2-byte type, forward; backward twice as many
  double hidden_gradients = 0;        // share of the data-parallel exchange that computation hides
  double hidden_beside_backward = 0;  // without ZeRO or pipeline, of a backward's time what hides the exchange
  double hidden_gathers = 1;          // ZeRO-3: of a layer's gathers and reductions what goes beside computation
  double async_tensor = 0;            // of tensor parallelism's collectives, where async TP hides them
  double dequantised_bytes = 2.53;  // read and written for each weight in 4 bits, its scales included, before a product
  double hidden_tensor = 0, hidden_experts = 0;  // of tensor parallelism's collectives, of the experts' exchanges
  // Collectives of a layer's gradients and weights that each wait for their own latency, under ZeRO and without it.
  double sharded_messages = 0, reduced_messages = 0;
};
inline constexpr double kMostShare = 0.85;  // of the data sheet's rate

FrameworkPace framework_pace(const FrameworkRun& run);

}  // namespace fivefold
