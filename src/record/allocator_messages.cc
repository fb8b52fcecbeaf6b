// What PyTorch's caching allocator says in any log: failed allocations (c10/cuda/CUDACachingAllocator.cpp, in its
// wording of 2019, 2020 and since 2.1) and torch.cuda.memory_summary().
#include <algorithm>
#include <string>

#include "record/log_readers.h"

namespace fivefold {
namespace {

constexpr std::string_view kTried = "Tried to allocate ";
// A message is at most about 900 characters, a traceback's last frame is near it.
constexpr size_t kMessage = 2000, kTraceback = 6000;
constexpr size_t kMostFailures = 10000;

// One line of text without colours, for messages that a terminal or a log has broken.
std::string joined(std::string_view text) {
  std::string line;
  for_each_line(text, [&line](std::string_view part) {
    line += part;
    line += ' ';
  });
  return line;
}

int64_t size_after(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  return at == std::string_view::npos ? 0 : leading_size(text.substr(at + words.size())).value_or(0);
}

// "79.15 GiB total capacity": the size before the words.
int64_t size_before(std::string_view text, std::string_view words) {
  const size_t end = text.find(words);
  if (end == std::string_view::npos) return 0;
  // A decimal point is no border.
  size_t from = 0;
  for (size_t i = end; i > 0; --i) {
    const char c = text[i - 1];
    if (c == ';' || c == '(' || c == ',' || (c == '.' && i < text.size() && text[i] == ' ')) {
      from = i;
      break;
    }
  }
  return leading_size(text.substr(from)).value_or(0);
}

// "  File "/x/torch/nn/functional.py", line 3059, in cross_entropy", the last before the message.
std::string last_frame(std::string_view before) {
  const size_t at = before.rfind("File \"");
  if (at == std::string_view::npos) return "";
  const std::string_view line = before.substr(at + 6, before.find('\n', at) - at - 6);
  const size_t quote = line.find('"');
  const size_t number = line.find(", line "), in = line.find(", in ");
  if (quote == std::string_view::npos || number == std::string_view::npos || in == std::string_view::npos ||
      in < number)
    return "";
  const std::string_view path = line.substr(0, quote);
  const size_t slash = path.rfind('/');
  const std::string_view file = slash == std::string_view::npos ? path : path.substr(slash + 1);
  const std::string_view function = trimmed(line.substr(in + 5, 100));
  return std::string(file) + ":" + std::string(line.substr(number + 7, in - number - 7)) + " " +
         std::string(function.substr(0, function.find_first_of("\r\x1b")));
}

OutOfMemory read_failure(std::string_view message) {
  OutOfMemory failure;
  failure.requested = leading_size(message, &failure.precision).value_or(0);
  if (const size_t gpu = message.find("GPU "); gpu != std::string_view::npos)
    if (const auto device = whole_number(message.substr(gpu + 4)); device && *device < 1024)
      failure.device = static_cast<int>(*device);
  if (message.find("total capacity;") != std::string_view::npos) {
    failure.capacity = size_before(message, " total capacity");
    failure.allocated = size_before(message, " already allocated");
    failure.free = size_before(message, " free;");
    int64_t reserved = size_before(message, " reserved in total");
    if (reserved == 0) reserved = size_before(message, " cached)");
    failure.unallocated = std::max<int64_t>(0, reserved - failure.allocated);
    return failure;
  }
  failure.capacity = size_after(message, "total capacity of ");
  if (failure.capacity == 0) failure.capacity = size_after(message, "total capacty of ");  // as PyTorch 2.1 spells it
  failure.free = size_after(message, "of which ");
  failure.process = size_after(message, "this process has ");
  failure.allocated = size_after(message, "Of the allocated memory ");
  // "..., and 2.80 MiB is reserved by PyTorch but unallocated", whatever is said of private pools before it.
  const size_t reserved = message.find(" is reserved by PyTorch");
  if (const size_t words = message.rfind(" and ", reserved);
      reserved != std::string_view::npos && words != std::string_view::npos)
    failure.unallocated = leading_size(message.substr(words + 5)).value_or(0);
  return failure;
}

void read_failures(std::string_view content, ForeignLog& log) {
  for (size_t at = content.find(kTried); at != std::string_view::npos; at = content.find(kTried, at + 1)) {
    if (log.out_of_memory.size() >= kMostFailures) return;
    const size_t begin = at + kTried.size();
    const size_t next = content.find(kTried, begin);
    const std::string message = joined(content.substr(begin, std::min(kMessage, next - begin)));
    OutOfMemory failure = read_failure(message);
    if (failure.requested == 0) continue;
    const size_t line = content.rfind('\n', at) == std::string_view::npos ? 0 : content.rfind('\n', at) + 1;
    failure.rank = rank_of_line(content.substr(line, at - line));
    failure.where = last_frame(content.substr(at > kTraceback ? at - kTraceback : 0, std::min(at, kTraceback)));
    // A driver's handler and Python's both print it.
    const auto same = [&](const OutOfMemory& other) {
      return other.requested == failure.requested && other.rank == failure.rank && other.device == failure.device &&
             other.allocated == failure.allocated;
    };
    if (std::ranges::none_of(log.out_of_memory, same)) log.out_of_memory.push_back(std::move(failure));
  }
}

// "| Allocated memory      |   5624 MiB |   5673 MiB |  22536 MiB |  16911 MiB |": the peak is the second figure.
void read_summary_row(std::string_view line, int device, ForeignLog& log) {
  const auto peak = [&]() -> int64_t {
    size_t bar = line.find('|');
    for (int i = 0; i < 2 && bar != std::string_view::npos; ++i) bar = line.find('|', bar + 1);
    return bar == std::string_view::npos ? 0 : leading_size(line.substr(bar + 1)).value_or(0);
  };
  if (line.find("| Allocated memory ") != std::string_view::npos)
    note_memory(log, device, LoggedMemoryKind::kAllocated, static_cast<double>(peak()));
  else if (line.find("| GPU reserved memory ") != std::string_view::npos ||
           line.find("| Reserved memory ") != std::string_view::npos)
    note_memory(log, device, LoggedMemoryKind::kReserved, static_cast<double>(peak()));
}

}  // namespace

void read_allocator_messages(std::string_view content, ForeignLog& log) {
  read_failures(content, log);
  if (content.find("CUDA memory summary, device ID ") == std::string_view::npos) return;
  int device = 0;
  for_each_line(content, [&](std::string_view line) {
    constexpr std::string_view kTitle = "CUDA memory summary, device ID ", kRetries = "cudaMalloc retries: ";
    if (const size_t at = line.find(kTitle); at != std::string_view::npos)
      device = static_cast<int>(std::min<int64_t>(whole_number(line.substr(at + kTitle.size())).value_or(0), 1024));
    if (const size_t at = line.find(kRetries); at != std::string_view::npos)
      log.allocator_retries += std::min<int64_t>(whole_number(line.substr(at + kRetries.size())).value_or(0), 1 << 30);
    read_summary_row(line, device, log);
  });
}

}  // namespace fivefold
