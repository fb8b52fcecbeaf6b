#include <gtest/gtest.h>

#include "store/checkpoint_test_support.h"
#include "store/safetensors.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

const StateKey kMaster = {"master", "layers.0.qkv.weight"};

TEST(Checkpoint, AnyNumberOfRanksReadsWhatAnyNumberSaved) {
  const WholeState state = made_up_state(1);
  for (const int writers : {1, 3, 4, 20}) {
    TempFolder root;
    const auto folder = save(CheckpointWriter(root.path()), 5, state, writers);
    ASSERT_TRUE(folder.ok()) << folder.error().message();
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    EXPECT_EQ(reader->world_size(), writers);
    for (const int readers : {1, 2, 3, 8, 91}) expect_state(*reader, state, readers);
  }
}

// All [begin, end) of a tensor of 17 elements whose pieces end at 5, 10, 15 and 17.
TEST(Checkpoint, EveryRangeIsAssembledFromItsPieces) {
  TempFolder root;
  const WholeState state = made_up_state(2);
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, state, 4).ok());
  auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  const StateKey key = {"params", "norm.weight"};
  const std::vector<std::byte>& whole = state.at(key).bytes;
  for (int64_t begin = 0; begin <= 17; ++begin) {
    for (int64_t end = begin; end <= 17; ++end) {
      std::vector<std::byte> part(static_cast<size_t>(4 * (end - begin)));
      ASSERT_TRUE(reader->read(key, DType::kFloat32, begin, end, part).ok());
      ASSERT_EQ(part, std::vector<std::byte>(whole.begin() + 4 * begin, whole.begin() + 4 * end))
          << begin << " " << end;
    }
  }
}

TEST(Checkpoint, TheRunGoesOnWhereItWas) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 7, made_up_state(0)).ok());
  const auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->run(), run_at(7));
  EXPECT_EQ(reader->folder(), root / "step-7");
  EXPECT_EQ(reader->fallback_reason(), "");
}

TEST(Checkpoint, DtypesStayWhatTheyWere) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(0), 4).ok());
  auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  std::map<std::string, DType> table;
  for (const auto& [key, tensor] : reader->tensors()) table[key.text()] = tensor.dtype;
  EXPECT_EQ(table, (std::map<std::string, DType>{{"master/layers.0.qkv.weight", DType::kFloat32},
                                                 {"moment1/layers.0.qkv.weight", DType::kUint8},
                                                 {"moment2/layers.0.qkv.weight", DType::kBFloat16},
                                                 {"params/empty", DType::kFloat32},
                                                 {"params/layers.0.qkv.weight", DType::kBFloat16},
                                                 {"params/norm.weight", DType::kFloat32},
                                                 {"params/scale", DType::kFloat64}}));
  std::vector<std::byte> out(91 * 4);
  const Status status = reader->read({"moment2", "layers.0.qkv.weight"}, DType::kFloat32, 0, 91, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().problem, "was saved as bf16, not fp32");
}

// The shards are ordinary safetensors files.
TEST(Checkpoint, ShardsOpenAsSafetensors) {
  TempFolder root;
  const WholeState state = made_up_state(3);
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, state, 4).ok());
  const auto shard = SafetensorsFile::open(root / "step-1/rank-00002.safetensors");
  ASSERT_TRUE(shard.ok()) << shard.error().message();
  // 91 elements over 4 ranks: 23 each, so rank 2 holds [46, 69).
  const TensorInfo* piece = shard->find("master/layers.0.qkv.weight[46:69]");
  ASSERT_NE(piece, nullptr);
  const std::vector<std::byte>& whole = state.at(kMaster).bytes;
  EXPECT_EQ(text_of_bytes(shard->bytes(*piece)), text_of_bytes(std::span(whole).subspan(46 * 4, 23 * 4)));
}

TEST(Checkpoint, OldOnesGoAndTheNewestStays) {
  TempFolder root;
  const CheckpointWriter writer(root.path(), {.keep = 2});
  for (const int64_t step : {1, 2, 3, 10}) ASSERT_TRUE(save(writer, step, made_up_state(0)).ok());
  EXPECT_EQ(names_in(root.path()), (std::set<std::string>{"latest", "step-3", "step-10"}));
  EXPECT_EQ(read_file(root / "latest"), "step-10\n");
}

// Damaged checkpoints neither count as kept nor are they removed.
TEST(Checkpoint, RetentionCountsWholeCheckpointsOnly) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path(), {.keep = 9}), 1, made_up_state(0)).ok());
  ASSERT_TRUE(save(CheckpointWriter(root.path(), {.keep = 9}), 2, made_up_state(0)).ok());
  std::filesystem::remove(root / "step-2/rank-00001.safetensors");
  ASSERT_TRUE(save(CheckpointWriter(root.path(), {.keep = 2}), 3, made_up_state(0)).ok());
  EXPECT_EQ(names_in(root.path()), (std::set<std::string>{"latest", "step-1", "step-2", "step-3"}));
}

