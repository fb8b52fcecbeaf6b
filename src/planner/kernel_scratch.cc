#include "planner/kernel_scratch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/text.h"

namespace fivefold {
namespace {

// Sizes of the kernels' blocks. tests/distributed/kernel_scratch_test.cc holds each against its kernel.
constexpr int64_t kStrip = 256;                       // keys of attention
constexpr int64_t kKeptGradients = int64_t{1} << 18;  // elements of key gradients that a thread keeps at most
constexpr int64_t kRows = 64, kQkRows = 16;           // whose partial sums are one row of scratch
constexpr int64_t kMagnitudeRows = 4;                 // lengths of DoRA's rows, their inverses, ones
constexpr int64_t kSquares = 4096;                    // elements of a partial sum of squares
constexpr int64_t kProductBlock = 512;                // rows, columns and depth of a product of fp16
constexpr int64_t kPortion = int64_t{1} << 20;        // fp8 codes that are there at a time
constexpr int64_t kFp8Block = 128;

class Sizes {
 public:
  Sizes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int threads)
      : model_(model),
        inventory_(inventory),
        config_(config),
        threads_(threads),
        tokens_(config.config.batch.micro * div_exact(config.padded_sequence, config.degrees.cp)) {}

  KernelScratch largest() const {
    KernelScratch most;
    const auto add = [&](ScratchKernel kernel, int64_t bytes) {
      if (bytes > most.bytes) most = {kernel, bytes};
    };
    add(ScratchKernel::kTokenGradient, token_gradient());
    add(ScratchKernel::kGradientNorm, div_ceil(largest_unit(), kSquares) * 8);
    add(ScratchKernel::kNormBackward, norm_backward(model_.final_norm));
    add(ScratchKernel::kProduct, product());
    // Its blocks are operands and result of a product in fp32.
    if (config_.compute == DType::kFloat16)
      add(ScratchKernel::kFp16Product, 3 * kProductBlock * kProductBlock * 4 + product());
    const bool fp8 = config_.config.precision.compute == ComputeKind::kFp8;
    if (fp8) add(ScratchKernel::kFp8Rounding, fp8_rounding(model_.hidden));
    const bool dora = config_.config.method.kind != MethodKind::kFull && config_.config.method.dora;
    const LayerSpec* last = nullptr;
    for (const LayerSpec& layer : model_.layers) {
      if (last != nullptr && layer == *last) continue;
      last = &layer;
      add(ScratchKernel::kNormBackward, norm_backward(layer.norm));
      for (const int64_t width : widths(layer)) {
        if (has_bias(layer)) add(ScratchKernel::kBiasGradient, div_ceil(tokens_, kRows) * width * 4);
        if (dora) add(ScratchKernel::kMagnitudeGradient, (div_ceil(tokens_, kRows) + kMagnitudeRows) * width * 4);
        if (fp8) add(ScratchKernel::kFp8Rounding, fp8_rounding(width));
      }
      if (layer.mixer.kind != MixerKind::kAttention) continue;
      if (layer.mixer.qk_norm)
        add(ScratchKernel::kQkNormBackward, div_ceil(tokens_, kQkRows) * 2 * layer.mixer.head_dim * 4);
      add(ScratchKernel::kAttention, threads_ * attention_of_thread(layer.mixer.head_dim));
    }
    return most;
  }

  std::string formula(const KernelScratch& scratch) const {
    switch (scratch.kernel) {
      case ScratchKernel::kAttention:
        return fmt::format("{} threads x (8448 w + 231424 + 8 n w), w {}, n {}", threads_, tile_width(widest_head()),
                           kept_keys(widest_head()));
      case ScratchKernel::kNormBackward:
        return fmt::format("ceil({} tokens / 64) x h {} x 4 B{}", tokens_, model_.hidden,
                           model_.final_norm.kind == NormKind::kLayer ? " x 2" : "");
      case ScratchKernel::kQkNormBackward:
        return fmt::format("ceil({} tokens / 16) x 2 d x 4 B", tokens_);
      case ScratchKernel::kBiasGradient:
        return fmt::format("ceil({} tokens / 64) x the widest linear x 4 B", tokens_);
      case ScratchKernel::kMagnitudeGradient:
        return fmt::format("(ceil({} tokens / 64) + {}) x the widest linear x 4 B", tokens_, kMagnitudeRows);
      case ScratchKernel::kTokenGradient:
        return fmt::format("({} rows + 1 + {} tokens) x 4 B", table_rows(), tokens_);
      case ScratchKernel::kGradientNorm:
        return fmt::format("ceil({} elements / 4096) x 8 B", format_count(largest_unit()));
      case ScratchKernel::kFp16Product:
        return fmt::format("3 blocks of 512 x 512 x 4 B, and {} threads x 2 MiB", threads_);
      case ScratchKernel::kProduct:
        return fmt::format("{} threads x 2 MiB", threads_);
      case ScratchKernel::kFp8Rounding:
        return "codes of 2^20 elements, or of 128 rows of the widest tensor, and their scales";
    }
    FIVEFOLD_CHECK(false);
  }

