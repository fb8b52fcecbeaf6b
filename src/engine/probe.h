// probe: a few steps on one fixed batch under any layout, with everything a check or a test compares. See ProbeRequest.
#pragma once

#include "engine/engine_api.h"

namespace fivefold {

Result<ProbeResult> run_probe(const ProbeRequest& request);

}  // namespace fivefold
