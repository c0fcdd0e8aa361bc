#include "megatron/data/samples/chats/preferences.h"

#include <gtest/gtest.h>

#include <utility>

#include "megatron/data/files/indexed_dataset.h"
#include "tests/data/byte_tokenizer.h"
#include "tests/data/support.h"

namespace megatron::data {
namespace {

/// The texts that are learned of the two answers of a file of one line.
std::pair<std::string, std::string> answers_of(const std::string& line) {
  TemporaryFolder folder;
  write_bytes(folder / "pairs.jsonl", line + "\n");
  const text::Tokenizer model = byte_tokenizer({"<|endoftext|>"});
  const IndexedDataset pair(build_preference_pair(folder / "pairs.jsonl", model, std::nullopt, "", {}));
  const auto answer = [&](std::int64_t document) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(pair.length(document)));
    pair.read(document, 0, tokens);
    std::string learned;
    for (const std::int64_t token : tokens)
      if (token >= 0) learned += model.id_to_bytes(static_cast<std::int32_t>(token));
    return learned;
  };
  return {answer(0), answer(1)};
}

TEST(Preferences, AreReadAsPythonReadsThem) {
  const std::pair<std::string, std::string> expected = {"yes<|endoftext|>", "no<|endoftext|>"};
  EXPECT_EQ(answers_of(R"({"prompt": "a", "chosen": "yes", "rejected": "no"})"), expected);
  EXPECT_EQ(answers_of(R"({"prompt": "a", "chosen": "first", "rejected": "no", "chosen": "yes"})"), expected)
      << "a key given twice";
  EXPECT_EQ(answers_of(R"({"id": 123456789012345678901, "prompt": "a", "chosen": "yes", "rejected": "no"})"), expected);
}

}  // namespace
}  // namespace megatron::data
