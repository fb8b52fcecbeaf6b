// Learning rate as a function of the number of updates applied so far. The shapes are those of transformers' schedules
// (get_cosine_with_min_lr_schedule_with_warmup, get_linear_..., get_wsd_schedule): with a warm-up the first update has
// rate 0 (WSD: peak x min_ratio). Pure function, thread-safe.
#pragma once

#include <cstdint>

#include "spec/run_config.h"

namespace fivefold {

// Rate of update `update` (0-based) of a run of `total` updates with peak rate `peak`. After the last update the rate
// stays at its final value. REQUIRES: update >= 0; total > 0 unless the schedule is constant.
double learning_rate(const LrConfig& config, double peak, int64_t update, int64_t total);

}  // namespace fivefold
