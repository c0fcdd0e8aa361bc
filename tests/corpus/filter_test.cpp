#include "megatron/corpus/filter/filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megatron/corpus/filter/blocklist.h"
#include "megatron/corpus/filter/language.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FilterTest : public testing::Test {
 protected:
  FilterOptions options(const std::string& content, const std::string& name = "in.jsonl") {
    write_bytes(folder_ / name, content);
    FilterOptions result{.output = folder_ / "out", .rejected = folder_ / "rejected", .min_tokens = 3};
    result.text.inputs = {folder_ / name};
    result.text.block_bytes = 4096;
    result.workers = 2;
    return result;
  }
  std::vector<std::string> output() { return lines_of(read_bytes(folder_ / "out")); }
  std::vector<std::string> reasons() {
    std::vector<std::string> result;
    for (const std::string& line : lines_of(read_bytes(folder_ / "rejected")))
      result.push_back(nlohmann::json::parse(line)["rejected"]);
    return result;
  }
  static std::int64_t count(const FilterResult& result, Reason reason) {
    return result.rejected[static_cast<std::size_t>(reason)];
  }
  TemporaryFolder folder_;
};

TEST_F(FilterTest, KeepsLongDocumentsByteForByteAndSaysWhyOthersGo) {
  const std::string keep = R"( {"id":1.0,"text" : "one Two, three" ,"x":{"text":"no"}}  )";
  const FilterResult result =
      filter(options(keep + "\n" + R"({"id": 2, "text": "one two"})" + "\n\n" + R"({"text": ["a b", "c"]})" + "\n" +
                     R"({"text": ""})" + "\n" + R"({"text": "?! -- ..."})" + "\n"));
  EXPECT_THAT(output(), ElementsAre(keep, R"({"text": ["a b", "c"]})"));
  EXPECT_THAT(lines_of(read_bytes(folder_ / "rejected")),
              ElementsAre(R"({"rejected": "short", "id": 2, "text": "one two"})",
                          R"({"rejected": "short", "text": ""})", R"({"rejected": "short", "text": "?! -- ..."})"));
  EXPECT_EQ(result.documents, 5);
  EXPECT_EQ(result.kept, 2);
  EXPECT_EQ(count(result, Reason::Short), 3);
  EXPECT_EQ(result.kept_text_bytes, 14 + 5);
  EXPECT_EQ(result.text_bytes, 14 + 5 + 7 + 9);
}

TEST_F(FilterTest, CountsTokensWhereATokenizerIsGiven) {
  const std::string folder = data::shared_folder() + "/data/gpt2";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const text::Tokenizer tokenizer = text::Tokenizer::load(folder);
  std::mt19937 engine(1);
  std::string content, expected;
  for (int i = 0; i < 200; ++i) {
    const std::string text = join(random_words(engine, 1 + static_cast<int>(engine() % 12), 100000));
    content += json_line(text);
    if (tokenizer.encode(text).size() >= 20) expected += json_line(text);
  }
  FilterOptions wanted = options(content);
  wanted.tokenizer = &tokenizer;
  wanted.min_tokens = 20;
  filter(wanted);
  EXPECT_EQ(read_bytes(folder_ / "out"), expected);
  EXPECT_GT(expected.size(), content.size() / 5);
}

TEST_F(FilterTest, GivesTheSameBytesWithAnyThreads) {
  std::mt19937 engine(2);
  std::string content, first_output, first_rejected;
  for (int i = 0; i < 3000; ++i) content += json_line(join(random_words(engine, static_cast<int>(engine() % 7), 50)));
  for (const int workers : {1, 2, 5}) {
    FilterOptions wanted = options(content);
    wanted.workers = workers;
    filter(wanted);
    if (workers == 1) {
      first_output = read_bytes(folder_ / "out");
      first_rejected = read_bytes(folder_ / "rejected");
    }
    EXPECT_EQ(read_bytes(folder_ / "out"), first_output);
    EXPECT_EQ(read_bytes(folder_ / "rejected"), first_rejected);
  }
  EXPECT_FALSE(first_output.empty());
  EXPECT_FALSE(first_rejected.empty());
}

TEST_F(FilterTest, DropsBadLinesOnlyWhereThatIsAsked) {
  const std::string content = "{\"text\": \"a b c\"}\nnot json \xFF\n[1]\n{\"other\": 1}\n{\"text\": \"d e f\"}\n";
  FilterOptions wanted = options(content);
  EXPECT_THAT(error_of([&] { filter(wanted); }), HasSubstr("in.jsonl, line 2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rejected"));
  wanted.skip_bad_lines = true;
  const FilterResult result = filter(wanted);
  EXPECT_EQ(result.kept, 2);
  EXPECT_EQ(count(result, Reason::BadLine), 3);
  EXPECT_EQ(lines_of(read_bytes(folder_ / "rejected"))[0],
            "{\"rejected\": \"bad_line\", \"text\": \"not json \uFFFD\"}");
}

