#include "megatron/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A template as its family's folders hold it; tests/interop compares them with transformers.
std::string golden(const std::string& name) {
  const bool published = name.starts_with("published/");
  return read_file(
      std::filesystem::path(published ? unpacked_folder() : tests_folder()) / "golden/chat" / (name + ".jinja"),
      1 << 16);
}
const std::string kChatMl = golden("chatml"), kLlama2 = golden("llama2"), kLlama3 = golden("llama3"),
                  kLlama31 = golden("llama3.1"), kMistral = golden("mistral");

const std::vector<ChatMessage> kTalk = {
    {"user", " Hi "}, {"assistant", "Hello "}, {"user", "Bye"}, {"assistant", "So"}};
const std::vector<ChatMessage> kWithSystem = {{"system", "Be brief"}, {"user", "Hi"}, {"assistant", "Hello"}};

ChatTemplate parsed(const std::string& jinja) { return {jinja, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "test"}; }

TEST(ChatTemplate, OfNoFolderIsRefusedInWords) {
  EXPECT_THAT([] { ChatTemplate::load(""); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("got:  no folder with a tokenizer")));
}

/// `text` with `part` replaced by `by`.
std::string with(std::string text, const std::string& part, const std::string& by) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), by);
}

/// What the assistant writes, piece by piece.
std::vector<std::string> answers_of(const RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const auto& range : chat.answers) answers.push_back(chat.text.substr(range.begin, range.end - range.begin));
  return answers;
}

TEST(ChatTemplate, WritesChatMlWithItsSystemMessageWhereThereIsNone) {
  const RenderedChat chat = parsed(kChatMl).render(kTalk);
  EXPECT_EQ(parsed(kChatMl).prompt(kTalk), chat.text + "<|im_start|>assistant\n");
  EXPECT_EQ(chat.text,
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi "
            "<|im_end|>\n<|im_start|>assistant\n"
            "Hello <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo<|im_end|>\n");
  EXPECT_THAT(answers_of(chat), ElementsAre("Hello <|im_end|>", "So<|im_end|>"));
  EXPECT_EQ(parsed(kChatMl).render(kWithSystem).text,
            "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
            "<|im_end|>\n");
}

TEST(ChatTemplate, WritesChatMlOfATemplateThatKnowsTools) {
  EXPECT_THAT(parsed(golden("qwen2.5")).render(kTalk).text,
              testing::StartsWith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                                  "assistant.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"));
}

TEST(ChatTemplate, WritesLlama3) {
  const RenderedChat chat = parsed(kLlama3).render(kTalk);
  EXPECT_EQ(chat.text,
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
            "\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\nSo<|eot_id|>");
  EXPECT_THAT(answers_of(chat), ElementsAre("Hello<|eot_id|>", "So<|eot_id|>"));
}

TEST(ChatTemplate, TrimsWhatPythonTrims) {
  const std::string blanks = " \t\r\n\x1C\u0085\u00A0\u1680\u2003\u2028\u202F\u205F\u3000";
  EXPECT_THAT(parsed(kLlama3).render(std::vector<ChatMessage>{{"user", blanks + "a b\u200B" + blanks}}).text,
              testing::EndsWith("\n\na b\u200B<|eot_id|>"));
  EXPECT_THAT(parsed(kLlama3).render(std::vector<ChatMessage>{{"user", blanks}}).text,
              testing::EndsWith("\n\n<|eot_id|>"));
}

TEST(ChatTemplate, WritesLlama3Point1WithTheDateOfItsTemplate) {
  const ChatTemplate chat = parsed(kLlama31);
  EXPECT_THAT(chat.render(kWithSystem).text,
              testing::StartsWith("<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
                                  "2023\nToday Date: 26 Jul 2024\n\nBe brief<|eot_id|><|start_header_id|>user<"));
  EXPECT_THAT(chat.render(kTalk).text, HasSubstr("26 Jul 2024\n\n<|eot_id|>"));
}

