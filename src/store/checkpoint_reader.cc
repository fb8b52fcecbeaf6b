#include "store/checkpoint_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/integer.h"
#include "base/text.h"
#include "store/hash.h"

namespace fivefold {
namespace {

constexpr const char* kManifestFile = "manifest.json";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplacedMark = ".replaced-";

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

// N of "step-N"; nothing for other names.
std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

// The name of the folder that `latest` points at.
Result<std::string> read_latest(const std::filesystem::path& root) {
  const std::filesystem::path path = root / "latest";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Error{path.string(), "missing", ""};
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
  std::string_view name = file.text();
  if (name.ends_with('\n')) name.remove_suffix(1);
  if (!parse_step_name(name)) return Error{path.string(), "does not name a checkpoint", ""};
  return std::string(name);
}

// Where the elements of a column block lie in the flattened tensor. Both are in row order, so that a range of the
// tensor is one range of the block. A tensor without blocks is one block of one row.
class BlockPlace {
 public:
  // REQUIRES: the tensor has elements, and the piece is one of its.
  BlockPlace(const StateTensor& tensor, const Piece& piece)
      : first_(piece.block.first),
        count_(piece.has_block() ? piece.block.count : tensor.numel()),
        width_(piece.has_block() ? tensor.shape[1] : tensor.numel()) {}

  // Elements of the block before element `position` of the tensor.
  int64_t elements_before(int64_t position) const {
    const int64_t row = div_floor(position, width_);
    return row * count_ + std::clamp(position - row * width_ - first_, int64_t{0}, count_);
  }
  int64_t position(int64_t element) const {
    const int64_t row = div_floor(element, count_);
    return row * width_ + first_ + element - row * count_;
  }
  // Elements from `element` to the end of its row in the block.
  int64_t left_in_row(int64_t element) const { return count_ - element % count_; }

 private:
  int64_t first_;
  int64_t count_;
  int64_t width_;
};

// What is lost with a file, for the error that it is gone.
std::string contents_of(const Manifest& manifest, const std::string& file) {
  std::string first;
  int64_t others = -1;
  for (const auto& [key, tensor] : manifest.tensors) {
    for (const Piece& piece : tensor.pieces) {
      if (piece.file != file) continue;
      if (++others == 0) first = key.text() + " " + piece.text();
    }
  }
  if (others < 0) return "it holds no pieces";
  return "it holds " + first + (others == 0 ? "" : " and " + std::to_string(others) + " other pieces");
}

}  // namespace

std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& root) {
  std::vector<CheckpointFolder> folders;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto step = parse_step_name(std::string_view(name).substr(0, name.find(kReplacedMark))))
      folders.push_back({*step, it->path()});
  }
  std::ranges::sort(folders, [](const CheckpointFolder& a, const CheckpointFolder& b) {
    return a.step != b.step ? a.step > b.step : a.path < b.path;
  });
  return folders;
}

Result<CheckpointReader> CheckpointReader::open(const std::filesystem::path& path, Verify verify) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return Error{path.string(), "no such folder", ""};
  const std::string name = path.filename().string();
  if (std::filesystem::exists(path / kManifestFile, error) || parse_step_name(name)) return open_folder(path, verify);

  const std::vector<CheckpointFolder> folders = list_checkpoints(path);
  if (folders.empty()) return Error{path.string(), "holds no checkpoint", ""};
  const auto latest = read_latest(path);
  std::string reason;
  if (latest.ok()) {
    auto reader = open_folder(path / *latest, verify);
    if (reader.ok()) return reader;
    reason = reader.error().message();
  } else {
    reason = latest.error().message();
  }
  std::string newest_damage;
  for (const CheckpointFolder& folder : folders) {
    auto reader = open_folder(folder.path, verify);
    if (reader.ok()) {
      reader->fallback_reason_ = reason + "; using " + folder.path.filename().string() + " instead";
      return reader;
    }
    if (newest_damage.empty()) newest_damage = reader.error().message();
  }
  return Error{path.string(),
               "no whole checkpoint among " + std::to_string(folders.size()) + "; the newest: " + newest_damage, ""};
}

Result<CheckpointReader> CheckpointReader::open_folder(const std::filesystem::path& folder, Verify verify) {
  CheckpointReader reader;
  reader.folder_ = folder;
  const std::filesystem::path manifest_path = folder / kManifestFile;
  FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(manifest_path));
  FIVEFOLD_ASSIGN(reader.manifest_, parse_manifest(file.text(), manifest_path.string()));
  FIVEFOLD_TRY(reader.map_files());
  if (verify == Verify::kContents) FIVEFOLD_TRY(reader.verify_contents());
  return reader;
}

