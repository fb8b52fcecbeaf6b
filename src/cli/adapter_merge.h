// Merging of a low-rank adapter into the weights of its base: W' = W + scale B A, or with DoRA the rows of that scaled
// to the trained magnitudes. One tensor at a time: memory is that of the largest, in fp32, a few times over. Sums are
// made in fp32 and rounded once to the type in which the result is stored. Which base: docs/formats/peft.md. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/enums.h"
#include "spec/model.h"
#include "store/hub_folder.h"
#include "store/peft_folder.h"

namespace fivefold {

// An adapter wherever it comes from.
struct AdapterValues {
  PeftConfig config;
  std::vector<PeftModule> modules;
  // The values of one tensor, row by row. REQUIRES: a module of `modules`, and kMagnitude with DoRA alone.
  std::function<Result<std::vector<float>>(const PeftModule&, PeftTensor)> read;
};
// `folder` must outlive the result.
AdapterValues adapter_values(const PeftFolder& folder);

enum class MergeBase : uint8_t {
  kOriginal,   // the base's weights as they are
  kQuantised,  // the base's weights as QLoRA sees them: to NF4 and back
};

struct MergeOptions {
  MergeBase base = MergeBase::kOriginal;
  bool measure_quantisation = false;  // also with kOriginal; kQuantised always measures
  bool double_quantization = true;    // of NF4
  std::optional<DType> dtype;         // to store all floating-point tensors in; nothing: each in its own type
  int64_t max_shard_bytes = 5'000'000'000;
};

// Norms are over all elements of several tensors.
struct MergeReport {
  int64_t merged = 0, copied = 0;  // tensors
  int64_t parameters = 0;          // of all tensors
  double base_norm = 0;            // of the weights that the adapter was merged into
  double change_norm = 0;          // of what the merge added to them
  // Measured with NF4 alone, over all matrices that QLoRA has in 4 bits:
  double four_bit_norm = 0;         // of the base's weights W
  double quantisation_error = 0;    // of NF4(W) - W
  double requantisation_error = 0;  // of NF4(W') - W': what a 4-bit copy of the result would lose
};

// Writes a Hub folder's weights: those of `base` with the adapter in them, under the base's names. `model` is the
// base's. Throws StoreError. Errors: `where` (the adapter) has a module that is no matrix of this model, or one of
// other sides, or lacks one that it should have; fan_in_fan_out of a model that stores its matrices [out, in]; a tensor
// that the base does not have, or has in another shape or in no floating-point type.
Result<MergeReport> write_merged_weights(const HubFolder& base, const ModelSpec& model, const AdapterValues& adapter,
                                         const std::string& where, const std::filesystem::path& to,
                                         const MergeOptions& options);

}  // namespace fivefold
