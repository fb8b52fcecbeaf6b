// Pickles: what is built is walked through, as far as it shares nothing twice; and as a snapshot of PyTorch's memory.
#include "fuzz/fuzz_target.h"
#include "record/foreign_log.h"
#include "record/plain_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  const std::string_view bytes = fuzz::as_text(data, size);
  const auto document = read_pickle(bytes, "pickle");
  if (!document.ok()) {
    fuzz::check_error(document.error());
    return 0;
  }
  // Every node that can be reached is one of as many as there are instructions; lists may hold themselves.
  std::vector<bool> seen(size + 2);
  std::vector<PlainData::Node> open{document->root()};
  while (!open.empty()) {
    const PlainData::Node node = open.back();
    open.pop_back();
    FIVEFOLD_CHECK(node < seen.size());
    if (seen[node]) continue;
    seen[node] = true;
    (void)document->integer(node);
    (void)document->at(node, document->text(node));
    for (const PlainData::Node element : document->elements(node)) open.push_back(element);
  }
  const auto log = parse_foreign_log(bytes, "snapshot", LogKind::kSnapshot);
  if (!log.ok()) fuzz::check_error(log.error());
  return 0;
}
