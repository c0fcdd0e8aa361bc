#include "megatron/corpus/filter/language.h"

#include <algorithm>
#include <bitset>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::corpus {
namespace {

struct Block {
  std::uint32_t first, last;
  Script script;
};

constexpr Block kBlocks[] = {
    {0x0041, 0x024F, Script::Latin},  {0x0370, 0x03FF, Script::Greek},      {0x0400, 0x052F, Script::Cyrillic},
    {0x0590, 0x05FF, Script::Hebrew}, {0x0600, 0x06FF, Script::Arabic},     {0x0750, 0x077F, Script::Arabic},
    {0x08A0, 0x08FF, Script::Arabic}, {0x0900, 0x097F, Script::Devanagari}, {0x0E00, 0x0E7F, Script::Thai},
    {0x1100, 0x11FF, Script::Hangul}, {0x1E00, 0x1EFF, Script::Latin},      {0x1F00, 0x1FFF, Script::Greek},
    {0x3040, 0x30FF, Script::Kana},   {0x31F0, 0x31FF, Script::Kana},       {0x3400, 0x4DBF, Script::Han},
    {0x4E00, 0x9FFF, Script::Han},    {0xAC00, 0xD7A3, Script::Hangul},     {0xF900, 0xFAFF, Script::Han},
    {0xFB50, 0xFDFF, Script::Arabic}, {0xFE70, 0xFEFF, Script::Arabic},     {0xFF21, 0xFF5A, Script::Latin},
    {0xFF66, 0xFF9F, Script::Kana},   {0x20000, 0x3FFFF, Script::Han}};

constexpr const char* kNames[] = {"latin",      "greek", "cyrillic", "hebrew", "arabic",
                                  "devanagari", "thai",  "kana",     "hangul", "han"};

/// The most frequent runs of four in words of English, from public-domain novels; '_' is the space before or after one.
constexpr std::string_view kEnglishRuns =
    "_all _an_ _and _as_ _at_ _be_ _bee _but _by_ _com _con _cou _eve _for _fro _had _hav _he_ _hea _her _him "
    "_his _if_ _in_ _int _is_ _it_ _loo _man _me_ _mor _my_ _no_ _not _of_ _on_ _one _or_ _out _sai _see _she "
    "_sho _so_ _som _tha _the _thi _tho _to_ _was _wer _wha _whe _whi _who _wit _wor _wou _you aid_ ain_ all_ "
    "ame_ and_ are_ ave_ ble_ but_ een_ elf_ ell_ ent_ ere_ ery_ ess_ ever for_ from ght_ had_ hat_ have hen_ "
    "her_ here hey_ hich him_ hing his_ ich_ ight ill_ ing_ ion_ ith_ ked_ king look man_ nce_ ned_ not_ now_ "
    "old_ ome_ one_ ood_ ore_ othe ough ould our_ out_ own_ red_ rom_ said sed_ self she_ some ted_ ter_ that "
    "the_ ther they thin this thou ting tion tle_ ttle ugh_ ught uld_ ver_ very was_ were what when whic who_ "
    "with woul you_ ";

/// Which runs of four are English; a letter is 0 for the edge of a word, 1 to 26 for a to z.
class EnglishRuns {
 public:
  EnglishRuns() {
    for (std::size_t i = 0; i < kEnglishRuns.size(); i += 5) {
      std::size_t run = 0;
      for (const char c : kEnglishRuns.substr(i, 4))
        run = run * kLetters + (c == '_' ? 0 : static_cast<std::size_t>(c - 'a' + 1));
      known_.set(run);
    }
  }
  bool operator[](std::size_t run) const { return known_[run]; }

  static constexpr std::size_t kLetters = 27, kRuns = kLetters * kLetters * kLetters * kLetters;

 private:
  std::bitset<kRuns> known_;
};

Script script_of(std::uint32_t c) {
  const auto* found = std::lower_bound(std::begin(kBlocks), std::end(kBlocks), c,
                                       [](const Block& block, std::uint32_t point) { return block.last < point; });
  return found != std::end(kBlocks) && found->first <= c ? found->script : Script::Other;
}

constexpr double kScriptShare = 0.5, kEnglishShare = 0.1;

}  // namespace

CharacterStatistics character_statistics(std::string_view text) {
  static const EnglishRuns english;
  const text::UnicodeClasses& classes = text::UnicodeClasses::instance();
  CharacterStatistics statistics;
  std::size_t run = 0, letters = 0;         // of the open word: the last four with the space before it, how many
  const auto letter = [&](std::size_t c) {  // 0: no letter, a word ends
    if (c == 0 && letters == 0) return;
    run = (run * EnglishRuns::kLetters + c) % EnglishRuns::kRuns;
    letters += 1;
    if (letters >= 3) {  // with the space before it four
      ++statistics.runs;
      statistics.english_runs += english[run] ? 1 : 0;
    }
    if (c == 0) run = letters = 0;
  };
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) {
      const unsigned ascii = (byte | 0x20u) - 'a';
      if (ascii < 26) ++statistics.letters[static_cast<std::size_t>(Script::Latin)];
      letter(ascii < 26 ? ascii + 1 : 0);
      ++p;
      continue;
    }
    const DecodedChar c = decode_utf8(p, end);
    letter(0);
    if (c.length != 0 && classes.of(c.code_point) == text::CharClass::Letter)
      ++statistics.letters[static_cast<std::size_t>(script_of(c.code_point))];
    p += std::max(c.length, 1);
  }
  letter(0);
  return statistics;
}

LanguageFilter::LanguageFilter(const std::vector<std::string>& names) : all_(names.empty()) {
  std::vector<std::string> known(std::begin(kNames), std::end(kNames));
  known.emplace_back("english");
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end())
      throw ConfigError(not_a_choice("a language", name, known, "--language", "--language english"));
    if (name == "english")
      english_ = true;
    else
      scripts_[static_cast<std::size_t>(found - known.begin())] = true;
  }
}

bool LanguageFilter::passes(std::string_view text) const {
  if (all_) return true;
  const CharacterStatistics statistics = character_statistics(text);
  std::int64_t letters = 0, named = 0;
  for (std::size_t i = 0; i < kScripts; ++i) {
    letters += statistics.letters[i];
    if (scripts_[i]) named += statistics.letters[i];
  }
  if (letters == 0) return false;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  if (share(named, letters) >= kScriptShare) return true;
  return english_ && share(statistics.letters[static_cast<std::size_t>(Script::Latin)], letters) >= kScriptShare &&
         share(statistics.english_runs, statistics.runs) >= kEnglishShare;
}

}  // namespace megatron::corpus
