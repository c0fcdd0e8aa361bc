#include "megatron/data/files/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "megatron/base/error.h"
#include "megatron/data/files/pair_summary.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;

std::string golden(const std::string& name) { return shared_folder() + "/golden/megatron/indexed/" + name; }

class MegatronPair : public testing::TestWithParam<const char*> {};

TEST_P(MegatronPair, IsReadAndWrittenAgainToTheByte) {
  if (!std::filesystem::exists(shared_folder())) GTEST_SKIP() << "no " << shared_folder();
  const IndexedDataset original(golden(GetParam()));
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "copy", original.dtype());
  for (std::int64_t d = 0; d < original.num_documents(); ++d) {
    std::vector<std::int32_t> tokens, lengths;
    std::vector<std::int8_t> modes;
    for (std::int64_t s = original.first_sequence(d); s < original.first_sequence(d + 1); ++s) {
      std::vector<std::int64_t> sequence(static_cast<std::size_t>(original.length(s)));
      original.read(s, 0, sequence);
      tokens.insert(tokens.end(), sequence.begin(), sequence.end());
      lengths.push_back(static_cast<std::int32_t>(sequence.size()));
      if (original.has_modes()) modes.push_back(original.mode(s));
    }
    writer.add_document(tokens, lengths, modes);
  }
  writer.publish();
  EXPECT_EQ(read_bytes(folder / "copy.idx"), read_bytes(golden(GetParam()) + ".idx"));
  EXPECT_EQ(read_bytes(folder / "copy.bin"), read_bytes(golden(GetParam()) + ".bin"));
  EXPECT_EQ(original.verify() * static_cast<std::int64_t>(item_size(original.dtype())), original.bin_bytes());
}
INSTANTIATE_TEST_SUITE_P(Indexed, MegatronPair,
                         testing::Values("gpt_a_text_document", "gpt_b_text_document", "gpt_c_text_document",
                                         "gpt_merged_text_document", "gpt_modes_text_document", "bert_text_sentence"));

TEST(IndexedDataset, MergesPairsAsMegatronDoes) {
  if (!std::filesystem::exists(shared_folder())) GTEST_SKIP() << "no " << shared_folder();
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "merged", DType::U16);
  writer.add_dataset(IndexedDataset(golden("gpt_b_text_document")));
  // Megatron's merge of a pair with modes drops them.
  const auto idx = read_bytes(golden("gpt_modes_text_document.idx"));
  const auto bin = read_bytes(golden("gpt_modes_text_document.bin"));
  const IndexedDataset with_modes(as_bytes(idx), as_bytes(bin), "modes");
  const auto without = std::string_view(idx).substr(0, idx.size() - static_cast<std::size_t>(with_modes.size()));
  writer.add_dataset(IndexedDataset(as_bytes(without), as_bytes(bin), "without"));
  writer.publish();
  EXPECT_EQ(read_bytes(folder / "merged.idx"), read_bytes(golden("gpt_merged_text_document.idx")));
  EXPECT_EQ(read_bytes(folder / "merged.bin"), read_bytes(golden("gpt_merged_text_document.bin")));
}

/// Three sequences in two documents, uint16: idx = 34 + 3*4 + 3*8 + 3*8 = 94 bytes, bin = 12 bytes.
struct SmallPair {
  SmallPair() {
    TemporaryFolder folder;
    IndexedDatasetWriter writer(folder / "small", DType::U16);
    writer.add_document(std::vector<std::int32_t>{1, 2, 65535}, std::vector<std::int32_t>{2, 1});
    writer.add_document(std::vector<std::int32_t>{7, 8, 9}, std::vector<std::int32_t>{3});
    writer.publish();
    idx = read_bytes(folder / "small.idx");
    bin = read_bytes(folder / "small.bin");
  }
  template <class T>
  void put(std::size_t offset, T value) {
    std::memcpy(idx.data() + offset, &value, sizeof value);
  }
  std::string idx, bin;
};

