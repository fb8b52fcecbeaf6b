// What tests of logs and of the doctor share: predictions of named models on named hardware.
#pragma once

#include <filesystem>
#include <string>

#include "base/installation.h"
#include "reconcile/framework_prediction.h"
#include "spec/model_named.h"

namespace fivefold {

inline RunConfig framework_config(Framework framework, ParallelConfig parallel) {
  RunConfig config;
  config.framework.name = framework;
  config.parallel = parallel;
  return config;
}

inline FrameworkPrediction predicted(const std::string& model, const std::string& hardware, const RunConfig& config) {
  return predict_framework(read_model_config(find_named_model(model).value()).value(), config,
                           read_hardware(find_named_hardware(hardware).value()).value())
      .value();
}

}  // namespace fivefold