TEST_F(FilterTest, NamesThePlaceOfALineThatIsTooLong) {
  FilterOptions wanted =
      options(json_line("a b c") + json_line(std::string(100000, 'x')) + json_line("d e f") + json_line("x"));
  wanted.text.max_document_bytes = 1000;
  EXPECT_THAT(error_of([&] { filter(wanted); }), HasSubstr("line 2"));
  wanted.skip_bad_lines = true;
  EXPECT_EQ(filter(wanted).kept, 2);
  const auto row = nlohmann::json::parse(lines_of(read_bytes(folder_ / "rejected"))[0]);
  EXPECT_EQ(row["rejected"], "bad_line");
  EXPECT_EQ(row["line"], 2);
  EXPECT_THAT(reasons(), ElementsAre("bad_line", "short"));
}

TEST_F(FilterTest, FiltersLinesOfTextThatAreNotUtf8) {
  FilterOptions wanted = options("a b \xFF c\n\xFF\xFE\n1 2 3\n", "in.txt");
  wanted.text.format = data::TextFormat::Lines;
  filter(wanted);
  EXPECT_EQ(read_bytes(folder_ / "out"), "a b \xFF c\n1 2 3\n");
  EXPECT_EQ(read_bytes(folder_ / "rejected"), "{\"rejected\": \"short\", \"text\": \"\uFFFD\uFFFD\"}\n");
}

TEST_F(FilterTest, DropsPagesOfBlockedSites) {
  write_bytes(folder_ / "domains", "# sites\n example.org \n\n*.Ads.net\n");
  write_bytes(folder_ / "urls", "https://good.com/bad/\n");
  const auto line = [](const std::string& url) { return "{\"url\": \"" + url + "\", \"text\": \"a b c\"}\n"; };
  FilterOptions wanted =
      options(line("http://example.org/x") + line("https:\\/\\/www.EXAMPLE.org") + line("http://anexample.org") +
              line("http://a.b.ads.net:80/q?x=1") + line("http://good.com/bad#top") + line("http://good.com/bad/more") +
              "{\"url\": 5, \"text\": \"a b c\"}\n" + json_line("a b c"));
  wanted.block_domains = {folder_ / "domains"};
  wanted.block_urls = {folder_ / "urls"};
  const FilterResult result = filter(wanted);
  EXPECT_THAT(output(), ElementsAre(HasSubstr("anexample"), HasSubstr("more"), HasSubstr("5"), HasSubstr("text")));
  EXPECT_EQ(count(result, Reason::Url), 4);
  wanted.url_key = "text";
  EXPECT_EQ(filter(wanted).kept, 8);
}

