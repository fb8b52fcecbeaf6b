#include "store/utf8_check.h"

#include <cstddef>

namespace fivefold {
namespace {

struct Form {
  size_t length;
  unsigned char second_least, second_most;
};

// What may follow a lead byte; length 0: nothing starts with it.
Form form_of(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Form form = form_of(static_cast<unsigned char>(text[at]));
    if (form.length == 0 || form.length > text.size() - at) return false;
    for (size_t i = 1; i < form.length; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      const unsigned char least = i == 1 ? form.second_least : 0x80, most = i == 1 ? form.second_most : 0xBF;
      if (byte < least || byte > most) return false;
    }
    at += form.length;
  }
  return true;
}

}  // namespace fivefold
