// Trainer: the training loop of every rank: data, steps, evaluation, checkpoints, record. See TrainRequest.
#pragma once

#include "engine/engine_api.h"

namespace fivefold {

Result<TrainResult> run_training(const TrainRequest& request);

}  // namespace fivefold
