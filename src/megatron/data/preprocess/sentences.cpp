#include "megatron/data/preprocess/sentences.h"

#include <algorithm>
#include <span>

#include "megatron/base/error.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::data {
namespace {

/// Words in small letters, without their last full stop, separated by spaces.
struct Language {
  std::string_view code, name;
  std::string_view titles;    ///< never end a sentence
  std::string_view numbers;   ///< do not where a number follows
  std::string_view last;      ///< do where a starter follows
  std::string_view starters;  ///< begin many sentences
  bool ordinals;              ///< "3." may be "third"
  bool spaced_quotes;         ///< a space stands before » that closes
};

constexpr Language kLanguages[] = {
    {"en", "english",
     "mr mrs ms messrs mme mlle mdme dr prof rev revd hon gen col maj capt lieut lt sgt serg corp cpl pvt adm cmdr gov "
     "sen rep pres supt esq e.g i.e eg ie cf viz vs v ibid approx mt ft",
     "no nos num p pp pg vol vols ch chap fig figs art sec sect col par op ed eq ver jan feb mar apr jun jul aug sep "
     "sept "
     "oct nov dec ca c",
     "st jr sr inc co corp ltd llc bros dept dist est univ assn ave blvd rd ph.d m.a b.a d.c u.s u.k u.n al",
     "the a an he she it they we you i this that these those there here his her its their our my your in on at by for "
     "from with to of as if when while after before since during although though because but and or so yet then thus "
     "however what who which how why where no not one two some many most all both each every other another such",
     false, false},
    {"de", "german",
     "dr prof hr hrn fr frl st dipl ing z.b d.h bzw ca vgl sog geb gest verh evtl ggf inkl exkl bzgl insb mind max "
     "str z d u a i s v u.a z.t i.d.r o.ä",
     "nr s bd kap abb art abs tab jan feb apr aug sept okt nov dez", "usw etc jr sen co gmbh u.s u.v.m",
     "der die das ein eine einen er sie es wir ich ihr sein ihre in im am an auf bei nach mit für von vor zu aus und "
     "aber doch denn oder wenn als da so dann dort hier dies diese dieser dieses man auch nur nicht was wer wie wo",
     true, false},
    {"fr", "french", "mm mme mmes mlle mlles mgr dr me st ste cf ex env p.ex c.-à-d",
     "no nos n° h p pp vol t chap fig art janv févr juil sept oct nov déc", "etc jr cie sté av bd",
     "le la les l un une des il elle ils elles on ce cet cette ces je tu nous vous son sa ses leur leurs mon ma dans "
     "en "
     "à au aux pour par sur avec sans sous mais et ou si quand lorsque comme puis ainsi alors après avant",
     false, true},
    {"es", "spanish",
     "sr sra sres sras srta d dª dña dr dra drs prof lic ing gral cnel cap ud uds vd vds sto sta p.ej cf aprox ee",
     "no nº núm núms p pp pág págs vol vols t fig art ene feb abr ago sept oct nov dic", "etc jr cía s.a ee.uu av",
     "el la los las un una unos unas él ella ellos ellas lo su sus mi mis este esta estos estas ese esa aquel en a de "
     "del al por para con sin sobre pero y o si cuando como aunque entonces así después antes no se",
     false, false},
};

std::unordered_set<std::string_view> words_of(std::string_view list) {
  std::unordered_set<std::string_view> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    words.insert(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

const Language& language_of(std::string_view name) {
  for (const Language& language : kLanguages)
    if (name == language.code || name == language.name) return language;
  throw ConfigError(
      rule_got_fix("sentences can be found in en, de, fr and es.", std::string(name), "--lang en (the default)"));
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_small(char c) { return c >= 'a' && c <= 'z'; }
bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_small(c) || is_capital(c) || (static_cast<unsigned char>(c) & 0x80) != 0; }

/// Whether a text begins with a small letter of the Latin, Greek or Cyrillic script.
bool begins_small(std::string_view text) {
  if (text.empty()) return false;
  if (static_cast<unsigned char>(text[0]) < 0x80) return is_small(text[0]);
  const std::uint32_t c = decode_utf8(text.data(), text.data() + text.size()).code_point;
  if (c >= 0x139 && c <= 0x148) return c % 2 == 0;
  if (c >= 0x179 && c <= 0x17E) return c % 2 == 0;
  if (c >= 0x100 && c <= 0x177) return c % 2 == 1;
  return (c >= 0xDF && c <= 0xFF && c != 0xF7) || (c >= 0x3AC && c <= 0x3CE) || (c >= 0x430 && c <= 0x45F);
}

/// Some characters: those of one byte by a table, the others one by one.
class Characters {
 public:
  constexpr Characters(std::string_view ascii, std::span<const std::string_view> others) : others_(others) {
    for (const char c : ascii) ascii_[static_cast<unsigned char>(c)] = true;
  }
  /// Bytes of the character of these at `at`; 0 where there is none.
  std::size_t match(std::string_view text, std::size_t at) const {
    if (at >= text.size()) return 0;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) return ascii_[byte] ? 1 : 0;
    for (const std::string_view other : others_)
      if (text.substr(at).starts_with(other)) return other.size();
    return 0;
  }

 private:
  std::array<bool, 128> ascii_{};
  std::span<const std::string_view> others_;
};

constexpr std::string_view kWideStop[] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"};  // 。！？
constexpr std::string_view kEllipsis[] = {"\xE2\x80\xA6"};
constexpr std::string_view kWideClosing[] = {"\xE2\x80\x9D", "\xE2\x80\x99", "\xE2\x80\x9C", "\xE2\x80\xBA",
                                             "\xC2\xBB",     "\xE3\x80\x8D", "\xE3\x80\x8F", "\xEF\xBC\x89"};
constexpr std::string_view kWideOpening[] = {"\xE2\x80\x9C", "\xE2\x80\x98", "\xE2\x80\x9E", "\xE2\x80\x9A",
                                             "\xE2\x80\x94", "\xE2\x80\x93", "\xE2\x80\xB9", "\xC2\xAB",
                                             "\xC2\xBB",     "\xC2\xBF",     "\xC2\xA1"};
constexpr std::string_view kSpacedClosing[] = {" \xC2\xBB", "\xC2\xA0\xC2\xBB", "\xE2\x80\xAF\xC2\xBB"};
constexpr Characters kStops(".!?", kEllipsis), kWideStops("", kWideStop), kClosing("\"')]}_*", kWideClosing),
    kOpening("\"'`([{_*-", kWideOpening);

/// What a byte may begin.
enum class Mark : std::uint8_t { None, Stop, Wide, Line };

constexpr auto kMarks = [] {
  std::array<Mark, 256> marks{};
  marks['.'] = marks['!'] = marks['?'] = marks[0xE2] = Mark::Stop;
  marks[0xE3] = marks[0xEF] = Mark::Wide;
  marks['\n'] = Mark::Line;
  return marks;
}();

/// A short word in small letters.
class Word {
 public:
  static constexpr std::size_t kMaxLength = 16;

  /// What is longer is no word that a list could hold.
  explicit Word(std::string_view text) {
    if (text.size() > kMaxLength) return;
    size_ = text.size();
    std::transform(text.begin(), text.end(), letters_.begin(),
                   [](char c) { return is_capital(c) ? static_cast<char>(c + ('a' - 'A')) : c; });
  }
  operator std::string_view() const { return {letters_.data(), size_}; }

 private:
  std::array<char, kMaxLength> letters_{};
  std::size_t size_ = 0;
};

/// The word before `stop`, empty where it is longer than any of the lists'.
std::string_view word_before(std::string_view text, std::size_t begin, std::size_t stop) {
  std::size_t at = stop;
  constexpr std::string_view kBreaks = "\"'`([{_*-/,;:";
  while (at > begin && !is_space(text[at - 1]) && kBreaks.find(text[at - 1]) == std::string_view::npos) {
    if (stop - at == Word::kMaxLength) return {};
    --at;
  }
  const std::string_view word = text.substr(at, stop - at);
  const std::size_t mark = word.rfind("\xE2\x80");  // a dash or a quote
  return mark == std::string_view::npos ? word : word.substr(std::min(mark + 3, word.size()));
}

std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && end - at <= Word::kMaxLength && is_letter(text[end])) ++end;
  return text.substr(at, end - at);
}

