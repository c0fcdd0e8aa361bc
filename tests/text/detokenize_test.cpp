#include "megatron/text/decode/detokenize.h"

#include <gtest/gtest.h>

#include "tests/testing/folders.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

TEST(DetokenizeWikitext, UndoesEachRule) {
  EXPECT_EQ(detokenize_wikitext("the dogs ' 1 @,@ 000 @.@ 5 @-@ mile run : so ; it . is ! not ? far , ok"),
            "the dogs' 1,000.5-mile run: so; it. is! not? far, ok");
  EXPECT_EQ(detokenize_wikitext("( a b ) [ c ] { d } \" e \" ' f ' (g)"), "(a b) [c] {d} \"e\" 'f' (g)");
  EXPECT_EQ(detokenize_wikitext("(\xc2\xa0 a \xe3\x80\x80) ( unclosed"), "(a) ( unclosed");
  EXPECT_EQ(detokenize_wikitext(" = = Head = = \n = = = Sub = = = \n"), " == Head ==\n=== Sub ===\n");
  EXPECT_EQ(detokenize_wikitext("20 \xc2\xb0 C , N N years , he 's"),
            "20\xc2\xb0"
            "C, 1 N years, he's");
  EXPECT_EQ(detokenize_wikitext(""), "");
}

TEST(DetokenizeWikitext, GivesThePapersTokenCountOnWikiText103) {
  const std::filesystem::path data = std::filesystem::path(unpacked_folder()) / "data";
  const std::string file = whole_data("wikitext/wikitext-103.wiki.test.tokens");
  if (file.empty()) GTEST_SKIP() << "needs whole data: MEGATRON_TEST_DATA is not set";
  std::string text = read_file(file);
  text.erase(text.find_last_not_of(" \n") + 1);
  text.erase(0, text.find_first_not_of(" \n"));
  EXPECT_EQ(Tokenizer::load(data / "gpt2").encode(detokenize_wikitext(text)).size(), 270329u);
}

}  // namespace
}  // namespace megatron::text
