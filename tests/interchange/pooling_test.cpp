#include "megatron/interchange/hugging_face/pooling.h"

#include <utility>

#include "megatron/interchange/hugging_face/companions.h"
#include "tests/interchange/support.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

using Files = std::vector<std::pair<std::string, std::string>>;

/// What is read of a folder of sentence-transformers with these files, their names first.
TextPooling read_with(const Files& files) {
  const TemporaryFolder place;
  fs::create_directory(place.path() / "1_Pooling");
  write_file(place.path() / "1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  for (const auto& [name, text] : files) write_file(place.path() / name, text);
  return read_pooling(place.path());
}

constexpr const char *kSizes = "sentence_bert_config.json", *kPrompts = "config_sentence_transformers.json";

TEST(Pooling, PutsIntoLowerCaseWhatTheFolderSays) {
  EXPECT_FALSE(read_with({}).lower_case);
  const auto read = read_with({{kSizes, R"({"max_seq_length": 128, "do_lower_case": true})"}});
  EXPECT_TRUE(read.lower_case);
  EXPECT_EQ(read.max_tokens, 128);
  EXPECT_FALSE(read_with({{kSizes, R"({"do_lower_case": false})"}}).lower_case);
  expect_refused([] { read_with({{kSizes, R"({"do_lower_case": "yes"})"}}); }, {kSizes, "do_lower_case"});
  expect_refused([] { read_with({{kSizes, R"({"max_seq_length": 0})"}}); }, {kSizes, "max_seq_length"});
}

TEST(Pooling, TakesThePromptThatIsNamedByDefault) {
  const auto prompt = [](const std::string& config) { return read_with({{kPrompts, config}}).prompt; };
  EXPECT_EQ(prompt(R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})"), "query: ");
  EXPECT_EQ(prompt(R"({"prompts": {"query": "query: "}, "default_prompt_name": null})"), "") << "none is asked for";
  EXPECT_EQ(prompt(R"({"similarity_fn_name": "cosine"})"), "");
  for (const char* config :
       {R"({"prompts": {"query": "q"}, "default_prompt_name": "passage"})", R"({"default_prompt_name": "query"})",
        R"({"prompts": [], "default_prompt_name": 3})", R"({"prompts": {"query": 3}, "default_prompt_name": "query"})"})
    expect_refused([&] { prompt(config); }, {kPrompts, "default_prompt_name"});
}

TEST(Pooling, RefusesAPromptThatIsNotPooled) {
  const char* const without = R"({"pooling_mode_cls_token": true, "include_prompt": false})";
  EXPECT_EQ(read_with({{"1_Pooling/config.json", without}}).kind, TextPooling::Kind::First);
  expect_refused(
      [&] {
        read_with({{"1_Pooling/config.json", without},
                   {kPrompts, R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})"}});
      },
      {"include_prompt"});
}

TEST(Pooling, GoesAlongWithTheTokenizer) {
  const TemporaryFolder place;
  const fs::path from = place.path() / "from", to = place.path() / "to";
  for (const char* folder : {"from/2_Pool", "outside", "to"}) fs::create_directories(place.path() / folder);
  write_file(from / "vocab.txt", "[UNK]\na\n");
  write_file(from / "modules.json", R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
      {"path": "2_Pool", "type": "sentence_transformers.models.Pooling"},
      {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  write_file(from / "2_Pool/config.json", R"({"pooling_mode_max_tokens": true})");
  write_file(from / kSizes, R"({"max_seq_length": 32})");
  write_file(from / kPrompts, R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})");
  EXPECT_EQ(copy_companions(from, to), 5);
  const TextPooling pooling = read_pooling(to);
  EXPECT_EQ(pooling.kind, TextPooling::Kind::Max);
  EXPECT_TRUE(pooling.normalized);
  EXPECT_EQ(pooling.max_tokens, 32);
  EXPECT_EQ(pooling.prompt, "query: ");

  write_file(place.path() / "outside/config.json", "{}");
  write_file(from / "modules.json", R"([{"path": "../outside"}, {"path": 3}, 3])");
  EXPECT_EQ(pooling_files(from), (std::vector<fs::path>{"modules.json", kSizes, kPrompts}));
}

}  // namespace
}  // namespace megatron::interchange