 private:
  static int64_t tile_width(int64_t head_dim) { return round_up(head_dim, 16); }
  // Whose gradients a thread keeps. Documents may have any length up to a sequence.
  int64_t kept_keys(int64_t head_dim) const {
    const int64_t strips = std::max<int64_t>(1, div_floor(kKeptGradients, tile_width(head_dim) * kStrip));
    return std::min(round_up(config_.padded_sequence, kStrip), strips * kStrip);
  }
  int64_t attention_of_thread(int64_t head_dim) const {
    const int64_t width = tile_width(head_dim);
    return 8448 * width + 231'424 + 8 * kept_keys(head_dim) * width;
  }
  // Of the layer whose attention takes most.
  int64_t widest_head() const {
    int64_t widest = 0;
    for (const LayerSpec& layer : model_.layers)
      if (layer.mixer.kind == MixerKind::kAttention &&
          (widest == 0 || attention_of_thread(layer.mixer.head_dim) > attention_of_thread(widest)))
        widest = layer.mixer.head_dim;
    return widest;
  }

  int64_t norm_backward(const NormSpec& norm) const {
    return div_ceil(tokens_, kRows) * model_.hidden * 4 * (norm.kind == NormKind::kLayer ? 2 : 1);
  }

  int64_t table_rows() const {
    return std::max(div_exact(config_.padded_vocab, config_.degrees.tp),
                    model_.learned_positions ? model_.max_positions : 0);
  }
  int64_t token_gradient() const { return (table_rows() + 1 + tokens_) * 4; }

  int64_t product() const { return threads_ * kProductScratchPerThread; }

  int64_t largest_unit() const {
    int64_t most = 0;
    for (const Unit& unit : inventory_.units) most = std::max(most, unit.padded_numel(1));
    return most;
  }

  static bool has_bias(const LayerSpec& layer) {
    return layer.mixer.qkv_bias || layer.mixer.out_bias || layer.mlp.bias;
  }
  // Of what the linears of a layer read and write; not divided over a tensor group.
  std::vector<int64_t> widths(const LayerSpec& layer) const {
    const MixerSpec& mixer = layer.mixer;
    return {model_.hidden, (mixer.num_heads + 2 * mixer.num_kv_heads) * mixer.head_dim, 2 * layer.mlp.ffn};
  }

  // Codes of whole bands of 128 rows, and a scale for each 128 elements of a row.
  static int64_t fp8_rounding(int64_t width) {
    const int64_t rows = std::max(kFp8Block, div_floor(kPortion, width * kFp8Block) * kFp8Block);
    return std::max(kPortion, rows * width) + rows * div_ceil(width, kFp8Block) * 4;
  }

  const ModelSpec& model_;
  const Inventory& inventory_;
  const ResolvedConfig& config_;
  int threads_;
  int64_t tokens_;  // of a microbatch on this rank
};

constexpr std::string_view kNames[kNumScratchKernels] = {"attention, backward",     "norms, backward",
                                                         "qk-norm, backward",       "gradients of biases",
                                                         "gradients of magnitudes", "gradient of the token table",
                                                         "gradient norm",           "matrix products",
                                                         "products in fp16",        "rounding to fp8"};

}  // namespace

KernelScratch largest_scratch(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                              int threads) {
  return Sizes(model, inventory, config, threads).largest();
}

MemoryLine scratch_line(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int threads) {
  const Sizes sizes(model, inventory, config, threads);
  const KernelScratch largest = sizes.largest();
  return {.name = fmt::format("scratch, at most: {}", kNames[static_cast<size_t>(largest.kernel)]),
          .account = Account::kWorkspace,
          .bytes = largest.bytes,
          .formula = sizes.formula(largest)};
}

}  // namespace fivefold
