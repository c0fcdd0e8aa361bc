#include "megatron/data/samples/chats/sft.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <utility>

#include "megatron/data/part_dataset.h"
#include "tests/data/byte_tokenizer.h"
#include "tests/data/part_verdict.h"
#include "tests/data/support.h"
#include "tests/testing/folders.h"

namespace megatron::data {
namespace {

using testing::HasSubstr;

const std::string kJinja =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}";

text::Tokenizer tokenizer() { return byte_tokenizer({"<|im_start|>", "<|im_end|>"}); }
text::ChatTemplate chat_template() { return {kJinja, {{"eos_token", "<|im_end|>"}}, "test"}; }

/// The text of the tokens that are learned and of those that are not.
std::pair<std::string, std::string> shown(const std::vector<std::int32_t>& tokens) {
  std::pair<std::string, std::string> texts;
  const text::Tokenizer model = tokenizer();
  for (const std::int32_t token : tokens)
    (token < 0 ? texts.second : texts.first) += model.id_to_bytes(token < 0 ? ~token : token);
  return texts;
}

TEST(Sft, LearnsTheAssistantsTurnsAndNothingElse) {
  const std::vector<text::ChatMessage> talk = {{"user", "hi"}, {"assistant", "yö"}, {"user", "and"}, {"assistant", ""}};
  text::Encoder encoder = tokenizer().encoder();
  const auto [learned, given] = shown(encode_chat(chat_template().render(talk), encoder));
  EXPECT_EQ(learned, "yö<|im_end|><|im_end|>");
  EXPECT_EQ(given,
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n<|im_start|>user\nand<|im_end|>\n<|im_start|>"
            "assistant\n\n");
}

TEST(Sft, EncodesAConversationAsOneTextWhateverItsTokenizerAddsOrDrops) {
  const std::string before = "<s>[INST] The tokenizer [/INST]", answer = " hello world </s>", after = "<s>[INST] a";
  const text::RenderedChat chat = {before + answer + after, {{before.size(), before.size() + answer.size()}}};
  // The ids whose offsets in Hugging Face tokenizers are within the answer.
  const std::vector<std::pair<const char*, std::vector<std::int32_t>>> cases = {
      {"llama.json", {123, 89, 53, 77, 92, 152, 70, 1}},
      {"llama_first.json", {123, 89, 53, 77, 92, 152, 70, 1}},
      {"bert.json", {99, 85, 44, 216, 138, 0, 0, 34, 0}},
      {"qwen.json", {305, 274, 81, 264, 277, 78, 70, 223, 1}},
      {"t5.json", {69, 28, 7, 105, 8, 87, 1}}};
  for (const auto& [file, expected] : cases) {
    const auto model = text::Tokenizer::load(std::filesystem::path(tests_folder()) / "golden/tokenizers" / file);
    text::Encoder encoder = model.encoder();
    std::vector<std::int32_t> ids, learned;
    for (const std::int32_t token : encode_chat(chat, encoder)) {
      if (token >= 0) learned.push_back(token);
      ids.push_back(token < 0 ? ~token : token);
    }
    EXPECT_EQ(ids, model.encode(chat.text, text::Specials::Recognised)) << file;
    EXPECT_EQ(learned, expected) << file;
  }
}

std::string line(const std::string& user, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + user + R"("}, {"role": "assistant", "content": ")" +
         answer + "\"}]}\n";
}

PartSpec part_of(const std::string& path, bool packed) {
  PartSpec spec{.blend = {.prefixes = {path}, .weights = {}},
                .split = "1",
                .packed = packed,
                .tokenizer = tokenizer(),
                .chat = chat_template()};
  spec.index = {.seq_length = 100, .seed = 3};
  return spec;
}

TEST(Sft, MakesSamplesOfConversationsAloneOrPacked) {
  TemporaryFolder folder;
  write_bytes(folder / "chats.jsonl", line("a", "bc") + line("d", "efg"));
  const auto alone = open_part(part_of(folder / "chats.jsonl", false), {});
  ASSERT_EQ(alone->size(), 2);
  std::vector<std::int64_t> labels(100);
  std::vector<float> mask(100);
  std::vector<std::string> answers;
  for (std::int64_t i = 0; i < 2; ++i) {
    alone->get(i, {.labels = labels, .loss_mask = mask});
    answers.emplace_back();
    for (std::size_t k = 0; k < 100; ++k)
      if (mask[k] == 1) answers.back() += tokenizer().id_to_bytes(static_cast<std::int32_t>(labels[k]));
  }
  EXPECT_THAT(answers, testing::UnorderedElementsAre("bc<|im_end|>", "efg<|im_end|>"));
  const auto packed = open_part(part_of(folder / "chats.jsonl", true), {});
  ASSERT_EQ(packed->size(), 1);
  packed->get(0, {.labels = labels, .loss_mask = mask});
  EXPECT_EQ(std::ranges::count(mask, 1.0f), 3 + 4);
}

TEST(Sft, TokenizesAFileOnceAndAgainWhenItChanges) {
  TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  write_bytes(path, line("a", "b"));
  const auto build = [&] { return build_chat_pair(path, tokenizer(), chat_template(), "", {}); };
  const std::string prefix = build();
  EXPECT_THAT(prefix, HasSubstr(folder / "cache/SFTDataset_indices"));
  EXPECT_EQ(build(), prefix);
  write_bytes(path, line("a", "b") + line("c", "d"));
  EXPECT_NE(build(), prefix);
  EXPECT_EQ(IndexedDataset(build()).size(), 2);
  EXPECT_NE(build_chat_pair(path, byte_tokenizer({"<|im_start|>", "<|im_end|>", "<x>"}), chat_template(), "", {}),
            build());
}

TEST(Sft, NamesTheLineThatIsNoConversation) {
  TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  for (const char* wrong :
       {"[]", "{}", "{\"messages\": 3}", "{\"messages\": []}", "{\"messages\": [3]}", "{",
        R"({"messages": [{"role": "user"}]})", R"({"messages": [{"role": "user", "content": null}]})",
        R"({"messages": [{"role": "robot", "content": ""}]})"}) {
    write_bytes(path, line("a", "b") + wrong + "\n");
    try {
      build_chat_pair(path, tokenizer(), chat_template(), "", {});
      FAIL() << wrong;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path + ", line 2: ")) << wrong;
    }
  }
  EXPECT_THROW(build_chat_pair(folder / "none", tokenizer(), chat_template(), "", {}), ConfigError);
}