// A run that went back to step 2 saves below the highest step: what it just saved must survive its own clean-up.
TEST(Checkpoint, AfterARewindTheNewSaveStays) {
  TempFolder root;
  const CheckpointWriter writer(root.path(), {.keep = 1});
  ASSERT_TRUE(save(CheckpointWriter(root.path(), {.keep = 9}), 5, made_up_state(5)).ok());
  ASSERT_TRUE(save(writer, 3, made_up_state(3)).ok());
  auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->run().step, 3);
  expect_state(*reader, made_up_state(3), 1);
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  TempFolder root;
  const CheckpointWriter writer(root.path());
  ASSERT_TRUE(save(writer, 1, made_up_state(1)).ok());
  ASSERT_TRUE(save(writer, 1, made_up_state(2), 3).ok());
  EXPECT_EQ(names_in(root.path()), (std::set<std::string>{"latest", "step-1"}));
  auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  expect_state(*reader, made_up_state(2), 2);
}

TEST(Checkpoint, LeftoversOfDeadRunsGoWithTheNextSave) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(0)).ok());
  for (const char* name :
       {"step-2.tmp-0123", "step-0.removed-0123", "step-1.replaced-0123", "step-9.replaced-0123", "notes"}) {
    std::filesystem::create_directory(root / name);
    write_file(root / name / "f", "x");
  }
  write_file(root / "latest.tmp-step-1", "st");
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 2, made_up_state(0)).ok());
  // step-9.replaced has no successor: it may be all that is left of step 9.
  EXPECT_EQ(names_in(root.path()),
            (std::set<std::string>{"latest", "notes", "step-1", "step-2", "step-9.replaced-0123"}));
}

struct TwoSaves {
  TempFolder root;
  TwoSaves() {
    EXPECT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(1), 4).ok());
    EXPECT_TRUE(save(CheckpointWriter(root.path()), 2, made_up_state(2), 4).ok());
  }
  std::string place(const std::string& name) const { return (root / name).string(); }
  // Step 2 is damaged: asking for it fails with `problem`, asking for the root gives step 1 and says why.
  void expect_fallback(const std::string& where, const std::string& problem) const {
    const auto direct = CheckpointReader::open(root / "step-2");
    ASSERT_FALSE(direct.ok());
    EXPECT_EQ(direct.error().where, where);
    EXPECT_EQ(direct.error().problem, problem);
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    EXPECT_EQ(reader->run().step, 1);
    EXPECT_EQ(reader->fallback_reason(), direct.error().message() + "; using step-1 instead");
    expect_state(*reader, made_up_state(1), 3);
  }
};

TEST(CheckpointDamage, EveryFlippedByteOfAShardIsFound) {
  TwoSaves saves;
  const std::filesystem::path shard = saves.root / "step-2/rank-00001.safetensors";
  const size_t size = std::filesystem::file_size(shard);
  for (size_t position = 0; position < size; ++position) {
    flip_byte(shard, position);
    const auto reader = CheckpointReader::open(saves.root / "step-2");
    ASSERT_FALSE(reader.ok()) << "byte " << position;
    ASSERT_NE(reader.error().where.find("rank-00001.safetensors"), std::string::npos);
    flip_byte(shard, position);
  }
  EXPECT_TRUE(CheckpointReader::open(saves.root / "step-2").ok());
}

// moment1 is the only 1-byte tensor, so it lies last: elements [23, 46) of rank 1.
TEST(CheckpointDamage, AFlippedByteIsNamedAndPassedOver) {
  TwoSaves saves;
  const std::string shard = saves.place("step-2/rank-00001.safetensors");
  flip_byte(shard, std::filesystem::file_size(shard) - 1);
  saves.expect_fallback(shard + " (moment1/layers.0.qkv.weight)", "elements [23, 46) do not match their hash");
}

TEST(CheckpointDamage, PiecesAreVerifiedWhenRead) {
  TwoSaves saves;
  const std::string shard = saves.place("step-2/rank-00001.safetensors");
  flip_byte(shard, std::filesystem::file_size(shard) - 1);
  auto reader = CheckpointReader::open(saves.root.path(), Verify::kFiles);
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(reader->run().step, 2);
  std::vector<std::byte> out(10);
  const StateKey key = {"moment1", "layers.0.qkv.weight"};
  EXPECT_TRUE(reader->read(key, DType::kUint8, 13, 23, out).ok());
  const Status status = reader->read(key, DType::kUint8, 14, 24, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().problem, "elements [23, 46) do not match their hash");
}

TEST(CheckpointDamage, ATruncatedShardIsNamed) {
  TwoSaves saves;
  const std::string shard = saves.place("step-2/rank-00003.safetensors");
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 1);
  saves.expect_fallback(shard, "has " + std::to_string(size - 1) + " bytes, the manifest says " + std::to_string(size));
}

