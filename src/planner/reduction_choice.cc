#include "planner/reduction_choice.h"

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

}  // namespace fivefold
