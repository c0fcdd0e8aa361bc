#include "megatron/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

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
    "set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
const std::string kLlama31 = R"({{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}

{#- The system message goes into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" + builtin_tools | reject('equalto', 'code') | join(", ") }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
            + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for name, value in message.tool_calls[0].function.arguments | items %}
            {{- name + '="' + value | tojson(indent=4) + '"' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";
const std::string kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('turns') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = "
    "'<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
    "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + "
    "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}";
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
  const std::string other = R"({%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.tool_calls is defined and message.tool_calls is not none) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token + ' ' }}
    {%- endif %}
{%- endfor %}
)";
  const RenderedChat chat = parsed(other).render(kTalk);
  EXPECT_EQ(chat.text, "<s>[INST]  Hi [/INST] Hello</s> [INST] Bye[/INST] So</s> ");
  EXPECT_THAT(answers_of(chat), ElementsAre(" Hello</s>", " So</s>"));
}

/// `text` with `part` replaced by `by`.
std::string with(std::string text, const std::string& part, const std::string& by) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), by);
}

TEST(ChatTemplate, RefusesTemplatesThatItWouldGetWrong) {
  const std::string phi4 =
      "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + "
      "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + "
      "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant"
      "<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}";
  const std::string messages_end = "'<|im_end|>' + '\n'", eot = "'<|eot_id|>' %}";
  for (const std::string& jinja : {
           std::string("{{ messages }}"),
           std::string("### Human: "),
           phi4,
           with(kSmolLm2, messages_end, "'<|im_end|>'"),                           // no end of line
           with(kSmolLm2, messages_end, "('' if loop.last else '<|im_end|>\n')"),  // the last mark left out
           with(kSmolLm2, "message['content'] +", "message['content'] | trim +"),
           with(kSmolLm2, "{% for", "{{ bos_token }}{% for"),
           with(kSmolLm2, "assistant\n' }}", "assistant\n<think>' }}"),  // begins answers otherwise
           with(kSmolLm2, "{% for message in messages %}", "{% for message in messages if message['content'] %}"),
           with(kSmolLm2, "{% endfor %}", ""),
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
    parsed(with(kSmolLm2, "'<|im_end|>' + '\n'", "'<|im_end|>'"));
    FAIL() << "was read";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("test: a chat template must be ChatML's"));
    EXPECT_THAT(error.what(), HasSubstr(R"(\nU<|im_end|>")"));
  }
}

TEST(ChatTemplate, ReadsAsMuchOfATemplateAsConversationsWithoutToolsNeed) {
  const std::string unused =
      with(kSmolLm2, "{% for", "{% if tools %}{{ tools | tojson(indent=2) + '{\\\"a\\\": \\'\\\\' }}{% endif %}{% for");
  EXPECT_EQ(parsed(unused).render(kTalk).text, parsed(kSmolLm2).render(kTalk).text);
  EXPECT_THROW(parsed(with(kSmolLm2, "{% for", "{{ messages | tojson }}{% for")), ConfigError);
  EXPECT_THROW(parsed(with(kSmolLm2, "{% for", "{% macro x() %}{% endmacro %}{% for")), ConfigError);
}

TEST(ChatTemplate, WantsTurnsWhereTheTemplateDoes) {
  const std::string raising =
      with(kSmolLm2, "{% for message in messages %}",
           "{% for message in messages %}{% if not loop.first and message.role == messages[loop.index0 - 1].role %}"
           "{{ raise_exception('turns') }}{% endif %}");
  EXPECT_EQ(parsed(raising).render(kTalk).text, parsed(kSmolLm2).render(kTalk).text);
  EXPECT_THROW(parsed(raising).render(std::vector<ChatMessage>{{"user", "a"}, {"user", "b"}}), ConfigError);
  EXPECT_NE(parsed(raising).description(), parsed(kSmolLm2).description());
}

TEST(ChatTemplate, ReadsHostileTemplatesInLittleTimeAndMemory) {
  std::string doubling = "<|im_start|>{% set x = messages %}", nested = "<|im_start|>{{ ";
  for (int i = 0; i < 1000; ++i) doubling += "{% set x = [x, x] %}";
  for (int i = 0; i < 30000; ++i) nested += "[";
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
      << R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": )" << nlohmann::json(kMistral)
      << "}";
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kTalk).text.substr(0, 9), "<b>[INST]");
  std::ofstream(folder.path() / "chat_template.jinja") << kSmolLm2;
  EXPECT_THAT(ChatTemplate::load(folder.path()).render(kTalk).text, HasSubstr("You are a helper"));
  std::ofstream(folder.path() / "tokenizer_config.json") << "[";
  EXPECT_THROW(ChatTemplate::load(folder.path()), ConfigError);
}

}  // namespace
}  // namespace megatron::text
