#include "megatron/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A template as its family's folders hold it; tests/interop compares them with transformers.
std::string golden(const std::string& name) {
  return read_file(std::filesystem::path(tests_folder()) / "golden/chat" / (name + ".jinja"), 1 << 16);
}
const std::string kChatMl = golden("chatml"), kLlama2 = golden("llama2"), kLlama3 = golden("llama3"),
                  kLlama31 = golden("llama3.1"), kMistral = golden("mistral");

const std::vector<ChatMessage> kTalk = {
    {"user", " Hi "}, {"assistant", "Hello "}, {"user", "Bye"}, {"assistant", "So"}};
const std::vector<ChatMessage> kWithSystem = {{"system", "Be brief"}, {"user", "Hi"}, {"assistant", "Hello"}};

ChatTemplate parsed(const std::string& jinja) { return {jinja, "<s>", "</s>", "test"}; }

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
  const RenderedChat chat = parsed(kChatMl).render(kTalk, /*open=*/true);
  EXPECT_EQ(chat.text,
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n Hi "
            "<|im_end|>\n<|im_start|>assistant\n"
            "Hello <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo<|im_end|>\n"
            "<|im_start|>assistant\n");
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

TEST(ChatTemplate, RefusesTemplatesThatItWouldGetWrong) {
  const std::string messages_end = "'<|im_end|>' + '\n'", eot = "'<|eot_id|>' %}";
  for (const std::string& jinja : {
           std::string("{{ messages }}"),
           std::string("### Human: "),
           golden("phi4"),
           with(kChatMl, messages_end, "'<|im_end|>'"),                           // no end of line
           with(kChatMl, messages_end, "('' if loop.last else '<|im_end|>\n')"),  // the last mark left out
           with(kChatMl, "message['content'] +", "message['content'] | trim +"),
           with(kChatMl, "{% for", "{{ bos_token }}{% for"),
           with(kChatMl, "assistant\n' }}", "assistant\n<think>' }}"),  // begins answers otherwise
           with(kChatMl, "{% for message in messages %}", "{% for message in messages if message['content'] %}"),
           with(kChatMl, "{% endfor %}", ""),
           with(kLlama3, " | trim", ""),
           with(kLlama3, "\\n\\n'+", "\\n'+"),
           with(kLlama3, eot, "'<|eot_id|>\\n' %}"),
           with(kLlama31, "December 2023", "June 2024"),
           kLlama3 + "{{ strftime_now('%d') }}",
           with(kLlama2, "content.strip() + ' ' +", "content.strip() +"),
           with(kLlama2, "{% set system_message = false %}", "{% set system_message = 'Be kind.' %}"),
           with(kMistral, "message['content'] + eos_token", "message['content']"),
           std::string("[INST] something else"),
           std::string(100000, ' '),
       })
    EXPECT_THROW(parsed(jinja), ConfigError) << jinja.substr(0, 500);
}

TEST(ChatTemplate, SaysWhatATemplateWritesOtherwise) {
  try {
    parsed(with(kChatMl, "'<|im_end|>' + '\n'", "'<|im_end|>'"));
    FAIL() << "was read";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("test: a chat template must be ChatML's"));
    EXPECT_THAT(error.what(), HasSubstr(R"(\nU<|im_end|>")"));
  }
}

TEST(ChatTemplate, ReadsAsMuchOfATemplateAsConversationsWithoutToolsNeed) {
  const std::string unused =
      with(kChatMl, "{% for", "{% if tools %}{{ tools | tojson(indent=2) + '{\\\"a\\\": \\'\\\\' }}{% endif %}{% for");
  EXPECT_EQ(parsed(unused).render(kTalk).text, parsed(kChatMl).render(kTalk).text);
  EXPECT_THROW(parsed(with(kChatMl, "{% for", "{{ messages | tojson }}{% for")), ConfigError);
  EXPECT_THROW(parsed(with(kChatMl, "{% for", "{% macro x() %}{% endmacro %}{% for")), ConfigError);
}

