#include "data/dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "data/temporary_folder.h"

namespace fivefold {
namespace {

constexpr int32_t kEos = 99;
using Ids = std::vector<int32_t>;

// Stream (E = <eos>, already there in the second document): 1 2 3 E | 4 E | (empty) | 5 6 7 8 9 10 E | 11 E
// positions                                                 0       4                6                 13   .. 15
class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    TokenFileWriter writer(folder_.path() / "x", TokenType::kUint16);
    for (const Ids& document : {Ids{1, 2, 3}, Ids{4, kEos}, Ids{}, Ids{5, 6, 7, 8, 9, 10}, Ids{11}}) {
      writer.add_document(document);
    }
    writer.finish();
  }
  Result<Dataset> dataset(int64_t sequence, Packing packing) const {
    FIVEFOLD_ASSIGN(TokenFile file, TokenFile::open(folder_.path() / "x", 100));
    return Dataset::create(std::move(file), sequence, packing, kEos);
  }
  TemporaryFolder folder_;
};

TEST_F(DatasetTest, ConcatenatesAcrossDocuments) {
  const auto data = dataset(4, Packing::kConcatenate);
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->num_tokens(), 15);
  EXPECT_EQ(data->num_samples(), 3);  // (15 - 1) / 4
  const auto batch = data->fixed_batch(0, 3);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->input_ids, (Ids{1, 2, 3, kEos, 4, kEos, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch->targets, (Ids{2, 3, kEos, 4, kEos, 5, 6, 7, 8, 9, 10, kEos}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{4}, {4}, {4}}));
  EXPECT_EQ(batch->valid_tokens, 12);
}

// Row 0: 1 2 3 E, whose next token 4 begins a document: ignored. Row 1: 4 E | 5 6. Row 2 continues that document.
TEST_F(DatasetTest, KeepsDocumentsApart) {
  const auto data = dataset(4, Packing::kDocuments);
  ASSERT_TRUE(data.ok());
  const auto batch = data->fixed_batch(0, 3);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->input_ids, (Ids{1, 2, 3, kEos, 4, kEos, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch->targets, (Ids{2, 3, kEos, -100, kEos, -100, 6, 7, 8, 9, 10, kEos}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{4}, {2, 2}, {4}}));
  EXPECT_EQ(batch->valid_tokens, 10);
}

TEST_F(DatasetTest, HoldsManyDocumentsInOneRow) {
  const auto data = dataset(14, Packing::kDocuments);
  ASSERT_TRUE(data.ok());
  const auto batch = data->fixed_batch(0, 1);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->input_ids, (Ids{1, 2, 3, kEos, 4, kEos, 5, 6, 7, 8, 9, 10, kEos, 11}));
  EXPECT_EQ(batch->targets, (Ids{2, 3, kEos, -100, kEos, -100, 6, 7, 8, 9, 10, kEos, -100, kEos}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{4, 2, 7, 1}}));
  EXPECT_EQ(batch->valid_tokens, 11);
}

TEST_F(DatasetTest, ValidationPadsTheLastBatchWithIgnoredRows) {
  const auto data = dataset(4, Packing::kConcatenate);
  ASSERT_TRUE(data.ok());
  const auto batch = data->fixed_batch(2, 2);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->rows, 2);
  EXPECT_EQ(batch->input_ids, (Ids{7, 8, 9, 10, 0, 0, 0, 0}));
  EXPECT_EQ(batch->targets, (Ids{8, 9, 10, kEos, -100, -100, -100, -100}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{4}, {4}}));
  EXPECT_EQ(batch->valid_tokens, 4);
  const auto beyond = data->fixed_batch(4, 1);
  ASSERT_TRUE(beyond.ok());
  EXPECT_EQ(beyond->valid_tokens, 0);
}

TEST_F(DatasetTest, TrainingBatchesFollowTheOrder) {
  const auto data = dataset(2, Packing::kConcatenate);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(data->num_samples(), 7);
  const SampleOrder order(7, 5);
  std::multiset<Ids> epoch, expected;
  for (int64_t position = 0; position < 7; ++position) {
    const auto one = data->batch(order, position, 1);
    const auto same = data->fixed_batch(order.sample_at(position), 1);
    ASSERT_TRUE(one.ok() && same.ok());
    EXPECT_EQ(one->input_ids, same->input_ids);
    EXPECT_EQ(one->targets, same->targets);
    epoch.insert(one->input_ids);
    expected.insert(data->fixed_batch(position, 1)->input_ids);
  }
  EXPECT_EQ(epoch, expected);
  const auto pair = data->batch(order, 6, 2);  // across the end of the epoch
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(Ids(pair->input_ids.begin(), pair->input_ids.begin() + 2), data->batch(order, 6, 1)->input_ids);
  EXPECT_EQ(Ids(pair->input_ids.begin() + 2, pair->input_ids.end()), data->batch(order, 7, 1)->input_ids);
}

TEST_F(DatasetTest, ReportsAnIdBeyondTheVocabulary) {
  auto file = TokenFile::open(folder_.path() / "x", 10);  // token 10 is one too many
  ASSERT_TRUE(file.ok());
  const auto data = Dataset::create(std::move(*file), 4, Packing::kConcatenate, 9);
  ASSERT_FALSE(data.ok());  // found already when the ends of the documents are looked at
  EXPECT_NE(data.error().problem.find("is outside the vocabulary of 10"), std::string::npos);
}

TEST_F(DatasetTest, RefusesAFileThatFillsNoSample) {
  EXPECT_TRUE(dataset(14, Packing::kConcatenate).ok());
  const auto data = dataset(15, Packing::kConcatenate);
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.error().problem, "15 tokens do not fill one sample of 15 + 1");
  EXPECT_EQ(data.error().hint, "batch.sequence of at most 14");
}

TEST(OpenDataset, ReadsTextOnceAndThenItsTokenFile) {
  const TemporaryFolder folder;
  const DatasetOptions options{
      .source = folder.write("t.txt", "abcdef"), .sequence = 3, .cache_folder = folder.path() / "cache"};
  const auto tokenizer = make_byte_tokenizer();
  for (int time = 0; time < 2; ++time) {
    const auto data = open_dataset(options, *tokenizer);
    ASSERT_TRUE(data.ok()) << data.error().message();
    EXPECT_EQ(data->num_samples(), 2);
    EXPECT_EQ(data->fixed_batch(1, 1)->targets, (Ids{'e', 'f', 256}));
  }
  // The pair that was made is a source of its own.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "cache")) {
    const auto data = open_dataset({.source = entry.path(), .sequence = 3}, *tokenizer);
    ASSERT_TRUE(data.ok()) << data.error().message();
    EXPECT_EQ(data->num_tokens(), 7);
  }
}

TEST(OpenDataset, GoesByTheExtension) {
  const TemporaryFolder folder;
  const auto path = folder.write("t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n");
  const auto data =
      open_dataset({.source = path, .sequence = 5, .cache_folder = folder.path()}, *make_byte_tokenizer());
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->fixed_batch(0, 1)->input_ids, (Ids{'a', 'b', 256, 'c', 'd'}));
}

}  // namespace
}  // namespace fivefold