TEST(Sft, RefusesConversationsNestedSoDeepThatReadingThemTakesGigabytes) {
  TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const auto nested = [&](std::size_t depth) {
    std::string deep = line("a", "b");
    deep.insert(1, "\"tools\": " + std::string(depth, '[') + std::string(depth, ']') + ", ");
    write_bytes(path, deep);
    return build_chat_pair(path, tokenizer(), chat_template(), "", {});
  };
  EXPECT_EQ(IndexedDataset(nested(500)).size(), 1);
  EXPECT_THROW(nested(5000), ConfigError);
}

/// What check_part() throws or says of conversations.
std::string verdict(const std::string& chats, std::int64_t seq_length, bool packed = false) {
  TemporaryFolder folder;
  write_bytes(folder / "chats.jsonl", chats);
  PartSpec spec = part_of(folder / "chats.jsonl", packed);
  spec.index.seq_length = seq_length;
  return verdict_of(spec);
}

TEST(Sft, RefusesConversationsOfWhichNothingIsLearned) {
  const std::string asked = R"({"messages": [{"role": "user", "content": "hello"}]})"
                            "\n";
  EXPECT_THAT(verdict(asked + asked, 100), HasSubstr("2 conversations without one"));
  // <|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n: the y is token 24 from 0.
  EXPECT_THAT(verdict(line("hello", "yes"), 23), HasSubstr("none of 1 conversations has one there"));
  EXPECT_EQ(verdict(line("hello", "yes"), 23, /*packed=*/true), "");
  EXPECT_EQ(verdict(line("hello", "yes") + asked, 27), "");
}

TEST(Sft, SaysWhatShareOfTheLearnedTokensIsCutOff) {
  EXPECT_THAT(verdict(line("hello", "yes"), 24), HasSubstr("75 % of the tokens to learn (3 of 4)"));
  EXPECT_THAT(verdict(line("hello", "yes") + line("a", "b"), 26), HasSubstr("16.7 % of the tokens to learn (1 of 6)"));
  EXPECT_EQ(verdict(line("hello", "yes") + line("a", "b"), 26, /*packed=*/true), "");
  TemporaryFolder folder;
  write_bytes(folder / "chats.jsonl", line("hello", "yes"));
  PartSpec spec = part_of(folder / "chats.jsonl", false);
  spec.index.seq_length = 24;
  std::vector<float> mask(24);
  open_part(spec, {})->get(0, {.loss_mask = mask});
  EXPECT_EQ(std::ranges::count(mask, 1.0f), 1);
}

TEST(Sft, SaysForWhomTheCheckOfAPartWaits) {
  TemporaryFolder folder;
  write_bytes(folder / "chats.jsonl", line("a", "b"));
  const PartSpec spec = part_of(folder / "chats.jsonl", false);
  const std::string prefix =
      build_chat_pair(folder / "chats.jsonl", tokenizer(), chat_template(), spec.cache_folder, {});
  std::filesystem::remove(prefix + ".idx");
  // Another process builds: it holds the lock until the check has said so.
  const int lock = ::open((prefix.substr(0, prefix.size() - 5) + "lock").c_str(), O_RDWR);
  ASSERT_GE(lock, 0);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  std::promise<std::string> said;
  auto checked = std::async(std::launch::async, [&] {
    check_part(
        spec, [](const auto&) {},
        [&, first = true](const std::string& text) mutable {
          if (std::exchange(first, false)) said.set_value(text);  // it says so again and again
        });
  });
  auto text = said.get_future();
  const auto heard = text.wait_for(std::chrono::seconds(20));
  ::close(lock);
  checked.get();
  ASSERT_EQ(heard, std::future_status::ready);
  EXPECT_THAT(text.get(), HasSubstr("waiting for " + prefix));
}

}  // namespace
}  // namespace megatron::data