TEST(ChatTemplate, WritesLlama2) {
  EXPECT_EQ(parsed(kLlama2).render(kTalk).text, "<s>[INST] Hi [/INST] Hello </s><s>[INST] Bye [/INST] So </s>");
  EXPECT_THAT(answers_of(parsed(kLlama2).render(kTalk)), ElementsAre(" Hello </s>", " So </s>"));
  EXPECT_EQ(parsed(kLlama2).render(kWithSystem).text, "<s>[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHi [/INST] Hello </s>");
}

TEST(ChatTemplate, WritesMistralWithTheBlanksOfItsTemplate) {
  EXPECT_EQ(parsed(kMistral).render(kTalk).text, "<s>[INST]  Hi  [/INST]Hello </s>[INST] Bye [/INST]So</s>");
  const std::string other = with(golden("mistral_v3"), "eos_token}}", "eos_token + ' ' }}");
  const RenderedChat chat = parsed(other).render(kTalk);
  EXPECT_EQ(chat.text, "<s>[INST]  Hi [/INST] Hello</s> [INST] Bye[/INST] So</s> ");
  EXPECT_THAT(answers_of(chat), ElementsAre(" Hello</s>", " So</s>"));
}

TEST(ChatTemplate, WritesAnyTemplateAndFindsItsAnswers) {
  const std::string phi = parsed(golden("phi4")).render(kTalk).text;
  EXPECT_THAT(phi, testing::StartsWith("<|im_start|>user<|im_sep|> Hi <|im_end|><|im_start|>assistant<|im_sep|>"));
  // This template lets an answer begin nowhere else than after the user's: the model writes all that follows.
  EXPECT_THAT(
      answers_of(parsed(golden("phi4")).render(kTalk)),
      ElementsAre("<|im_start|>assistant<|im_sep|>Hello <|im_end|>", "<|im_start|>assistant<|im_sep|>So<|im_end|>"));
  EXPECT_THAT(answers_of(parsed(golden("published/google-gemma-2-2b-it")).render(kTalk)),
              ElementsAre("Hello<end_of_turn>", "So<end_of_turn>"));
  EXPECT_THAT(answers_of(parsed(golden("published/Qwen-Qwen3-0.6B")).render(std::span(kTalk).first(2))),
              ElementsAre("<think>\n\n</think>\n\nHello <|im_end|>"));
}

TEST(ChatTemplate, LearnsTheWhiteSpaceAfterAnAnswerThatNothingElseEnds) {
  const std::string plain =
      "{% for m in messages %}{{ '### ' + m.role + ':\\n' + m.content + '\\n\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}";
  EXPECT_THAT(answers_of(parsed(plain).render(kTalk)), ElementsAre("Hello \n\n", "So\n\n"));
  const std::string marked = with(plain, "m.content + '", "m.content + eos_token + '");
  EXPECT_THAT(answers_of(parsed(marked).render(kTalk)), ElementsAre("Hello </s>", "So</s>"));
}

TEST(ChatTemplate, TakesTheAnswersThatTheTemplateMarks) {
  const std::string marks =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}."
      "{% endgeneration %}{{ '\n' }}{% else %}ü{{ m.content + '\n' }}{% endif %}{% endfor %}";
  EXPECT_EQ(parsed(marks).render(kTalk).text, "ü Hi \nA:Hello .\nüBye\nA:So.\n");
  EXPECT_THAT(answers_of(parsed(marks).render(kTalk)), ElementsAre("Hello .", "So."));
}