TEST(ChatTemplate, WantsTurnsWhereTheTemplateDoes) {
  const std::string raising =
      with(kChatMl, "{% for message in messages %}",
           "{% for message in messages %}{% if not loop.first and message.role == messages[loop.index0 - 1].role %}"
           "{{ raise_exception('turns') }}{% endif %}");
  EXPECT_EQ(parsed(raising).render(kTalk).text, parsed(kChatMl).render(kTalk).text);
  EXPECT_THROW(parsed(raising).render(std::vector<ChatMessage>{{"user", "a"}, {"user", "b"}}), ConfigError);
  EXPECT_NE(parsed(raising).description(), parsed(kChatMl).description());
}

TEST(ChatTemplate, ReadsHostileTemplatesInLittleTimeAndMemory) {
  std::string doubling = "<|im_start|>{% set x = messages %}", nested = "<|im_start|>{{ ";
  for (int i = 0; i < 1000; ++i) doubling += "{% set x = [x, x] %}";
  for (int i = 0; i < 30000; ++i) nested += '[';
  std::string ifs = "<|im_start|>", sums = "<|im_start|>{{ 1", calls = "<|im_start|>{{ x",
              elifs = "<|im_start|>{% if 0 %}";
  for (int i = 0; i < 5000; ++i) ifs += "{% if 1 %}", elifs += "{% elif 0 %}";
  for (int i = 0; i < 20000; ++i) sums += "+1", calls += ".x";
  const std::string loops =
      "<|im_start|>{% for a in messages %}{% set m = messages %}" + std::string(60000, 'a') + "{% endfor %}";
  for (const std::string& jinja :
       {doubling, nested, ifs, sums + " }}", calls + " }}", elifs + "{% endif %}", loops,
        "[INST] '" + std::string(60000, 'a'), std::string("<|im_start|>{% if"), std::string("<|im_start|>{{ 'a"),
        std::string("<|im_start|>{#"), std::string("<|im_start|>{{ 'a\\"), std::string("<|im_start|>{% endif %}"),
        std::string("<|im_start|>{% for a in [] %}{% endif %}"), std::string("<|im_start|>{{ 1 // 0 }}"),
        std::string("<|im_start|>{{ a[ }}")})
    EXPECT_THROW(parsed(jinja), ConfigError) << jinja.substr(0, 60);
}

TEST(ChatTemplate, RefusesConversationsThatTheFamilyDoesNotHave) {
  const auto error = [](const std::string& jinja, const std::vector<ChatMessage>& messages) -> std::string {
    try {
      parsed(jinja).render(messages);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error(kChatMl, {}), HasSubstr("must have messages"));
  EXPECT_THAT(error(kChatMl, {{"tool", "4"}}), HasSubstr("\"tool\""));
  EXPECT_THAT(error(kMistral, kWithSystem), HasSubstr("no system message"));
  EXPECT_THAT(error(kLlama2, {{"assistant", "Hi"}}), HasSubstr("assistant as turn 1"));
  EXPECT_THAT(error(kMistral, {{"user", "a"}, {"user", "b"}}), HasSubstr("user as turn 2"));
}

TEST(ChatTemplate, IsReadFromAFoldersConfigurationOrTemplateFile) {
  const TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
  std::ofstream(folder.path() / "tokenizer_config.json")
      << R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": )" << nlohmann::json(kMistral)
      << "}";
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kTalk).text.substr(0, 9), "<b>[INST]");
  std::ofstream(folder.path() / "chat_template.jinja") << kChatMl;
  EXPECT_THAT(ChatTemplate::load(folder.path()).render(kTalk).text, HasSubstr("You are a helpful assistant."));
  std::ofstream(folder.path() / "tokenizer_config.json") << "[";
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
}

}  // namespace
}  // namespace megatron::text
