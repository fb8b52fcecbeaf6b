// Checkpoints whose matrices are cut into blocks of columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "store/checkpoint_test_support.h"
#include "store/safetensors.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

// Matrices of random bytes and random cuts of them: 1 to 5 blocks of columns, each in ranges of any lengths (empty ones
// too), each range on any rank.
class RandomCut {
 public:
  explicit RandomCut(uint64_t seed) : random_(seed) {}

  int64_t draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  WholeTensor matrix() {
    const std::vector<DType> dtypes = {DType::kUint8, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
    WholeTensor tensor{dtypes[static_cast<size_t>(draw(0, 3))], {draw(1, 12), draw(1, 20)}, {}};
    tensor.bytes.resize(static_cast<size_t>(tensor.shape[0] * tensor.shape[1] * dtype_bytes(tensor.dtype)));
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random_() & 0xff);
    return tensor;
  }
  std::vector<ColumnBlock> blocks(int64_t columns) {
    std::set<int64_t> ends = {columns};
    const auto count = static_cast<size_t>(draw(1, std::min<int64_t>(5, columns)));
    while (ends.size() < count) ends.insert(draw(1, columns - 1));
    std::vector<ColumnBlock> blocks;
    int64_t first = 0;
    for (const int64_t end : ends) {
      blocks.push_back({first, end - first});
      first = end;
    }
    return blocks;
  }
  void cut(const StateKey& key, const WholeTensor& tensor, std::vector<std::vector<StatePiece>>& ranks) {
    const int64_t size = dtype_bytes(tensor.dtype);
    for (const ColumnBlock& block : blocks(tensor.shape[1])) {
      const auto& bytes = storage_.emplace_back(block_bytes(tensor, block));
      const int64_t elements = tensor.shape[0] * block.count;
      std::vector<int64_t> ends = {elements};
      for (int64_t more = draw(0, 5); more > 0; --more) ends.push_back(draw(0, elements));
      std::ranges::sort(ends);
      int64_t begin = 0;
      for (const int64_t end : ends) {
        ranks[static_cast<size_t>(draw(0, static_cast<int64_t>(ranks.size()) - 1))].push_back(
            {key, tensor.dtype, tensor.shape, begin, end, std::span(bytes).subspan(begin * size, (end - begin) * size),
             block});
        begin = end;
      }
    }
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<std::byte>> storage_;
};

void expect_range(CheckpointReader& reader, const StateKey& key, const WholeTensor& tensor, int64_t begin,
                  int64_t end) {
  const int64_t size = dtype_bytes(tensor.dtype);
  std::vector<std::byte> part(static_cast<size_t>((end - begin) * size));
  const Status status = reader.read(key, tensor.dtype, begin, end, part);
  ASSERT_TRUE(status.ok()) << status.error().message();
  ASSERT_EQ(part, std::vector<std::byte>(tensor.bytes.begin() + begin * size, tensor.bytes.begin() + end * size))
      << key.text() << " from " << begin << " to " << end << " of " << tensor.shape[0] << " x " << tensor.shape[1];
}

// 4 x 50 matrices, 50 ranges of each.
TEST(CheckpointBlocks, RandomCutsAreReadByRandomRanges) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    RandomCut random(seed);
    WholeState state;
    std::vector<std::vector<StatePiece>> ranks(static_cast<size_t>(random.draw(1, 4)));
    for (int i = 0; i < 50; ++i) {
      const StateKey key = {"params", "w" + std::to_string(i)};
      state[key] = random.matrix();
      random.cut(key, state[key], ranks);
    }
    TempFolder root;
    const auto folder = save_pieces(CheckpointWriter(root.path()), 1, ranks);
    ASSERT_TRUE(folder.ok()) << folder.error().message();
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    expect_state(*reader, state, static_cast<int>(random.draw(1, 9)));
    for (const auto& [key, tensor] : state) {
      const int64_t numel = tensor.shape[0] * tensor.shape[1];
      for (int i = 0; i < 50; ++i) {
        const int64_t begin = random.draw(0, numel);
        ASSERT_NO_FATAL_FAILURE(expect_range(*reader, key, tensor, begin, random.draw(begin, numel)));
      }
    }
  }
}

