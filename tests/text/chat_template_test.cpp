#include "megatron/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/error.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Templates as the families' folders hold them; tests/interop compares them with transformers.
const std::string kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are "
    "a helper<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const std::string kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
    "%}{% "
    "set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
const std::string kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{{ '<<SYS>>\\n' }}{% endif %}{{ bos_token + '[INST] ' + content.strip() + "
    "' "
    "[/INST]' }}{{ ' ' + content.strip() + ' ' + eos_token }}";
const std::string kMistral =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' "
    "[/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% endif %}{% endfor %}";

const std::vector<ChatMessage> kTalk = {
    {"user", " Hi "}, {"assistant", "Hello "}, {"user", "Bye"}, {"assistant", "So"}};
const std::vector<ChatMessage> kWithSystem = {{"system", "Be brief"}, {"user", "Hi"}, {"assistant", "Hello"}};

ChatTemplate parsed(const std::string& jinja) { return {jinja, "<s>", "</s>", "test"}; }

/// What the assistant writes, piece by piece.
std::vector<std::string> answers_of(const RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const auto& range : chat.answers) answers.push_back(chat.text.substr(range.begin, range.end - range.begin));
  return answers;
}

TEST(ChatTemplate, WritesChatMlWithItsSystemMessageWhereThereIsNone) {
  const RenderedChat chat = parsed(kSmolLm2).render(kTalk, /*open=*/true);
  EXPECT_EQ(chat.text,
            "<|im_start|>system\nYou are a helper<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
            "Hello <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_THAT(answers_of(chat), ElementsAre("Hello <|im_end|>", "So<|im_end|>"));
  EXPECT_EQ(parsed(kSmolLm2).render(kWithSystem).text,
            "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
            "<|im_end|>\n");
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
  const ChatTemplate chat = parsed(kLlama3 + "{%- set date_string = \"26 Jul 2024\" %}Cutting Knowledge Date");
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
  const std::string other =
      "{{ '[INST] ' + message['content'] + '[/INST]' }}{{ ' ' + message['content']|trim + eos_token + ' ' }}";
  const RenderedChat chat = parsed(other).render(kTalk);
  EXPECT_EQ(chat.text, "<s>[INST]  Hi [/INST] Hello</s> [INST] Bye[/INST] So</s> ");
  EXPECT_THAT(answers_of(chat), ElementsAre(" Hello</s>", " So</s>"));
}

TEST(ChatTemplate, RefusesTemplatesThatItWouldGetWrong) {
  for (const std::string& jinja :
       {std::string("{{ messages }}"), std::string("### Human: "), kSmolLm2 + "{% if loop.last %}",
        kSmolLm2 + "<think>", kLlama3 + "strftime_now", std::string("[INST] something else"), std::string(100000, ' ')})
    EXPECT_THROW(parsed(jinja), ConfigError) << jinja.substr(0, 50);
}

TEST(ChatTemplate, ReadsATemplateOfAnyContentWithoutDeepRecursion) {
  const std::string filler(60000, 'a');
  EXPECT_EQ(parsed("<|im_start|>system\n" + filler + "<|im_end|>").render(kWithSystem).text.size(),
            parsed(kSmolLm2).render(kWithSystem).text.size());
  EXPECT_THROW(parsed("[INST] '" + filler), ConfigError);
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
  EXPECT_THAT(error(kSmolLm2, {}), HasSubstr("must have messages"));
  EXPECT_THAT(error(kSmolLm2, {{"tool", "4"}}), HasSubstr("\"tool\""));
  EXPECT_THAT(error(kMistral, kWithSystem), HasSubstr("no system message"));
  EXPECT_THAT(error(kLlama2, {{"assistant", "Hi"}}), HasSubstr("assistant as turn 1"));
  EXPECT_THAT(error(kMistral, {{"user", "a"}, {"user", "b"}}), HasSubstr("user as turn 2"));
}

TEST(ChatTemplate, IsReadFromAFoldersConfigurationOrTemplateFile) {
  const TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
  std::ofstream(folder.path() / "tokenizer_config.json")
      << R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": )"
      << R"("'[INST] ' + message['content'] + ' [/INST]' message['content'] + eos_token"})";
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kTalk).text.substr(0, 9), "<b>[INST]");
  std::ofstream(folder.path() / "chat_template.jinja") << kSmolLm2;
  EXPECT_THAT(ChatTemplate::load(folder.path()).render(kTalk).text, HasSubstr("You are a helper"));
  std::ofstream(folder.path() / "tokenizer_config.json") << "[";
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
}

}  // namespace
}  // namespace megatron::text
