// torchtitan's console log: MetricsProcessor.log() in torchtitan/components/metrics.py (since 2025; before, train.py),
// and what its trainer says at the start.
#include <string>

#include "base/units.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

// "with local batch size 2, global batch size 16, sequence length 8192, total steps 1000 (warmup 200)"
void read_start(std::string_view line, ForeignLog& log) {
  for (const auto& [words, name] :
       std::initializer_list<std::pair<std::string_view, const char*>>{{"local batch size ", "local_batch_size"},
                                                                       {"global batch size ", "global_batch_size"},
                                                                       {"sequence length ", "seq_len"}})
    if (const size_t at = line.find(words); at != std::string_view::npos)
      if (const auto number = whole_number(line.substr(at + words.size())))
        log.arguments.emplace(name, std::to_string(*number));
}

// "CUDA capacity: NVIDIA H100 with 79.10GiB memory"
void read_capacity(std::string_view line, ForeignLog& log) {
  const size_t at = line.rfind(" with ");
  if (at == std::string_view::npos) return;
  if (const auto bytes = leading_size(line.substr(at + 6))) log.capacity = *bytes;
}

void read_step(std::string_view line, size_t at, SessionCount& sessions, ForeignLog& log) {
  const auto number = whole_number(line.substr(at));
  if (!number) return;
  LoggedStep step{.step = *number, .rank = rank_of_line(line)};
  line = line.substr(at);
  step.loss = number_after(line, "loss");
  step.grad_norm = number_after(line, "grad_norm");
  step.tokens_per_s = number_after(line, "tps");
  if (!step.tokens_per_s) step.tokens_per_s = number_after(line, "wps");  // before 2025
  if (const auto tflops = number_after(line, "tflops")) step.flops_per_s = *tflops * 1e12;
  const auto gib = number_after(line, "memory");
  // What is printed is memory_stats()["reserved_bytes.all.peak"].
  if (gib) note_memory(log, std::max(0, step.rank), LoggedMemoryKind::kReserved, *gib * static_cast<double>(kGiB));
  if (!step.loss && !step.tokens_per_s && !gib) {
    ++log.cut_lines;
    return;
  }
  step.session = sessions.session_of(step.rank, step.step);
  log.steps.push_back(step);
}

}  // namespace

void read_torchtitan(std::string_view content, ForeignLog& log) {
  SessionCount sessions;
  for_each_line(content, [&](std::string_view line) {
    if (line.find("Training starts at step") != std::string_view::npos) return read_start(line, log);
    if (line.find("capacity: ") != std::string_view::npos) return read_capacity(line, log);
    if (const size_t at = line.find(" memory allocation retries"); at != std::string_view::npos) {
      const size_t begin = line.find_last_not_of("0123456789", line.rfind(' ', at - 1) - 1);
      if (begin != std::string_view::npos) log.allocator_retries += whole_number(line.substr(begin + 1)).value_or(0);
      return;
    }
    const size_t at = line.find("step: ");
    if (at != std::string_view::npos && line.find("validate step: ") == std::string_view::npos)
      read_step(line, at + 6, sessions, log);
  });
}

}  // namespace fivefold