/// "J", "J.R", "U.S": single capitals.
bool is_initials(std::string_view word) {
  for (std::size_t i = 0; i < word.size(); ++i)
    if (i % 2 == 0 ? !is_capital(word[i]) : word[i] != '.') return false;
  return word.size() % 2 == 1;
}

bool is_number(std::string_view word) {
  return !word.empty() && (std::all_of(word.begin(), word.end(), is_digit) ||
                           word.find_first_not_of("IVXLCDM") == std::string_view::npos);
}

}  // namespace

SentenceSplitter::SentenceSplitter(std::string_view language, bool keep_newlines) : keep_newlines_(keep_newlines) {
  const Language& rules = language_of(language);
  titles_ = words_of(rules.titles);
  numbers_ = words_of(rules.numbers);
  last_ = words_of(rules.last);
  starters_ = words_of(rules.starters);
  ordinals_ = rules.ordinals;
  spaced_quotes_ = rules.spaced_quotes;
}

/// Whether the single full stop at `stop` ends the sentence that began at `begin`, with the next word at `next`.
bool SentenceSplitter::full_stop_ends(std::string_view text, std::size_t begin, std::size_t stop,
                                      std::size_t next) const {
  const std::string_view word = word_before(text, begin, stop), following = word_at(text, next);
  const auto starts = [&] { return starters_.contains(Word(following)); };
  const bool number_follows = next < text.size() && (is_digit(text[next]) || is_number(following));
  if (word.empty()) return true;
  if (is_initials(word)) return word == "I" || (word.size() > 1 && starts());
  if (ordinals_ && word.size() <= 2 && std::all_of(word.begin(), word.end(), is_digit)) return starts();
  const Word small(word);
  if (numbers_.contains(small) && number_follows) return false;
  if (titles_.contains(small)) return false;
  return !last_.contains(small) || starts();
}

