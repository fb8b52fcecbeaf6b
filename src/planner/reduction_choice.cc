#include "planner/reduction_choice.h"

#include <fmt/format.h>

#include "base/text.h"

namespace fivefold {
namespace {

ReductionPrice price(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& given, ReduceWhen when,
                     const HardwareSpec& hardware) {
  RunConfig config = given.config;
  config.parallel.reduce = when;
  // What resolve() chose for the other way.
  config.precision.grads = config.precision.reduce = std::nullopt;
  const ResolvedConfig resolved = resolve(config, model).value();
  ReductionPrice price;
  price.peak = fullest_rank(model, inventory, resolved, hardware).ledger.peak_total;
  price.fits = price.peak <= planned_capacity(resolved, hardware);
  price.seconds = predict_cost(model, inventory, resolved, hardware).seconds;
  return price;
}

}  // namespace

std::optional<ReductionChoice> reduction_choice(const ModelSpec& model, const Inventory& inventory,
                                                const ResolvedConfig& config, const HardwareSpec& hardware) {
  if (config.config.parallel.zero != 3 || config.num_microbatches == 1) return std::nullopt;
  ReductionChoice choice;
  choice.each_microbatch = price(model, inventory, config, ReduceWhen::kMicrobatch, hardware);
  choice.once = price(model, inventory, config, ReduceWhen::kStep, hardware);
  if (choice.once.fits && choice.once.seconds < kEqualSpeed * choice.each_microbatch.seconds)
    choice.chosen = ReduceWhen::kStep;
  return choice;
}

std::optional<Error> reduction_note(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                                    const HardwareSpec& hardware) {
  const std::optional<ReductionChoice> choice = reduction_choice(model, inventory, config, hardware);
  if (!choice || choice->chosen == config.config.parallel.reduce) return std::nullopt;
  const double saved = 1 - choice->once.seconds / choice->each_microbatch.seconds;
  const int64_t more = choice->once.peak - choice->each_microbatch.peak;
  if (choice->chosen == ReduceWhen::kStep)
    return Error{"parallel.reduce",
                 fmt::format("gradients reduced once a step take {:.0f} % less time and {} more, which fits",
                             100 * saved, format_bytes(more)),
                 "use reduce = step"};
  const std::string why = choice->once.fits ? fmt::format("is only {:.0f} % faster", 100 * saved) : "does not fit";
  return Error{"parallel.reduce",
               fmt::format("gradients kept whole for the step take {} more; that {}", format_bytes(more), why),
               "use reduce = microbatch"};
}

}  // namespace fivefold
