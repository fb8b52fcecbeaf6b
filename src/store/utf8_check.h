// Whether bytes are UTF-8, for text of a file that is to become JSON. Internal to the store.
#pragma once

#include <string_view>

namespace fivefold {

// Well-formed as Unicode 15.0, table 3-7, has it: no surrogates, no overlong forms, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace fivefold