void SentenceSplitter::split(std::string_view text, std::vector<std::string_view>& sentences) const {
  std::size_t begin = 0, at = 0;
  // Ends a sentence at `end`, whose successor begins at the next byte that is no white space.
  const auto cut = [&](std::size_t end) {
    at = end;
    while (at < text.size() && is_space(text[at])) ++at;
    if (add(text.substr(begin, (keep_newlines_ ? at : end) - begin), sentences)) begin = at;
  };
  while (at < text.size()) {
    const Mark mark = kMarks[static_cast<unsigned char>(text[at])];
    if (mark == Mark::None) {
      ++at;
      continue;
    }
    const std::size_t stop = at;
    if (mark == Mark::Line) {
      while (++at < text.size() && is_space(text[at]) && text[at] != '\n') {
      }
      if (at < text.size() && text[at] == '\n') cut(stop);
      continue;
    }
    const bool wide = mark == Mark::Wide;
    const Characters& stops = wide ? kWideStops : kStops;
    const std::size_t size = stops.match(text, at);
    at += std::max<std::size_t>(size, 1);
    if (size == 0) continue;
    bool one_full_stop = text[stop] == '.';
    for (std::size_t more = 1; more != 0; at += more) {
      more = stops.match(text, at);
      if (more != 0) one_full_stop = false;
      if (more == 0) more = kClosing.match(text, at);
      for (const std::string_view closing : kSpacedClosing)
        if (more == 0 && spaced_quotes_ && text.substr(at).starts_with(closing)) more = closing.size();
    }
    if (!wide && at < text.size() && !is_space(text[at])) continue;
    const std::size_t end = at;
    std::size_t next = at;
    while (next < text.size() && is_space(text[next])) ++next;
    // A blank line between is found here, not by the next '\n', as what follows it may begin in any way.
    const auto lines = std::count(text.begin() + static_cast<std::ptrdiff_t>(end),
                                  text.begin() + static_cast<std::ptrdiff_t>(next), '\n');
    std::size_t word = next;
    for (std::size_t more = 1; more != 0; word += more) more = kOpening.match(text, word);
    const bool ends = wide || lines > 1 ||
                      (!begins_small(text.substr(word)) && (!one_full_stop || full_stop_ends(text, begin, stop, word)));
    if (ends)
      cut(end);
    else
      at = next;
  }
  if (begin < text.size()) add(text.substr(begin), sentences);
}

/// Adds a sentence; false where it is blank.
bool SentenceSplitter::add(std::string_view sentence, std::vector<std::string_view>& sentences) const {
  std::size_t first = 0, end = sentence.size();
  while (first < end && is_space(sentence[first])) ++first;
  if (first == end) return false;
  while (is_space(sentence[end - 1])) --end;
  sentences.push_back(keep_newlines_ ? sentence : sentence.substr(first, end - first));
  return true;
}

}  // namespace megatron::data
