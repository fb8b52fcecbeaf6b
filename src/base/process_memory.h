// Resident memory of this process, as the kernel counts it.
#pragma once

#include <cstdint>

namespace fivefold {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // since start

}  // namespace fivefold
