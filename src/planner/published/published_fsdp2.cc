#include "planner/published/published_frameworks.h"

namespace fivefold {

Status read_fsdp2_row(const PublishedRun&, FrameworkRun&) { return Ok{}; }

}  // namespace fivefold