TEST(CheckpointBlocks, BlocksAreReadAsIfTheyHadNeverBeenCut) {
  const WholeState state = made_up_state(1);
  for (const int writers : {1, 3, 4, 20}) {
    TempFolder root;
    const auto folder = save(CheckpointWriter(root.path()), 5, state, writers, Cut::kBlocks);
    ASSERT_TRUE(folder.ok()) << folder.error().message();
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    for (const int readers : {1, 2, 3, 8, 91}) expect_state(*reader, state, readers);
  }
}

// A rank that holds columns [2, 6) reads them row by row, whatever the save's cut was.
TEST(CheckpointBlocks, ColumnsAreReadFromAnyCut) {
  const WholeState state = made_up_state(1);
  const StateKey key = {"params", "layers.0.qkv.weight"};
  for (const Cut cut : {Cut::kRanges, Cut::kBlocks}) {
    TempFolder root;
    ASSERT_TRUE(save(CheckpointWriter(root.path()), 5, state, 3, cut).ok());
    auto reader = CheckpointReader::open(root.path(), Verify::kFiles);
    ASSERT_TRUE(reader.ok());
    std::vector<std::byte> block;
    for (int64_t row = 0; row < 13; ++row) {
      std::vector<std::byte> part(4 * 2);
      ASSERT_TRUE(reader->read(key, DType::kBFloat16, row * 7 + 2, row * 7 + 6, part).ok());
      block.insert(block.end(), part.begin(), part.end());
    }
    EXPECT_EQ(block, block_bytes(state.at(key), {2, 4}));
  }
}

// An older reader takes version 1 only. It must get what it can read, and refuse what it would misread.
TEST(CheckpointBlocks, OnlyBlocksNeedTheNewVersion) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(0), 2, Cut::kRanges).ok());
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 2, made_up_state(0), 2, Cut::kBlocks).ok());
  const std::string ranges = read_file(root / "step-1/manifest.json");
  const std::string blocks = read_file(root / "step-2/manifest.json");
  EXPECT_NE(ranges.find("\"format_version\": 1,"), std::string::npos);
  EXPECT_EQ(ranges.find("\"columns\""), std::string::npos);
  EXPECT_NE(blocks.find("\"format_version\": 2,"), std::string::npos);
  EXPECT_NE(blocks.find("\"columns\""), std::string::npos);
}

// 13 x 7 over 2 ranks: columns [0, 2) are 26 elements, columns [2, 7) are 65.
TEST(CheckpointBlocks, NamesInAShardTellBlocksApart) {
  TempFolder root;
  const WholeState state = made_up_state(3);
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, state, 2, Cut::kBlocks).ok());
  const auto shard = SafetensorsFile::open(root / "step-1/rank-00001.safetensors");
  ASSERT_TRUE(shard.ok()) << shard.error().message();
  EXPECT_NE(shard->find("master/layers.0.qkv.weight[:,0:2][13:26]"), nullptr);
  const TensorInfo* piece = shard->find("master/layers.0.qkv.weight[:,2:7][33:65]");
  ASSERT_NE(piece, nullptr);
  const std::vector<std::byte> block = block_bytes(state.at({"master", "layers.0.qkv.weight"}), {2, 5});
  EXPECT_EQ(text_of_bytes(shard->bytes(*piece)), text_of_bytes(std::span(block).subspan(33 * 4)));
}