TEST_F(FilterTest, RefusesWhatItCannotDoBeforeItWrites) {
  const auto refusal = [&](auto change) {
    FilterOptions wanted = options(json_line("a b c"));
    change(wanted);
    return error_of([&] { filter(wanted); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.min_tokens = -1; }), HasSubstr("0 or more"));
  EXPECT_THAT(refusal([](auto& o) { o.workers = 0; }), HasSubstr("a worker"));
  EXPECT_THAT(refusal([](auto& o) { o.text.format = data::TextFormat::File; }), HasSubstr("must be records"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(FilterTest, CountsTheDocumentsThatNoBlocklistCanBlock) {
  const std::string lines = "{\"text\": \"a b c\", \"url\": \"x.example\"}\n" + json_line("d e f") + "bad\n";
  FilterOptions wanted = options(lines);
  wanted.skip_bad_lines = true;
  EXPECT_EQ(filter(wanted).without_url, 0);
  write_bytes(folder_ / "domains", "other.example\n");
  wanted.block_domains = {folder_ / "domains"};
  EXPECT_EQ(filter(wanted).without_url, 1);
  wanted.url_key = "link";
  EXPECT_EQ(filter(wanted).without_url, 2);
  wanted.text.format = data::TextFormat::Lines;
  EXPECT_THAT(error_of([&] { filter(wanted); }), HasSubstr("documents with URLs"));
}

TEST_F(FilterTest, TakesATextThatTheTokenizerRefusesForABadLine) {
  // No character of the second text has a token, nor is there one for what is not known.
  write_bytes(folder_ / "tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"},)"
                                          R"("pre_tokenizer": {"type": "WhitespaceSplit"}})");
  const text::Tokenizer tokenizer = text::Tokenizer::load(folder_ / "tokenizer.json");
  FilterOptions wanted = options(json_line("a a a") + json_line("a b a"));
  wanted.tokenizer = &tokenizer;
  EXPECT_THAT(error_of([&] { filter(wanted); }), HasSubstr("in.jsonl, line 2, byte 18: "));
  wanted.skip_bad_lines = true;
  EXPECT_EQ(filter(wanted).kept, 1);
  EXPECT_THAT(reasons(), ElementsAre("bad_line"));
}

TEST(Blocklists, NormalizeUrls) {
  const auto parts = [](const std::string& url) {
    const UrlParts result = url_parts(url);
    return result.host + " " + result.address;
  };
  EXPECT_EQ(parts("HTTP://User:Pw@Host.Example.:8080/Path/?q=A#frag"), "host.example host.example/Path/?q=A");
  EXPECT_EQ(parts(" host.example/ "), "host.example host.example");
  EXPECT_EQ(parts("//"), " /");
  EXPECT_EQ(parts("http://[2001:db8::1]:80/x"), "[2001:db8::1] [2001:db8::1]/x");
  EXPECT_EQ(parts("http://[2001:db8::1]/x"), "[2001:db8::1] [2001:db8::1]/x");
  EXPECT_EQ(parts("http://h?u=http://other/@x"), "h h?u=http://other/@x");
  EXPECT_EQ(parts(""), " ");
}

TEST(Blocklists, FindTheEndOfHostsOfAnyLength) {
  TemporaryFolder folder;
  const std::string longest = std::string(251, 'x') + ".org";
  write_bytes(folder / "list", "example.org\n" + longest + "\n");
  Blocklist list;
  list.add_domains(folder / "list");
  EXPECT_TRUE(list.blocks(std::string(2 << 20, '.') + "example.org"));
  EXPECT_FALSE(list.blocks(std::string(2 << 20, '.') + "anexample.org"));
  for (std::size_t labels = 1; labels < 300; ++labels) {
    std::string host;
    for (std::size_t i = 0; i < labels; ++i) host += i % 3 == 0 ? "ab." : "c.";
    EXPECT_TRUE(list.blocks(host + "example.org")) << labels;
    EXPECT_TRUE(list.blocks(host + longest)) << labels;
    EXPECT_FALSE(list.blocks(host + "y" + longest)) << labels;
  }
}

TEST(Blocklists, TakeDomainsInTheFormsThatListsHave) {
  TemporaryFolder folder;
  write_bytes(folder / "list",
              "\xEF\xBB\xBF"
              "Bad.com\r\n.dot.org\r\n*.star.org\nm\xC3\xBCll.de\n[2001:db8::1]\na_b-c.net\n");
  Blocklist list;
  list.add_domains(folder / "list");
  for (const char* url : {"https://bad.com/x", "http://www.dot.org", "dot.org", "star.org/", "http://m\xC3\xBCll.de",
                          "http://[2001:db8::1]:80/x", "x.a_b-c.net"})
    EXPECT_TRUE(list.blocks(url)) << url;
  write_bytes(folder / "urls", "\xEF\xBB\xBFhttps://page.org/x\n");
  list.add_urls(folder / "urls");
  EXPECT_TRUE(list.blocks("http://page.org/x"));
}

TEST(Blocklists, NameTheLineThatIsNone) {
  TemporaryFolder folder;
  const auto error = [&](const std::string& content, bool urls) {
    write_bytes(folder / "list", content);
    return error_of([&] {
      Blocklist list;
      urls ? list.add_urls(folder / "list") : list.add_domains(folder / "list");
    });
  };
  EXPECT_THAT(error("a.org\nhttp://b.org/page\n", false), HasSubstr("list, line 2"));
  EXPECT_THAT(error("a.org b.org\n", false), HasSubstr("one name a line"));
  EXPECT_THAT(error("/only/a/path\n", true), HasSubstr("line 1"));
  EXPECT_THAT(error("/x\n", false), HasSubstr("line 1"));
  EXPECT_THAT(error(std::string(256, 'x') + "\n", false), HasSubstr("255 bytes"));
  for (const char* line : {"||ok.com^", "ok.com,notbad.com", "!ok.com", "ok..com", ".", "..ok.com", "*ok.com"})
    EXPECT_THAT(error(std::string("a.org\n") + line + "\n", false), HasSubstr("line 2")) << line;
  EXPECT_EQ(error("", true), "");
}

const char* const kEnglish =
    "It was a cold morning in the early spring when the two brothers left the farm on which they had been born. Their "
    "mother stood at the gate and watched them until the road turned behind the old mill, and then she went back into "
    "the house, where the fire had nearly gone out.";
const char* const kGerman =
    "Es war ein kalter Morgen im frühen Frühling, als die beiden Brüder den Hof verließen, auf dem sie geboren waren. "
    "Ihre Mutter stand am Tor und sah ihnen nach, bis die Straße hinter der alten Mühle verschwand, und dann ging sie "
    "zurück ins Haus, wo das Feuer beinahe erloschen war.";
const char* const kFrench =
    "C'était un matin froid au début du printemps quand les deux frères quittèrent la ferme où ils étaient nés. Leur "
    "mère se tenait près de la porte et les regarda jusqu'à ce que le chemin tourne derrière le vieux moulin, puis "
    "elle rentra dans la maison, où le feu était presque éteint.";
const char* const kSpanish =
    "Era una mañana fría a principios de la primavera cuando los dos hermanos dejaron la granja en la que habían "
    "nacido. Su madre se quedó junto a la puerta y los miró hasta que el camino dobló detrás del viejo molino, y "
    "entonces volvió a la casa, donde el fuego casi se había apagado.";
const char* const kRussian = "Было холодное утро ранней весны, когда два брата покинули ферму, на которой родились.";
const char* const kJapanese = "二人の兄弟が生まれた農場を去ったのは、早春の寒い朝のことでした。";

bool passes(const std::vector<std::string>& names, std::string_view text) { return LanguageFilter(names).passes(text); }

TEST(Language, CountsRunsOfFourInsideWordsAndAtTheirEdges) {
  const CharacterStatistics statistics = character_statistics("The of, I xq thé 3of");
  EXPECT_EQ(statistics.letters[static_cast<std::size_t>(Script::Latin)], 13);
  EXPECT_EQ(statistics.runs, 6);          // _the the_ | _of_ | _xq_ | _th_ | _of_
  EXPECT_EQ(statistics.english_runs, 4);  // without _xq_ and _th_
}

TEST(Language, TellsEnglishProseFromOtherLanguagesInLatinLetters) {
  EXPECT_TRUE(passes({"english"}, kEnglish));
  for (const char* const other : {kGerman, kFrench, kSpanish, kRussian, kJapanese}) {
    EXPECT_FALSE(passes({"english"}, other)) << other;
    EXPECT_TRUE(passes({}, other)) << "without names everything passes";
  }
}

TEST(Language, TellsScripts) {
  EXPECT_TRUE(passes({"latin"}, kGerman));
  EXPECT_FALSE(passes({"latin"}, kRussian));
  EXPECT_TRUE(passes({"cyrillic"}, kRussian));
  EXPECT_TRUE(passes({"latin", "cyrillic"}, kRussian));
  EXPECT_TRUE(passes({"kana"}, kJapanese));
  EXPECT_FALSE(passes({"hangul"}, kJapanese));
  EXPECT_TRUE(passes({"kana", "han"}, "漢字の文"));
  for (const auto& [name, text] : {std::pair("greek", "Καλημέρα"),
                                   {"hebrew", "שלום"},
                                   {"arabic", "مرحبا"},
                                   {"devanagari", "नमस्ते"},
                                   {"thai", "สวัสดี"},
                                   {"hangul", "안녕하세요"},
                                   {"han", "你好"}}) {
    EXPECT_TRUE(passes({name}, text)) << name;
    EXPECT_FALSE(passes({"latin"}, text)) << name;
  }
}

TEST(Language, CannotTellLanguagesOfOneScriptApartNorJudgeWhatIsNoProse) {
  EXPECT_TRUE(passes({"cyrillic"}, "Це український текст")) << "Ukrainian is no less Cyrillic than Russian";
  EXPECT_TRUE(passes({"english"}, "The thing and the other thing wis there afore ye, and she had nae mair tae say"))
      << "Scots passes as English";
  EXPECT_FALSE(passes({"english"}, "Xavier Kowalczyk, Zbigniew Brzozowski, Ioannis Papadopoulos"))
      << "a list of names is no English";
  EXPECT_FALSE(passes({"latin"}, "12345 ?! \xFF\xFE")) << "a text without letters has no language";
  EXPECT_FALSE(passes({"english"}, ""));
}

TEST(Language, PassesEnglishNovels) {
  const std::string path = data::shared_folder() + "/data/text/english_novels_98.jsonl.zst";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  data::TextReader reader({.inputs = {path}});
  std::string novel;
  for (int i = 0; i < 12 && reader.next(novel); ++i)
    EXPECT_TRUE(passes({"english"}, std::string_view(novel).substr(novel.size() / 2, 5000))) << i;
}

TEST(Language, MustBeOneThatIsKnown) {
  EXPECT_THAT(error_of([] { LanguageFilter({"englsh"}); }), HasSubstr("fix:  --language english"));
}

}  // namespace
}  // namespace megatron::corpus
