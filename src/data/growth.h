// Growth: the factor by which a component of a tokenizer.json can lengthen a text, in bytes, at most. Components in a
// row multiply theirs, so that a file of a few hundred bytes could ask for more memory than there is.
#pragma once

namespace fivefold {

// Files in use reach 4 x 11 x 12: normal form KD, then a prefix and a replacement of 3 bytes each. More is refused.
inline constexpr double kMaxGrowth = 4096;

// Of components that are applied one after the other.
template <typename Parts>
double total_growth(const Parts& parts) {
  double product = 1.0;
  for (const auto& part : parts) product *= part->growth();
  return product;
}

}  // namespace fivefold