// moment1 has the smallest elements, so its second block lies last in the shard.
TEST(CheckpointBlocks, ADamagedPieceIsNamedWithItsColumns) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(0), 2, Cut::kBlocks).ok());
  const std::filesystem::path path = root / "step-1/rank-00001.safetensors";
  flip_byte(path, std::filesystem::file_size(path) - 1);
  auto reader = CheckpointReader::open(root / "step-1", Verify::kFiles);
  ASSERT_TRUE(reader.ok());
  const StateKey key = {"moment1", "layers.0.qkv.weight"};
  std::vector<std::byte> out(2);
  // The last row begins at element 84; its columns 0 and 1 are the other block's.
  EXPECT_TRUE(reader->read(key, DType::kUint8, 84, 86, out).ok());
  const Status status = reader->read(key, DType::kUint8, 85, 87, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().problem, "elements [33, 65) of columns [2, 7) do not match their hash");
  const auto whole = CheckpointReader::open(root / "step-1");
  ASSERT_FALSE(whole.ok());
  EXPECT_EQ(whole.error().problem, status.error().problem);
  // Rank 1 holds two blocks of four matrices, and half of norm.weight.
  std::filesystem::remove(path);
  EXPECT_EQ(CheckpointReader::open(root / "step-1").error().problem,
            "missing; it holds master/layers.0.qkv.weight [13, 26) of columns [0, 2) and 8 other pieces");
}

struct Planted {
  std::string name;
  std::function<void(StateTensor&)> change;
  std::string problem;
};

const StateKey kKey = {"params", "w"};

// 4 x 7 bytes in one file: columns [0, 3) as [0, 5) and [5, 12), columns [3, 7) as [0, 16).
StateTensor right_tensor() {
  return {
      DType::kUint8, {4, 7}, {{0, 5, "f", 16, 0, {0, 3}}, {5, 12, "f", 21, 0, {0, 3}}, {0, 16, "f", 28, 0, {3, 4}}}};
}

Result<Manifest> merged(const StateTensor& tensor) {
  ShardReceipt receipt;
  receipt.nonce = "n";
  receipt.file = {"f", 100, 16, 0};
  receipt.tensors[kKey] = tensor;
  return merge_receipts(run_at(0), 1, "n", {receipt}, "step-0");
}

Result<Manifest> parsed(const StateTensor& tensor) {
  const Manifest manifest{.run = run_at(1), .world_size = 1, .files = {{"f", 100, 16, 0}}, .tensors = {{kKey, tensor}}};
  return parse_manifest(to_text(manifest), "manifest.json");
}

void expect_refused(const Result<Manifest>& manifest, const std::string& file, const std::string& problem) {
  ASSERT_FALSE(manifest.ok()) << problem;
  EXPECT_EQ(manifest.error().where, file + " (params/w)");
  EXPECT_EQ(manifest.error().problem, problem);
}

TEST(CheckpointBlocks, PlantedErrorsAreRefusedWhenMergedAndWhenRead) {
  const std::vector<Planted> rows = {
      {"blocks overlap", [](StateTensor& t) { t.pieces[2] = {0, 20, "f", 28, 0, {2, 5}}; },
       "piece [0, 20) of columns [2, 7) of f overlaps the block of columns [0, 3) in f"},
      {"blocks begin together", [](StateTensor& t) { t.pieces[2].block = {0, 4}; },
       "piece [0, 16) of columns [0, 4) of f overlaps the block of columns [0, 3) in f"},
      {"hole between blocks", [](StateTensor& t) { t.pieces[2] = {0, 12, "f", 28, 0, {4, 3}}; },
       "columns [3, 4) are in no block"},
      {"no first block", [](StateTensor& t) { t.pieces.erase(t.pieces.begin(), t.pieces.begin() + 2); },
       "columns [0, 3) are in no block"},
      {"no last block", [](StateTensor& t) { t.pieces.pop_back(); }, "columns [3, 7) are in no block"},
      {"block beyond the columns", [](StateTensor& t) { t.pieces[2] = {0, 20, "f", 28, 0, {3, 5}}; },
       "piece [0, 20) of f has a block of 5 columns from column 3, which is not within the 7 columns"},
      {"block behind the columns", [](StateTensor& t) { t.pieces[2].block = {8, 2}; },
       "piece [0, 16) of f has a block of 2 columns from column 8, which is not within the 7 columns"},
      {"block of a vector", [](StateTensor& t) { t.shape = {28}; },
       "piece [0, 5) of f has a block of 3 columns from column 0, but the tensor has 1 dims, not 2"},
      {"block of three dims", [](StateTensor& t) { t.shape = {2, 2, 7}; },
       "piece [0, 5) of f has a block of 3 columns from column 0, but the tensor has 3 dims, not 2"},
      {"a plain range behind blocks", [](StateTensor& t) { t.pieces[2].block = {}; },
       "piece [0, 5) of columns [0, 3) of f has a column block, but piece [0, 16) of f has none"},
      {"a plain range before blocks", [](StateTensor& t) { t.pieces[0].block = {}; },
       "piece [0, 5) of f has no column block, but piece [5, 12) of columns [0, 3) of f has one"},
      {"range beyond the block", [](StateTensor& t) { t.pieces[1].end = 13; },
       "piece [5, 13) of columns [0, 3) of f reaches past the block's 12 elements"},
      {"range of the tensor in a block", [](StateTensor& t) { t.pieces[2].end = 28; },
       "piece [0, 28) of columns [3, 7) of f reaches past the block's 16 elements"},
      {"ranges overlap", [](StateTensor& t) { t.pieces[1].begin = 4; },
       "piece [4, 12) of columns [0, 3) of f overlaps piece [0, 5) of columns [0, 3) of f"},
      {"hole between ranges", [](StateTensor& t) { t.pieces[1].begin = 6; },
       "elements [5, 6) of columns [0, 3) are in no piece"},
      {"hole at the end of a block", [](StateTensor& t) { t.pieces[2].end = 15; },
       "elements [15, 16) of columns [3, 7) are in no piece"},
  };
  ASSERT_TRUE(merged(right_tensor()).ok());
  ASSERT_TRUE(parsed(right_tensor()).ok());
  for (const Planted& row : rows) {
    SCOPED_TRACE(row.name);
    StateTensor tensor = right_tensor();
    row.change(tensor);
    expect_refused(merged(tensor), "step-0", row.problem);
    expect_refused(parsed(tensor), "manifest.json", row.problem);
  }
}