// What rank 3 holds of six non-empty tensors over 4 ranks: master, moment1, moment2 and params of qkv ([69, 91)) and
// norm.weight ([15, 17)); the scalar is on rank 0.
TEST(CheckpointDamage, AMissingShardIsNamedWithWhatItHeld) {
  TwoSaves saves;
  const std::string shard = saves.place("step-2/rank-00003.safetensors");
  std::filesystem::remove(shard);
  saves.expect_fallback(shard, "missing; it holds master/layers.0.qkv.weight [69, 91) and 4 other pieces");
}

TEST(CheckpointDamage, AnEditedManifestIsFound) {
  TwoSaves saves;
  const std::string path = saves.place("step-2/manifest.json");
  std::string text = read_file(path);
  const size_t position = text.find("\"samples_consumed\": 64");  // 2 x 32
  ASSERT_NE(position, std::string::npos);
  text.replace(position, 22, "\"samples_consumed\": 65");
  write_file(path, text);
  saves.expect_fallback(path, "content does not match its checksum");
}

TEST(CheckpointDamage, AMissingManifestIsNamed) {
  TwoSaves saves;
  std::filesystem::remove(saves.root / "step-2/manifest.json");
  saves.expect_fallback(saves.place("step-2/manifest.json"), "cannot open: No such file or directory");
}

TEST(CheckpointDamage, EveryFlippedByteOfAManifestIsHarmlessOrFound) {
  TempFolder root;
  WholeState small;
  small[{"params", "w"}] = made_up_tensor(DType::kUint8, {3}, 1);
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, small, 1).ok());
  const std::filesystem::path path = root / "step-1/manifest.json";
  const std::string whole = read_file(path);
  for (size_t position = 0; position < whole.size(); ++position) {
    for (const int flip : {0x01, 0x10, 0x20, 0x80}) {
      std::string damaged = whole;
      damaged[position] = static_cast<char>(damaged[position] ^ flip);
      write_file(path, damaged);
      auto reader = CheckpointReader::open(root / "step-1");
      if (!reader.ok()) continue;
      // Only white space between tokens is not covered by the checksum.
      EXPECT_NE(std::string(" \n\t\r").find(damaged[position]), std::string::npos) << position;
      EXPECT_EQ(reader->run(), run_at(1));
    }
  }
}

TEST(CheckpointDamage, ALostLatestIsReplacedByTheNewest) {
  TwoSaves saves;
  std::filesystem::remove(saves.root / "latest");
  auto missing = CheckpointReader::open(saves.root.path());
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(missing->run().step, 2);
  EXPECT_EQ(missing->fallback_reason(), saves.place("latest") + ": missing; using step-2 instead");
  for (const char* text : {"", "step-", "step-2x", "../step-2", "step--2", "step-2\n\n"}) {
    write_file(saves.root / "latest", text);
    auto damaged = CheckpointReader::open(saves.root.path());
    ASSERT_TRUE(damaged.ok());
    EXPECT_EQ(damaged->run().step, 2);
    EXPECT_EQ(damaged->fallback_reason(), saves.place("latest") + ": does not name a checkpoint; using step-2 instead");
  }
}

TEST(CheckpointDamage, WithoutAWholeCheckpointTheNewestDamageIsTold) {
  TwoSaves saves;
  for (const char* name : {"step-1", "step-2"}) std::filesystem::remove(saves.root / name / "rank-00000.safetensors");
  const auto reader = CheckpointReader::open(saves.root.path());
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().where, saves.root.path().string());
  EXPECT_TRUE(reader.error().problem.starts_with(
      "no whole checkpoint among 2; the newest: " + saves.place("step-2/rank-00000.safetensors") + ": missing;"))
      << reader.error().problem;
}

TEST(CheckpointDamage, FoldersWithoutCheckpoints) {
  TempFolder root;
  EXPECT_EQ(CheckpointReader::open(root.path()).error().problem, "holds no checkpoint");
  EXPECT_EQ(CheckpointReader::open(root / "nothing").error().problem, "no such folder");
}

TEST(CheckpointRead, WrongRequestsAreAnswered) {
  TempFolder root;
  ASSERT_TRUE(save(CheckpointWriter(root.path()), 1, made_up_state(0)).ok());
  auto reader = CheckpointReader::open(root.path());
  ASSERT_TRUE(reader.ok());
  std::vector<std::byte> out(4);
  const std::string folder = (root / "step-1").string();
  const Status unknown = reader->read({"params", "norm.wieght"}, DType::kFloat32, 0, 1, out);
  EXPECT_EQ(unknown.error().message(),
            folder + " (params/norm.wieght): no such tensor (did you mean params/norm.weight?)");
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{17, 18}, {-1, 0}, {3, 2}}) {
    const Status outside = reader->read({"params", "norm.weight"}, DType::kFloat32, begin, end, out);
    EXPECT_EQ(outside.error().message(), folder + " (params/norm.weight): elements [" + std::to_string(begin) + ", " +
                                             std::to_string(end) + ") are not within its 17");
  }
}

}  // namespace
}  // namespace fivefold
