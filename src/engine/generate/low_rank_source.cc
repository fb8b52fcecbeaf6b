#include "engine/generate/low_rank_source.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/integer.h"
#include "engine/tensors.h"

namespace fivefold {
namespace {

using UpdatesByWeight = std::map<std::string, const LowRankUpdate*>;

class LowRankSource final : public ParameterSource {
 public:
  LowRankSource(std::unique_ptr<ParameterSource> base, UpdatesByWeight updates)
      : base_(std::move(base)), updates_(std::move(updates)) {}

  Status read(const ParameterEntry& entry, std::span<float> packed) override {
    FIVEFOLD_TRY(base_->read(entry, packed));
    for (const HubPart& part : entry.parts) {
      const auto found = updates_.find(part.name);
      if (found == updates_.end()) continue;
      const LowRankUpdate& update = *found->second;
      const auto options = at::TensorOptions().dtype(at::kFloat);
      // Read only; from_blob takes no pointer to const.
      const at::Tensor a =
          at::from_blob(const_cast<float*>(update.a.data()), {update.rank, entry.whole_cols()}, options);
      const at::Tensor b = at::from_blob(const_cast<float*>(update.b.data()), {part.rows, update.rank}, options);
      at::Tensor weight =
          at::from_blob(packed.data() + part.row_begin * entry.whole_cols(), {part.rows, entry.whole_cols()}, options);
      at::addmm_out(weight, weight, b, a, 1.0, update.scale);
      if (!update.magnitude.empty()) scale_rows(weight, update.magnitude);
    }
    return Ok{};
  }

 private:
  // A row of zeros stays one.
  static void scale_rows(at::Tensor& weight, const std::vector<float>& magnitude) {
    const at::Tensor lengths = at::linalg_vector_norm(weight, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    const at::Tensor to =
        at::from_blob(const_cast<float*>(magnitude.data()), {static_cast<int64_t>(magnitude.size()), 1}, at::kFloat);
    weight.mul_(at::where(lengths.gt(0), to / lengths, at::zeros_like(lengths)));
  }

  std::unique_ptr<ParameterSource> base_;
  UpdatesByWeight updates_;
};

}  // namespace

Result<std::unique_ptr<ParameterSource>> add_updates(std::unique_ptr<ParameterSource> base,
                                                     const std::vector<LowRankUpdate>& updates,
                                                     const Inventory& inventory) {
  UpdatesByWeight by_weight;
  for (const LowRankUpdate& update : updates) by_weight[update.weight] = &update;
  UpdatesByWeight unknown = by_weight;
  for (const Unit& unit : inventory.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      for (const HubPart& part : entry.parts) {
        const auto found = unknown.find(part.name);
        if (found == unknown.end()) continue;
        const LowRankUpdate& update = *found->second;
        const int64_t in = div_floor(static_cast<int64_t>(update.a.size()), update.rank);
        const int64_t out = div_floor(static_cast<int64_t>(update.b.size()), update.rank);
        if (entry.whole_shape.size() != 2 || in != entry.whole_cols() || out != part.rows)
          return Error{part.name,
                       fmt::format("is [{}, {}], the adapter's is [{}, {}]", part.rows, entry.whole_cols(), out, in),
                       "use the base that the adapter was trained on"};
        unknown.erase(found);
      }
    }
  }
  if (!unknown.empty())
    return Error{unknown.begin()->first, "has an adapter, but the model has no such tensor",
                 "use the base that the adapter was trained on"};
  return std::unique_ptr<ParameterSource>(std::make_unique<LowRankSource>(std::move(base), std::move(by_weight)));
}

}  // namespace fivefold