/// What rendering the conversation throws.
std::string error_of(const ChatTemplate& chat, const std::vector<ChatMessage>& messages) {
  try {
    chat.render(messages);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ChatTemplate, NamesTheTurnWhoseAnswerCannotBeTold) {
  // Qwen 3 writes an empty thought before an answer only while no user speaks after it.
  EXPECT_THAT(error_of(parsed(golden("published/Qwen-Qwen3-0.6B")), kTalk),
              testing::AllOf(HasSubstr("test: an answer must be"), HasSubstr("message 2, which it writes otherwise")));
  // DeepSeek's R1 is asked with "<think>", which its answers do not begin with.
  EXPECT_THAT(error_of(parsed(golden("published/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B")), kTalk),
              HasSubstr("message 2, which does not begin where"));
  EXPECT_THAT(error_of(parsed(kChatMl), {{"assistant", "Hi"}}), HasSubstr("message 1, which does not begin where"));
}

TEST(ChatTemplate, WritesToolsAndTheirCallsAsTransformersDoes) {
  using nlohmann::ordered_json;
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/chat";
  const auto golden_texts = ordered_json::parse(read_file(folder / "rendered.json", 1 << 20));
  const ordered_json& talk = golden_texts["conversations"]["tools"];
  std::vector<ChatMessage> messages;
  for (const ordered_json& one : talk["messages"]) {
    ChatMessage message{one["role"], one["content"]};
    for (const ordered_json& call : one.value("tool_calls", ordered_json::array()))
      message.tool_calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"].dump()});
    message.tool_call_id = one.value("tool_call_id", "");
    message.name = one.value("name", "");
    messages.push_back(message);
  }
  int texts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "published")) {
    const ChatTemplate chat = parsed(read_file(entry.path(), 1 << 18));
    const ordered_json& truth = golden_texts["published"][entry.path().stem().string()]["tools"];
    if (chat.mentions("strftime_now")) continue;  // it was another day
    if (!truth.contains("text")) {
      EXPECT_THROW(chat.prompt(messages, &talk["tools"]), ConfigError) << entry.path();
      continue;
    }
    EXPECT_EQ(chat.prompt(messages, &talk["tools"]), truth["text"].get<std::string>()) << entry.path();
    ++texts;
  }
  EXPECT_GE(texts, 30);
}

TEST(ChatTemplate, DescribesAllThatDecidesWhatIsWritten) {
  EXPECT_NE(parsed(kChatMl).description(), parsed(kLlama3).description());
  EXPECT_NE(parsed(kChatMl).description(), ChatTemplate(kChatMl, {{"bos_token", "<b>"}}, "test").description());
  EXPECT_THAT(parsed(kChatMl + "{{ strftime_now('%d') }}").description(), HasSubstr("\nday: 20"));
}

TEST(ChatTemplate, RefusesConversationsThatTheTemplateDoesNotHave) {
  EXPECT_THAT(error_of(parsed(kChatMl), {}), HasSubstr("must have messages"));
  EXPECT_THROW(parsed(kChatMl).prompt({}), ConfigError);
  EXPECT_THAT(error_of(parsed(kChatMl), {{"tool", "4"}}), HasSubstr("\"tool\""));
  EXPECT_THAT(error_of(parsed(kLlama2), {{"assistant", "Hi"}}),
              testing::AllOf(HasSubstr("test: the model's chat template refuses"), HasSubstr("got:  turns")));
  EXPECT_THAT(error_of(parsed("{{ messages | foo }}"), kTalk), HasSubstr("test: a chat template may only"));
  EXPECT_THROW(parsed("{% endif %}"), ConfigError);
  EXPECT_THROW(parsed(std::string(1 << 20, ' ')), ConfigError);
}

TEST(ChatTemplate, IsReadFromAFoldersConfigurationOrTemplateFile) {
  const TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
  std::ofstream(folder.path() / "tokenizer_config.json")
      << R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": )" << nlohmann::json(kMistral)
      << "}";
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kTalk).text.substr(0, 9), "<b>[INST]");
  std::ofstream(folder.path() / "tokenizer_config.json")
      << R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})";
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kTalk).text, "b") << "of several";
  std::ofstream(folder.path() / "chat_template.jinja") << kChatMl;
  EXPECT_THAT(ChatTemplate::load(folder.path()).render(kTalk).text, HasSubstr("You are a helpful assistant."));
  std::ofstream(folder.path() / "tokenizer_config.json") << "[";
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
}

}  // namespace
}  // namespace megatron::text
