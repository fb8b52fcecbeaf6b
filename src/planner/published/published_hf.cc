#include "planner/published/published_frameworks.h"

namespace fivefold {

Status read_hf_row(const PublishedRun&, FrameworkRun&) { return Ok{}; }

}  // namespace fivefold
