#include "data/conversation_rows.h"

#include <gtest/gtest.h>

#include <set>

#include "data/dataset.h"
#include "data/temporary_folder.h"

namespace fivefold {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kNone = kIgnoredTarget;

// Ids and, in the second list, whether they count:
//   0:  1  2  3  4        4 tokens, 3 and 4 count
//   1: 11 12 13           3 tokens, 13 counts
//   2: 21 22 23 24 25 26  6 tokens, 22 and 26 count
//   3: 31 32              2 tokens, 32 counts
//   4: 41 42 43           3 tokens, only 41 counts, which is no target
class ConversationRowsTest : public testing::Test {
 protected:
  ConversationRowsTest() {
    write("x", {{1, 2, 3, 4}, {11, 12, 13}, {21, 22, 23, 24, 25, 26}, {31, 32}, {41, 42, 43}});
    write("counted", {{0, 0, 1, 1}, {0, 0, 1}, {0, 1, 0, 0, 0, 1}, {0, 1}, {1, 0, 0}});
  }
  void write(const char* name, const std::vector<Ids>& documents) {
    TokenFileWriter writer(folder_.path() / name, TokenType::kUint8);
    for (const Ids& document : documents) writer.add_document(document);
    writer.finish();
  }
  Result<Dataset> dataset(int64_t sequence, Packing packing, std::optional<uint64_t> seed = {}) const {
    FIVEFOLD_ASSIGN(TokenFile tokens, TokenFile::open(folder_.path() / "x", 100));
    FIVEFOLD_ASSIGN(TokenFile counted, TokenFile::open(folder_.path() / "counted", 2));
    FIVEFOLD_ASSIGN(auto rows,
                    ConversationRows::create(std::move(tokens), std::move(counted), sequence, packing, seed));
    return Dataset(std::move(rows), sequence);
  }
  TemporaryFolder folder_;
};

// Rows of 6: 4 places for conversation 0; 3 for the next do not fit its 2 left, so a new row; 6 fill a third; 2 go into
// the 2 that are left in the first, which is the least room that holds them (the second row has 3).
TEST_F(ConversationRowsTest, WholeConversationsWhereTheyFitBest) {
  const auto data = dataset(6, Packing::kDocuments);
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ(data->num_samples(), 3);
  EXPECT_EQ(data->num_tokens(), 4 + 3 + 6 + 2);
  const auto batch = data->fixed_batch(0, 3);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->input_ids, (Ids{1, 2, 3, 4, 31, 32, 11, 12, 13, 0, 0, 0, 21, 22, 23, 24, 25, 26}));
  EXPECT_EQ(batch->targets, (Ids{kNone, 3, 4, kNone, 32, kNone,          //
                                 kNone, 13, kNone, kNone, kNone, kNone,  //
                                 22, kNone, kNone, kNone, 26, kNone}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{4, 2}, {3, 3}, {6}}));
  EXPECT_EQ(batch->valid_tokens, 3 + 1 + 2);
  EXPECT_EQ(data->remarks(),
            std::vector<std::string>{"1 of 5 conversations are left out: none of their first 7 tokens counts"});
}

TEST_F(ConversationRowsTest, OneBlockARowWhenConcatenated) {
  const auto data = dataset(6, Packing::kConcatenate);
  const auto batch = data->fixed_batch(1, 1);
  EXPECT_EQ(batch->input_ids, (Ids{11, 12, 13, 0, 0, 0}));
  EXPECT_EQ(batch->positions, (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch->document_lengths, (std::vector<Ids>{{6}}));
}

// Rows of 3: conversation 0 takes 3 places with its fourth token as the last target, nothing lost. Conversation 2 keeps
// 4 of its 6.
TEST_F(ConversationRowsTest, LongerConversationsAreCutAndCounted) {
  const auto data = dataset(3, Packing::kDocuments);
  ASSERT_TRUE(data.ok());
  const auto batch = data->fixed_batch(0, 4);
  EXPECT_EQ(batch->input_ids, (Ids{1, 2, 3, 11, 12, 13, 21, 22, 23, 31, 32, 0}));
  EXPECT_EQ(batch->targets, (Ids{kNone, 3, 4, kNone, 13, kNone, 22, kNone, kNone, 32, kNone, kNone}));
  EXPECT_EQ(data->num_tokens(), 4 + 3 + 4 + 2);
  EXPECT_EQ(data->remarks().at(0),
            "1 of 5 conversations are longer than 4 tokens: 2 tokens are cut off (batch.sequence = 5 keeps all)");
}

TEST_F(ConversationRowsTest, NothingLeftIsAnError) {
  // Of the first 2 tokens only conversations 2 and 3 have one that counts; without these files nothing does.
  EXPECT_EQ(dataset(1, Packing::kDocuments)->num_samples(), 2);
  write("counted", {{1, 0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0, 0, 0}, {1, 0}, {1, 0, 0}});
  EXPECT_EQ(dataset(6, Packing::kDocuments).error().problem,
            "no conversation has a token that counts among its first 7");
  write("counted", {{1, 0, 0, 0}});
  EXPECT_EQ(dataset(6, Packing::kDocuments).error().problem,
            "is not of the same conversations as " + (folder_.path() / "x.bin").string());
  write("counted", {{1, 0, 0, 0}, {0, 0}, {0, 0, 0, 0, 0, 0}, {1, 0}, {1, 0, 0}});
  EXPECT_EQ(dataset(6, Packing::kDocuments).error().problem, "conversation 1 has another length");
}

// 200 conversations of 2 to 6 tokens, all of another id: a seed decides about the rows, each conversation is in one of
// them, and a batch of an order is the same whenever it is asked for.
TEST_F(ConversationRowsTest, ASeedDecidesAboutRows) {
  std::vector<Ids> ids, counted;
  for (int32_t i = 0; i < 200; ++i) {
    ids.emplace_back(static_cast<size_t>(2 + i % 5), i);
    counted.emplace_back(ids.back().size(), 1);
  }
  write("x", ids);
  write("counted", counted);
  const auto open = [&](std::optional<uint64_t> seed) {
    auto tokens = TokenFile::open(folder_.path() / "x", 200);
    auto marks = TokenFile::open(folder_.path() / "counted", 2);
    return Dataset(*ConversationRows::create(std::move(*tokens), std::move(*marks), 16, Packing::kDocuments, seed), 16);
  };
  const Dataset one = open(1), same = open(1), two = open(2), file = open({});
  const auto all = [](const Dataset& data) { return data.fixed_batch(0, data.num_samples())->input_ids; };
  EXPECT_EQ(all(one), all(same));
  EXPECT_NE(all(one), all(two));
  const Ids in_file_order = all(file);
  EXPECT_EQ(Ids(in_file_order.begin(), in_file_order.begin() + 5), (Ids{0, 0, 1, 1, 1}));
  std::multiset<int32_t> seen;
  for (const int32_t id : all(one)) seen.insert(id);
  for (int32_t i = 1; i < 200; ++i) EXPECT_EQ(seen.count(i), static_cast<size_t>(2 + i % 5)) << i;
  EXPECT_LE(one.num_samples(), 53);  // 800 tokens are 50 rows; best fit wastes a few places

  const SampleOrder order(one.num_samples(), 7);
  EXPECT_EQ(one.batch(order, 40, 2)->input_ids, same.batch(order, 40, 2)->input_ids);
}

}  // namespace
}  // namespace fivefold