std::string message_of(const SmallPair& pair) {
  try {
    IndexedDataset(as_bytes(pair.idx), as_bytes(pair.bin), "P").verify();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(IndexedDataset, ReadsAnyPieceOfASequence) {
  const SmallPair pair;
  ASSERT_EQ(pair.idx.size(), 94u);
  const IndexedDataset data(as_bytes(pair.idx), as_bytes(pair.bin), "P");
  EXPECT_EQ(data.num_documents(), 2);
  EXPECT_EQ(data.verify(), 6);
  std::vector<std::int64_t> piece(2);
  data.read(2, 1, piece);
  EXPECT_EQ(piece, (std::vector<std::int64_t>{8, 9}));
  data.read(1, 0, std::span(piece).first(1));
  EXPECT_EQ(piece[0], 65535);
  EXPECT_THROW(data.read(2, 2, piece), ConfigError);
  EXPECT_THROW(data.read(2, -1, piece), ConfigError);
  EXPECT_THROW(data.read(3, 0, {}), ConfigError);
  EXPECT_THROW((void)data.length(-1), ConfigError);
}

TEST(IndexedDataset, NamesFileAndByteOffsetOfEachKindOfDamage) {
  const struct {
    std::function<void(SmallPair&)> damage;
    const char* at;
  } cases[] = {
      {[](SmallPair& p) { p.idx.resize(33); }, "P.idx, byte 0:"},
      {[](SmallPair& p) { p.idx[3] = 'X'; }, "P.idx, byte 0:"},
      {[](SmallPair& p) { p.put<std::uint64_t>(9, 2); }, "P.idx, byte 9:"},
      {[](SmallPair& p) { p.put<std::uint8_t>(17, 9); }, "P.idx, byte 17:"},
      {[](SmallPair& p) { p.put<std::uint64_t>(18, ~0ull); }, "P.idx, byte 18:"},
      {[](SmallPair& p) { p.put<std::uint64_t>(18, 2); }, "P.idx, byte 18:"},
      {[](SmallPair& p) { p.put<std::uint64_t>(26, 0); }, "P.idx, byte 26:"},
      {[](SmallPair& p) { p.put<std::uint64_t>(26, 1ull << 63); }, "P.idx, byte 26:"},
      {[](SmallPair& p) { p.idx += 'x'; }, "P.idx, byte 18:"},
      {[](SmallPair& p) { p.put<std::int32_t>(38, -1); }, "P.idx, byte 38:"},
      {[](SmallPair& p) { p.put<std::int32_t>(42, 1 << 30); }, "P.idx, byte 62:"},
      {[](SmallPair& p) { p.put<std::int64_t>(54, -2); }, "P.idx, byte 54:"},
      {[](SmallPair& p) { p.put<std::int64_t>(54, INT64_MAX); }, "P.idx, byte 54:"},
      {[](SmallPair& p) { p.bin.resize(11); }, "P.idx, byte 62:"},
      {[](SmallPair& p) { p.put<std::int64_t>(70, 1); }, "P.idx, byte 70:"},
      {[](SmallPair& p) { p.put<std::int64_t>(78, 4); }, "P.idx, byte 78:"},
      {[](SmallPair& p) { p.put<std::int64_t>(86, 2); }, "P.idx, byte 70:"},
  };
  for (const auto& c : cases) {
    SmallPair pair;
    c.damage(pair);
    EXPECT_THAT(message_of(pair), HasSubstr(c.at));
  }
}

TEST(PairSummary, CountsDocumentsByPowersOfTwoAndFindsTheIds) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "some", DType::I32);
  const auto add = [&](std::vector<std::int32_t> lengths, std::int32_t id) {
    std::int32_t tokens = 0;
    for (const std::int32_t length : lengths) tokens += length;
    writer.add_document(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), id), lengths);
  };
  add({}, 0);
  add({1}, 7);
  add({1, 1}, 70000);
  add({3}, 5);
  add({3, 5}, 6);
  writer.publish();
  const PairSummary summary = summarize(IndexedDataset(folder / "some"));
  EXPECT_EQ(summary.documents_by_length, (std::vector<std::int64_t>{1, 1, 2, 0, 1}));
  EXPECT_EQ(summary.tokens, 14);
  EXPECT_EQ(summary.empty_documents, 1);
  EXPECT_EQ(summary.shortest_sequence, 1);
  EXPECT_EQ(summary.longest_sequence, 5);
  EXPECT_EQ(summary.least_id, 5);
  EXPECT_EQ(summary.greatest_id, 70000);
}

