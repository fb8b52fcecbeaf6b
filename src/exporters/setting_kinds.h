// Which settings of other frameworks bear on neither memory nor time, by the beginnings of their names. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "exporters/export_sheet.h"

namespace fivefold {

// Why a setting can be left out; nothing: it may matter, or is not known.
std::optional<std::string> irrelevant_setting(ForeignTarget source, std::string_view name);

}  // namespace fivefold