Status CheckpointReader::map_files() {
  for (const ShardFile& file : manifest_.files) {
    const std::filesystem::path path = folder_ / file.name;
    std::error_code error;
    if (!std::filesystem::exists(path, error))
      return Error{path.string(), "missing; " + contents_of(manifest_, file.name), ""};
    FIVEFOLD_ASSIGN(MappedFile mapped, MappedFile::open(path));
    const auto bytes = static_cast<int64_t>(mapped.bytes().size());
    if (bytes != file.bytes)
      return Error{path.string(),
                   "has " + std::to_string(bytes) + " bytes, the manifest says " + std::to_string(file.bytes), ""};
    if (hash_bytes(mapped.bytes().first(static_cast<size_t>(file.header_bytes))) != file.header_hash)
      return Error{path.string(), "header does not match its hash", "the file is damaged"};
    files_.emplace(file.name, std::move(mapped));
  }
  return Ok{};
}

Result<std::span<const std::byte>> CheckpointReader::verified_bytes(const StateKey& key, DType dtype,
                                                                    const Piece& piece) {
  const auto bytes = files_.at(piece.file)
                         .bytes()
                         .subspan(static_cast<size_t>(piece.file_begin),
                                  static_cast<size_t>((piece.end - piece.begin) * dtype_bytes(dtype)));
  if (!verified_.contains(&piece)) {
    if (hash_bytes(bytes) != piece.hash)
      return Error{(folder_ / piece.file).string() + " (" + key.text() + ")",
                   "elements " + piece.text() + " do not match their hash", "the file is damaged"};
    verified_.insert(&piece);
  }
  return bytes;
}

Status CheckpointReader::read(const StateKey& key, DType dtype, int64_t begin, int64_t end, std::span<std::byte> out) {
  const std::string where = folder_.string() + " (" + key.text() + ")";
  const auto found = manifest_.tensors.find(key);
  if (found == manifest_.tensors.end()) {
    std::vector<std::string> known;
    for (const auto& [other, tensor] : manifest_.tensors) known.push_back(other.text());
    return Error{where, "no such tensor", name_hint(key.text(), known)};
  }
  const StateTensor& tensor = found->second;
  if (tensor.dtype != dtype)
    return Error{where,
                 "was saved as " + std::string(to_string(tensor.dtype)) + ", not " + std::string(to_string(dtype)), ""};
  if (begin < 0 || begin > end || end > tensor.numel())
    return Error{where, "elements " + range_text(begin, end) + " are not within its " + std::to_string(tensor.numel()),
                 ""};
  FIVEFOLD_CHECK(static_cast<int64_t>(out.size()) == (end - begin) * dtype_bytes(dtype), "buffer of another size");
  if (begin == end) return Ok{};
  std::span<const Piece> rest = tensor.pieces;
  while (!rest.empty()) {
    const auto first_column = [](const Piece& piece) { return piece.block.first; };
    const auto next = std::ranges::upper_bound(rest, first_column(rest.front()), {}, first_column);
    FIVEFOLD_TRY(read_block(found->first, tensor, {rest.begin(), next}, begin, end, out));
    rest = {next, rest.end()};
  }
  return Ok{};
}

Status CheckpointReader::read_block(const StateKey& key, const StateTensor& tensor, std::span<const Piece> pieces,
                                    int64_t begin, int64_t end, std::span<std::byte> out) {
  const BlockPlace place(tensor, pieces.front());
  const int64_t element_bytes = dtype_bytes(tensor.dtype);
  const int64_t block_begin = place.elements_before(begin);
  const int64_t block_end = place.elements_before(end);
  if (block_begin == block_end) return Ok{};
  auto piece = std::ranges::upper_bound(pieces, block_begin, {}, &Piece::end);
  for (; piece != pieces.end() && piece->begin < block_end; ++piece) {
    FIVEFOLD_ASSIGN(const auto bytes, verified_bytes(key, tensor.dtype, *piece));
    const int64_t last = std::min(block_end, piece->end);
    for (int64_t element = std::max(block_begin, piece->begin); element < last;) {
      const int64_t run = std::min(place.left_in_row(element), last - element);
      std::memcpy(out.data() + (place.position(element) - begin) * element_bytes,
                  bytes.data() + (element - piece->begin) * element_bytes, static_cast<size_t>(run * element_bytes));
      element += run;
    }
  }
  return Ok{};
}

Status CheckpointReader::read_floats(const StateKey& key, int64_t begin, int64_t end, std::span<float> out) {
  const auto found = manifest_.tensors.find(key);
  if (found == manifest_.tensors.end() || found->second.dtype != DType::kBFloat16)
    return read(key, DType::kFloat32, begin, end, std::as_writable_bytes(out));
  // Into the upper half of the buffer, then from its lower end on: an element is read before its place is written.
  auto* const halves = reinterpret_cast<std::byte*>(out.data()) + out.size() * sizeof(uint16_t);
  FIVEFOLD_TRY(read(key, DType::kBFloat16, begin, end, {halves, out.size() * sizeof(uint16_t)}));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, halves + i * sizeof bits, sizeof bits);
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  return Ok{};
}

Status CheckpointReader::verify_contents() {
  for (const auto& [key, tensor] : manifest_.tensors)
    for (const Piece& piece : tensor.pieces) FIVEFOLD_TRY(verified_bytes(key, tensor.dtype, piece));
  return Ok{};
}

}  // namespace fivefold
