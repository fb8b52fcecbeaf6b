#include "report/tensorboard.h"

#include <array>

#include "report/event.pb.h"

namespace fivefold {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

template <typename Integer>
std::string little_endian(Integer value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  return bytes;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t value = 0xFFFFFFFFu;
  for (const char byte : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~value;
}

// A checksum of data that holds checksums is weak: rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t value = crc32c(bytes);
  return ((value >> 15) | (value << 17)) + 0xA282EAD8u;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder, double started_at) {
  std::error_code ignored;  // a folder that cannot be made shows when the file is opened
  std::filesystem::create_directories(folder, ignored);
  file_ = folder / ("events.out.tfevents." + std::to_string(static_cast<int64_t>(started_at)) + ".fivefold");
  stream_.open(file_, std::ios::binary | std::ios::trunc);
  tensorboard::Event event;
  event.set_wall_time(started_at);
  event.set_file_version("brain.Event:2");
  append(event.SerializeAsString());
}

void TensorboardWriter::add(int64_t step, double wall_time,
                            const std::vector<std::pair<std::string, double>>& scalars) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  for (const auto& [tag, scalar] : scalars) {
    tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(scalar));
  }
  append(event.SerializeAsString());
}

// Length, its checksum, the event, its checksum.
void TensorboardWriter::append(const std::string& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  stream_ << length << little_endian(masked_crc32c(length)) << event << little_endian(masked_crc32c(event));
}

Status TensorboardWriter::finish() {
  stream_.close();
  if (!stream_) return Error{file_.string(), "cannot be written", ""};
  return Ok{};
}

Status write_tensorboard(const RankRecord& rank, const std::filesystem::path& folder) {
  for (const RecordedSession& session : rank.sessions) {
    const double start = session.start.started_at;
    TensorboardWriter writer(folder, start);
    for (const StepRecord& step : session.steps)
      writer.add(step.step, start + step.begin_s + step.seconds,
                 {{"loss", step.loss},
                  {"grad_norm", step.grad_norm},
                  {"lr", step.lr},
                  {"tokens_per_s", step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0.0}});
    for (const EvaluationRecord& evaluation : session.evaluations)
      writer.add(evaluation.step, start + evaluation.begin_s + evaluation.seconds,
                 {{"validation_loss", evaluation.loss}});
    FIVEFOLD_TRY(writer.finish());
  }
  return Ok{};
}

}  // namespace fivefold
