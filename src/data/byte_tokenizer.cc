#include "data/tokenizer.h"

namespace fivefold {
namespace {

constexpr int32_t kEos = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, Specials /*specials*/) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, Specials specials) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id >= 0 && id < kEos) text.push_back(static_cast<char>(id));
      if (id == kEos && specials == Specials::kAdd) text += "<eos>";
    }
    return text;
  }

  int32_t vocab_size() const override { return kEos + 1; }
  std::optional<int32_t> eos_id() const override { return kEos; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::vector<SpecialToken> special_tokens() const override { return {{kEos, "<eos>"}}; }
  uint64_t fingerprint() const override { return 257; }  // there is one byte tokenizer
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace fivefold
