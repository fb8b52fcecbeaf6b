// tokenizer.json and, behind a NUL, tokenizer_config.json; then a text there and back.
#include <stdexcept>

#include "data/tokenizer.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

constexpr std::string_view kText = "Hello world, it's  42\xC2\xB0!\n<s>\t\xE4\xBD\xA0\xE5\xA5\xBD \xFF aaaa bbb</s> ";

void check_tokenizer(const Tokenizer& tokenizer) {
  FIVEFOLD_CHECK(tokenizer.vocab_size() > 0);
  const auto in_vocabulary = [&](int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); };
  for (const auto& id : {tokenizer.eos_id(), tokenizer.bos_id()}) FIVEFOLD_CHECK(!id || in_vocabulary(*id));
  for (const SpecialToken& token : tokenizer.special_tokens()) FIVEFOLD_CHECK(in_vocabulary(token.id), token.content);
  for (const Specials specials : {Specials::kOmit, Specials::kAdd}) {
    try {
      const std::vector<int32_t> ids = tokenizer.encode(kText, specials);
      for (const int32_t id : ids) FIVEFOLD_CHECK(in_vocabulary(id), std::to_string(id));
      FIVEFOLD_CHECK(tokenizer.encode(kText, specials) == ids);
      tokenizer.decode(ids, specials);
    } catch (const std::runtime_error&) {  // the documented end of a regular expression beyond the match limits
    }
  }
  const std::vector<int32_t> outside = {-1, 0, tokenizer.vocab_size() - 1, tokenizer.vocab_size(), INT32_MAX};
  try {
    tokenizer.decode(outside);
  } catch (const std::runtime_error&) {
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const auto files = fuzz::parts(fuzz::as_text(data, size), 2);
  const auto tokenizer = parse_tokenizer_json(files[0], files[1], "tokenizer.json");
  if (tokenizer.ok())
    fuzz::check_tokenizer(**tokenizer);
  else
    fuzz::check_error(tokenizer.error());
  return 0;
}
