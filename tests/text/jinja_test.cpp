#include "megatron/text/chat/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "tests/testing/folders.h"

namespace megatron::text {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

std::filesystem::path chat_folder() { return std::filesystem::path(unpacked_folder()) / "golden/chat"; }

/// What transformers and Jinja2 make of templates: tests/interop/chat_golden.py wrote it.
const ordered_json& golden() {
  static const ordered_json all = ordered_json::parse(read_file(chat_folder() / "rendered.json", 1 << 20));
  return all;
}

/// 2026-07-26, 12:00, a Sunday.
std::tm now() {
  std::tm time{};
  time.tm_year = 126, time.tm_mon = 6, time.tm_mday = 26, time.tm_hour = 12, time.tm_yday = 206;
  return time;
}

/// In the form of golden(); "refused" says what the error says.
ordered_json rendered(const std::string& source, const ordered_json& variables) {
  ordered_json context = golden()["every"];
  context.update(variables);
  try {
    const JinjaText result = Jinja(source).render(context, now());
    ordered_json shown = {{"text", result.text}};
    for (const auto& range : result.generated) shown["generated"].push_back({range.begin, range.end});
    return shown;
  } catch (const JinjaRaised& raised) {
    return {{"raises", raised.what()}};
  } catch (const ConfigError& error) {
    return {{"refused", error.what()}};
  }
}

std::string error_of(const std::string& source) {
  const ordered_json shown = rendered(source, golden()["variables"]);
  return shown.contains("refused") ? shown["refused"].get<std::string>() : "";
}

TEST(Jinja, WritesWhatTransformersWritesByPublishedTemplates) {
  int texts = 0, templates = 0;
  for (const auto& [name, expected] : golden()["published"].items()) {
    auto file = chat_folder() / "published" / (name + ".jinja");
    if (!std::filesystem::exists(file))
      file = std::filesystem::path(tests_folder()) / "golden/chat" / (name + ".jinja");
    const std::string source = read_file(file, 1 << 20);
    ++templates;
    for (const auto& [conversation, truth] : expected.items()) {
      const ordered_json ours = rendered(source, golden()["conversations"][conversation]);
      if (truth.contains("refused"))
        EXPECT_TRUE(ours.contains("refused")) << name << ", " << conversation << ": " << ours;
      else
        EXPECT_EQ(ours, truth) << name << ", " << conversation;
      texts += truth.contains("text") ? 1 : 0;
    }
  }
  EXPECT_GE(templates, 50);
  EXPECT_GE(texts, 380);
}

TEST(Jinja, ComputesAsJinjaOfPythonDoes) {
  std::set<std::string> not_known;
  for (const auto& one : golden()["short"]) {
    const std::string source = one[0];
    const ordered_json ours = rendered(source, golden()["variables"]), &truth = one[1];
    if (ours.contains("refused") && !truth.contains("refused"))
      not_known.insert(source);
    else if (truth.contains("refused"))
      EXPECT_TRUE(ours.contains("refused")) << source << ours;
    else
      EXPECT_EQ(ours, truth) << source;
  }
  // Of what Python can do more than templates do, the text is never another one: it is refused.
  EXPECT_EQ(not_known, (std::set<std::string>{"{{ n.real is defined }}", "{{ n.__class__ }}",
                                              "{{ 9223372036854775807 + 1 }}", "{% raw %}"}));
}

/// What is refused here and rendered there, of snippets and what Jinja2 makes of them
/// (tests/interop/jinja_snippets.py); another text than its is a failure.
std::set<std::string> refused_of(const ordered_json& all) {
  std::set<std::string> refused;
  for (const auto& one : all["snippets"]) {
    const std::string source = one[0];
    const ordered_json ours = rendered(source, all["variables"]), &truth = one[1];
    if (truth.contains("refused"))
      EXPECT_TRUE(ours.contains("refused")) << source << ours;
    else if (ours.contains("refused"))
      refused.insert(source);
    else
      EXPECT_EQ(ours, truth) << source;
  }
  return refused;
}

/// MEGATRON_JINJA_SNIPPETS: a file of others, which test_chat.py draws at random. Most of those must be known.
TEST(Jinja, RendersSnippetsAsJinjaDoes) {
  const char* drawn = std::getenv("MEGATRON_JINJA_SNIPPETS");
  const auto file = drawn != nullptr ? std::filesystem::path(drawn)
                                     : std::filesystem::path(tests_folder()) / "text/jinja_snippets.json";
  const ordered_json all = ordered_json::parse(read_file(file, 1 << 26));
  const std::set<std::string> refused = refused_of(all);
  const std::string half_read =
      "{% set u = list | map('string') %}{% for i in u %}{{ i }}{% break %}"
      "{% endfor %}{{ u | list }}";
  if (drawn == nullptr) {
    EXPECT_EQ(refused, (std::set<std::string>{"{{ range(3) | string is string }}", "{{ self is defined }}",
                                              "{{ n is sameas n }}", "{{ x.real is defined }}", "{{ 'ΑΣ'.lower() }}",
                                              half_read}));
    return;
  }
  std::size_t rendered_there = 0;
  for (const auto& one : all["snippets"]) rendered_there += one[1].contains("refused") ? 0 : 1;
  EXPECT_LT(refused.size() * 8, rendered_there) << testing::PrintToString(refused);
}

TEST(Jinja, NamesLineAndConstructOfWhatItRefuses) {
  EXPECT_THAT(error_of("a\n{{ n }}\n{{ n | urlize }}"), HasSubstr("line 3: the filter \"urlize\""));
  EXPECT_THAT(error_of("a\n\n{% if n is foo %}{% endif %}"), HasSubstr("line 3: the test \"foo\""));
  EXPECT_THAT(error_of("{{\nlipsum() }}"), HasSubstr("line 2: lipsum, whose text is drawn at random"));
  EXPECT_THAT(error_of("\n{{ word.encode() }}"), HasSubstr("line 2: the method \"encode\" of a text"));
  EXPECT_THAT(error_of("\n{{ list.append(1) }}"), HasSubstr("line 2: the method \"append\", by which a list would"));
  EXPECT_THAT(error_of("{{ missing.part.more }}"), HasSubstr("missing.part, but missing is not defined"));
  EXPECT_THAT(error_of("\n\n{% include 'x' %}"), HasSubstr("line 3: the statement \"include\""));
  EXPECT_THAT(error_of("{% call f() %}{% endcall %}"), HasSubstr("line 1: the function \"f\""));
  EXPECT_THAT(error_of("\n{% for i in list %}{{ loop(list) }}{% endfor %}"), HasSubstr("line 2: a call of the loop"));
  EXPECT_THAT(error_of("{% if n %}\n{% for i in list %}{% endif %}"), HasSubstr("\"endfor\""));
  EXPECT_THAT(error_of("{% for i in list again %}{% endfor %}"), HasSubstr("\"again\" where a tag should end"));
  EXPECT_THAT(error_of("{{ 'a' < 1 }}"), HasSubstr("an order of a string and a number"));
  EXPECT_THAT(error_of("{% set n.a = 1 %}"), HasSubstr("which only a namespace lets"));
}

TEST(Jinja, ReadsHostileTemplatesInLittleTimeAndMemory) {
  std::string doubling = "{% set x = list %}", nested = "{{ ", ifs, sums = "{{ 1", calls = "{{ n", elifs = "{% if 0 %}";
  for (int i = 0; i < 1000; ++i) doubling += "{% set x = [x, x] %}";
  for (int i = 0; i < 30000; ++i) nested += '[';
  for (int i = 0; i < 5000; ++i) ifs += "{% if 1 %}", elifs += "{% elif 0 %}";
  for (int i = 0; i < 20000; ++i) calls += ".x";
  const std::string many = "{% for a in range(99999) %}{% for b in range(99999) %}";
  const std::vector<std::string> hostile = {
      doubling,
      nested,
      ifs,
      calls + " }}",
      elifs,
      "{{ '" + std::string(60000, 'a'),
      many + "{% endfor %}{% endfor %}",
      "{{ 'a' * 1000000000 }}",
      "{{ 'a' * 99999999999 }}",
      "{{ range(99999999) }}",
      "{{ 'aa'|replace('a', 'a' * 9999999 * 99) }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      ("{% set ns = namespace(a=list) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
       "{{ ns.a == ns.a }}"),
      ("{% set ns = namespace(a=list) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
       "{{ ns.a | tojson }}"),
      "{% set ns = namespace(a=list) %}{% for i in range(999) %}{% set ns.a = [ns.a] %}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.a = ns %}",
      "{% set ns = namespace() %}{% set ns.a = [ns] %}",
      "{% set ns = namespace(a='aa') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
      "{{ '%s' % ('a', 'b') }}",
      "{% for i in list recursive %}{{ loop(list) }}{% endfor %}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
      "{% macro f() %}{% call(x) f() %}{% call f() %}{% endcall %}{% endcall %}{{ caller(1) }}{% endmacro %}{{ f() }}",
      ("{% for i in range(99999) %}{% for j in range(99999) recursive %}{{ loop.cycle(*range(99999)) }}{% endfor %}"
       "{% endfor %}"),
      "{% set ns = namespace() %}{% macro f() %}{% endmacro %}{% set ns.f = f %}",
      "{% set ns = namespace() %}{% for i in list %}{% set ns.loop = loop %}{% endfor %}",
      "{{ cycler(cycler) }}",
      "{% set ns = namespace(a=1) %}{% for i in range(99999) %}{% set ns.a = cycler(ns.a) %}{% endfor %}",
      "{% set ns = namespace(a=1) %}{% for i in range(99999) %}{% set ns.a = joiner([ns.a]) %}{% endfor %}",
      "{{ '%999999999d' % 1 }}",
      "{{ '%.999999999f' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'a'.center(99999999999) }}",
      "{{ ('a' * 9999999) | batch(1) | map('list') | map('string') | list | wordwrap(1) }}",
      "{{ list | batch(999999999, 'a') | list }}",
      "{{ list | slice(999999999) | list }}",
      "{{ [0] * 999999999999 }}",
      "{{ ('-' * 60000 ~ 'a').expandtabs(9) ~ ('\\t' * 60000).expandtabs(99999) }}",
      "{% for ((((a)))), b in list %}{% endfor %}",
      "{% for " + std::string(30000, '(') + "a",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ 3 ** 999999999 }}",
      "{{ list[::0] }}",
      "{{ 'a'|indent(999999999) }}",
      "{{ '\\u12' }}",
      "{{ '\\",
      "{%",
      "{{ 1 /",
      "{{ list | tojson(indent=999999999) }}",
      "{{ strftime_now('%Y' * 9999) }}"};
  for (const std::string& source : hostile) EXPECT_NE(error_of(source), "") << source.substr(0, 80);
  for (int i = 0; i < 20000; ++i) sums += "+1";
  EXPECT_EQ(rendered(sums + " }}", ordered_json::object())["text"], "20001");
  EXPECT_EQ(rendered("{{ list[-9223372036854775807:9223372036854775807:9223372036854775807] }}",
                     golden()["variables"])["text"],
            "[3]");
  EXPECT_EQ(rendered("{{ list[::-9223372036854775807 - 1] }}", golden()["variables"])["text"], "[2]");
}

TEST(Jinja, LetsAConversationTakeAsMuchWorkAsItIsLong) {
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 20000; ++i)
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(100, 'a') + " "}});
  const std::string source = read_file(chat_folder() / "published/Qwen-Qwen3-0.6B.jinja", 1 << 20);
  const ordered_json shown = rendered(source, {{"messages", messages}});
  ASSERT_TRUE(shown.contains("text")) << shown;
  EXPECT_GT(shown["text"].get_ref<const std::string&>().size(), 20000u * 100);
}

}  // namespace
}  // namespace megatron::text
