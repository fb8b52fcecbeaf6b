#include "planner/layout_replay.h"

#include "planner/capacity.h"
#include "planner/cost.h"

namespace fivefold {

std::optional<double> LayoutReplay::seconds(const Layout& layout, Memory memory) {
  const auto [found, fresh] = outcomes_.try_emplace(layout);
  Outcome& outcome = found->second;
  const bool counts = memory == Memory::kCounts;
  if (!fresh) {
    if (!outcome.legal || (counts && outcome.fits == false)) return std::nullopt;
    if (outcome.seconds && (!counts || outcome.fits)) return outcome.seconds;
  }
  const std::optional<ResolvedConfig> config = legal(layout);
  outcome.legal = config.has_value();
  if (!outcome.legal) return std::nullopt;
  if (fresh) ++count_;
  std::vector<Program> programs;
  if (counts) {
    outcome.fits = fits(*config, programs);
    if (!*outcome.fits) return std::nullopt;
  } else {
    programs = pipeline_programs(memo_, *config, replayed_microbatches(*config));
  }
  if (!outcome.seconds) outcome.seconds = predict_cost(memo_, *config, programs).seconds;
  return outcome.seconds;
}

std::optional<ResolvedConfig> LayoutReplay::legal(const Layout& layout) const {
  std::optional<ResolvedConfig> config = space_.resolved(layout);
  if (config && !layout_refusals(memo_.model(), config->config).empty()) config.reset();
  return config;
}

std::optional<int64_t> LayoutReplay::peak(const Layout& layout) {
  const std::optional<ResolvedConfig> config = legal(layout);
  if (!config) return std::nullopt;
  ++count_;
  const std::vector<Program> programs = pipeline_programs(memo_, *config, replayed_microbatches(*config));
  const std::vector<int> ranks = RankGrid::create(config->degrees).value().group(GroupKind::kPp, 0);
  int64_t most = 0;
  for (size_t i = 0; i < ranks.size(); ++i) most = std::max(most, peaks_(*config, ranks[i], programs[i]));
  return most + outside_tensors(memo_.model(), memo_.inventory(), *config, memo_.hardware()).bytes();
}

// Rank by rank, so that what does not fit is over soon: the ends first, which hold most. Ids, targets and offsets of
// microbatches that are not replayed are there as well.
bool LayoutReplay::fits(const ResolvedConfig& config, std::vector<Program>& programs) {
  const int64_t most = planned_capacity(config, memo_.hardware()) -
                       outside_tensors(memo_.model(), memo_.inventory(), config, memo_.hardware()).bytes();
  const std::vector<int> ranks = RankGrid::create(config.degrees).value().group(GroupKind::kPp, 0);
  programs.resize(ranks.size());
  const auto place_fits = [&](size_t place) {
    programs[place] = pipeline_program(memo_, config, ranks[place], replayed_microbatches(config));
    return peaks_(config, ranks[place], programs[place]) <= most;
  };
  const size_t last = ranks.size() - 1;
  if (!place_fits(0) || (last > 0 && !place_fits(last))) return false;
  for (size_t place = 1; place < last; ++place)
    if (!place_fits(place)) return false;
  return true;
}

}  // namespace fivefold