// A manifest's text cannot state these, as it holds the first column and the one after the last.
TEST(CheckpointBlocks, ImpossibleBlocksAreRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::string not_within = ", which is not within the 7 columns";
  const std::vector<std::pair<ColumnBlock, std::string>> rows = {
      {{3, -4}, "-4 columns from column 3"},
      {{3, 0}, "0 columns from column 3"},
      {{3, kMax}, "9223372036854775807 columns from column 3"},
      {{-1, 4}, "4 columns from column -1"},
      {{kMax, 4}, "4 columns from column 9223372036854775807"},
  };
  for (const auto& [block, text] : rows) {
    StateTensor tensor = right_tensor();
    tensor.pieces[2].block = block;
    expect_refused(merged(tensor), "step-0", "piece [0, 16) of f has a block of " + text + not_within);
  }
}

// A matrix without rows has no elements to hold, but its blocks still have to be all of them.
TEST(CheckpointBlocks, AMatrixWithoutRows) {
  StateTensor tensor{DType::kUint8, {0, 7}, {{0, 0, "f", 16, 0, {3, 4}}, {0, 0, "f", 16, 0, {0, 3}}}};
  EXPECT_TRUE(merged(tensor).ok());
  tensor.pieces.pop_back();
  expect_refused(merged(tensor), "step-0", "columns [0, 3) are in no block");
}

TEST(CheckpointBlocksDeathTest, AWriterHandsInOnlyColumnsThatAreThere) {
  TempFolder root;
  const CheckpointWriter writer(root.path());
  const SaveTicket ticket = writer.begin(1, 1);
  const std::vector<std::byte> bytes(4);
  const auto write = [&](std::vector<int64_t> shape, ColumnBlock block) {
    const std::vector<StatePiece> pieces = {{kKey, DType::kUint8, std::move(shape), 0, 4, bytes, block}};
    static_cast<void>(writer.write_shard(ticket, 0, pieces));
  };
  write({4, 7}, {6, 1});
  EXPECT_DEATH(write({4, 7}, {6, 2}), "params/w: columns that the tensor does not have");
  EXPECT_DEATH(write({28}, {0, 1}), "params/w: columns that the tensor does not have");
  EXPECT_DEATH(write({3, 7}, {0, 1}), "params/w: range outside the tensor or block");
}

}  // namespace
}  // namespace fivefold