TEST(PairSummary, CallsADocumentEmptyThatHasSequencesWithoutATokenAlone) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "some", DType::I32);
  for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{0}, {0, 0}, {}, {0, 1}})
    writer.add_document(std::vector<std::int32_t>(lengths == std::vector<std::int32_t>{0, 1} ? 1 : 0, 9), lengths);
  writer.publish();
  const PairSummary summary = summarize(IndexedDataset(folder / "some"));
  EXPECT_EQ(summary.empty_documents, 3);
  EXPECT_EQ(summary.documents_by_length, (std::vector<std::int64_t>{3, 1}));
}

TEST(PairSummary, RefusesSequencesThatOverlap) {
  SmallPair pair;
  pair.put<std::int32_t>(38, 6);  // the second sequence: 6 tokens, and from the start of the .bin file
  pair.put<std::int64_t>(54, 0);
  const IndexedDataset data(as_bytes(pair.idx), as_bytes(pair.bin), "P");
  EXPECT_THROW(data.verify(), ConfigError);  // what trains on a pair asks this alone
  EXPECT_THROW(summarize(data), ConfigError);
}

TEST(IndexedDatasetWriter, TakesSomeDocumentsOfAPair) {
  const SmallPair pair;
  const IndexedDataset data(as_bytes(pair.idx), as_bytes(pair.bin), "P");
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "second", DType::U16);
  writer.add_documents(data, 1, 2);
  writer.publish();
  EXPECT_EQ(read_bytes(folder / "second.bin"), pair.bin.substr(6));
  EXPECT_EQ(IndexedDataset(folder / "second").first_sequence(1), 1);
  IndexedDatasetWriter wide(folder / "wide", DType::I32);
  EXPECT_THROW(wide.add_dataset(data), ConfigError);
}

TEST(IndexedDataset, OpensAnEmptyPair) {
  TemporaryFolder folder;
  IndexedDatasetWriter(folder / "empty", DType::I32).publish();
  EXPECT_EQ(read_bytes(folder / "empty.idx").size(), 42u);  // as Megatron writes it
  const IndexedDataset empty(folder / "empty");
  EXPECT_EQ(empty.size(), 0);
  EXPECT_EQ(empty.num_documents(), 0);
}

TEST(IndexedDatasetWriter, LeavesNothingBehindWhenItIsNotPublished) {
  TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "given_up", DType::U16);
    writer.add_document(std::vector<std::int32_t>{1}, std::vector<std::int32_t>{1});
    EXPECT_FALSE(std::filesystem::exists(folder / "given_up.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder / "given_up.idx"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(IndexedDatasetWriter, RefusesATokenThatItsTypeCannotHold) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "narrow", DType::U16);
  EXPECT_THROW(writer.add_document(std::vector<std::int32_t>{65536}, std::vector<std::int32_t>{1}), std::runtime_error);
  EXPECT_THROW(writer.add_document(std::vector<std::int32_t>{-1}, std::vector<std::int32_t>{1}), std::runtime_error);
}

TEST(IndexedDatasetWriter, PicksTheDtypeByMegatronsThreshold) {
  EXPECT_EQ(dtype_for_vocabulary(65499), DType::U16);
  EXPECT_EQ(dtype_for_vocabulary(65500), DType::I32);
}

TEST(IndexedDatasetWriter, CopiesDataLargerThanItsBuffers) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "large", DType::I32);
  std::vector<std::int32_t> tokens(3000), lengths(300, 10);
  for (std::size_t d = 0; d < 700; ++d) {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(d * tokens.size() + i);
    writer.add_document(tokens, lengths);
  }
  writer.publish();
  const IndexedDataset data(folder / "large");
  EXPECT_EQ(data.size(), 210000);
  EXPECT_EQ(data.verify(), 2100000);
  std::vector<std::int64_t> sequence(10);
  for (std::int64_t s = 0; s < data.size(); s += 997) {
    data.read(s, 0, sequence);
    EXPECT_EQ(sequence[0], 10 * s);
    EXPECT_EQ(sequence[9], 10 * s + 9);
  }
}

}  // namespace
}  // namespace megatron::data
