#include "planner/published/published_frameworks.h"

namespace fivefold {

Status read_nanotron_row(const PublishedRun&, FrameworkRun&) { return Ok{}; }

}  // namespace fivefold
